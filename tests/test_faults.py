"""What the fault experiment would notice: each kind of loss, and numbers that do not add up."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "experiments"))

from faults import FINISHED, Seen, added, inconsistent, lost


def event(**fields: object) -> str:
    return json.dumps({"elapsed_s": 1.0, "event": fields})


def seen() -> Seen:
    verdict = {"status": "verified", "time_us": 2.0}
    events = [event(settings={}), event(proposal={"number": 0}), event(number=0, reply={}), event(number=0, placement="kept", verdict=verdict)]
    return Seen({("r", n): e for n, e in enumerate(events)}, {("r", 0): ("t", "k", "tune", "verified", "kept")}, {("b",): json.dumps(verdict)})


def test_nothing_is_lost_where_more_was_stored() -> None:
    before, after = seen(), seen()
    lower = {"status": "verified", "time_us": 3.0}
    after.events["r", 4] = event(verdict=lower)  # confirmed, and the lower one stands from now on
    after.verdicts["b",] = json.dumps(lower)
    assert lost(before, after) == [] and inconsistent(after) == []


@pytest.mark.parametrize("what", ["events", "attempts", "verdicts"])
def test_what_is_gone_or_changed_is_lost(what: str) -> None:
    gone, changed = seen(), seen()
    key = list(getattr(gone, what))[-1]
    getattr(gone, what).pop(key)
    getattr(changed, what)[key] = event(other=1) if what == "events" else json.dumps({"time_us": 1.0})
    assert len(lost(seen(), gone)) == len(lost(seen(), changed)) == 1


def test_gaps_and_repetitions_are_noticed() -> None:
    gap, twice, silent = seen(), seen(), seen()
    gap.events["r", 9] = event(reason="over")
    twice.events["r", 4] = twice.events["r", 3]
    silent.attempts.clear()
    assert all(len(inconsistent(s)) >= 1 for s in (gap, twice, silent))


def test_only_finished_files_belong_into_a_cache() -> None:
    assert FINISHED.fullmatch("0123456789abcdef.so") and FINISHED.fullmatch("prelude-0123456789abcdef")
    assert not any(FINISHED.fullmatch(n) for n in ("building-abc_1234", "0123456789abcdef.1.tmp", "prelude-x7fa_3bq"))


def test_short_runs_add_up() -> None:
    one = {"kills": 3, "kills_by_kind": {"loop": 3}, "lost_or_left": ["a"]}
    assert added(one, {"kills": 2, "kills_by_kind": {"judge": 2}, "lost_or_left": []}) == {
        "kills": 5, "kills_by_kind": {"loop": 3, "judge": 2}, "lost_or_left": ["a"],
    }  # fmt: skip
