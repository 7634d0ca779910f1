"""Runs with models: what is asked, what it costs, and what happens when models fail. The models are scripted doubles; the loop, the archive and
the reading of answers are the real ones."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evokernel.archive.runs import Answered, Asked, Called, Failed, Judged, RunSettings
from evokernel.archive.store import Archive
from evokernel.errors import ModelError, UsageError
from evokernel.models import CallSettings, Completion, Prompt, Unavailable
from evokernel.records import Placement, Status
from evokernel.search import run
from evokernel.search.run import resume, run_search
from evokernel.search.state import fold

from .fake_judge import FakeJudge, kernel_text

NAME = "openai/scripted@http://localhost:1/v1"


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    with Archive(tmp_path / "a.db") as opened:
        yield opened


class Scripted:
    """A model that answers what `answer` makes of the number of the call and the prompt."""

    def __init__(self, answer: Callable[[int, Prompt], str | Completion | Exception]) -> None:
        self.answer, self.prompts = answer, []
        self._lock, self._count = threading.Lock(), itertools.count()
        self.at_once = self.most_at_once = 0

    def complete(self, prompt: Prompt, settings: CallSettings) -> Completion:
        with self._lock:
            number = next(self._count)
            self.prompts.append(prompt)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            found = self.answer(number, prompt)
        finally:
            with self._lock:
                self.at_once -= 1
        if isinstance(found, Exception):
            raise found
        return found if isinstance(found, Completion) else Completion(found, "end", input_tokens=1000, output_tokens=100)


def fenced(number: int, **changed: object) -> str:
    text = kernel_text(300 + number % 50, extra=f"int n{number};", strategy=f"Draft {number}.", **changed)  # type: ignore[arg-type]
    return f"Here it is.\n```cpp\n{text}```\n"


def settings(candidates: int = 12, **changed: object) -> RunSettings:
    return RunSettings("cpp", candidates=candidates, models=(NAME,), prices=(f"{NAME}=10,100",), **changed)  # type: ignore[arg-type]


def searched(archive: Archive, model: Scripted, judge: FakeJudge | None = None, **changed: object):  # type: ignore[no-untyped-def]
    return run_search(archive, judge or FakeJudge(), settings(**changed), models={NAME: model})  # type: ignore[arg-type]


def test_exactly_so_many_candidates_and_every_token_is_counted(archive: Archive) -> None:
    model = Scripted(lambda n, _: fenced(n))
    result = searched(archive, model)
    assert result.candidates == 12 and result.reason == "all 12 candidates are measured" and result.confirmed
    events = [e.event for e in archive.events(result.run_id)]
    asked = [e.proposal for e in events if isinstance(e, Asked)]
    assert [p.operator for p in asked[:4]] == ["translate"] * 4 and len({p.operator for p in asked}) > 3
    assert all(p.model == NAME for p in asked if p.operator not in ("tune", "recombine"))
    assert result.tokens == 1100 * len(model.prompts) and result.cost_usd == pytest.approx(len(model.prompts) * (1000 * 10 + 100 * 100) / 1e6)
    hashes = [e.prompt_hash for e in events if isinstance(e, Called)]
    assert sorted(hashes) == sorted(p.hash for p in model.prompts)
    assert len({p.prefix for p in model.prompts}) == 1, "the prefix is cacheable"


def test_calls_overlap_each_other_and_the_judge(archive: Archive) -> None:
    def slow(number: int, _: Prompt) -> str:
        time.sleep(0.05)
        return fenced(number)

    model = Scripted(slow)
    searched(archive, model)
    assert 2 <= model.most_at_once <= run.CALLS


def test_failures_are_repaired_with_their_message_at_most_twice(archive: Archive) -> None:
    model = Scripted(lambda n, _: fenced(n, tunes="") .replace("int n", "// WRONG\nint n"))
    result = searched(archive, model, candidates=9)
    asked = [e.event.proposal for e in archive.events(result.run_id) if isinstance(e.event, Asked)]
    repairs = [p for p in asked if p.operator == "repair"]
    assert repairs and "expected 1, got nan" in "".join(p.rest for p in model.prompts)
    made = {e.event.number: e.event.verdict.kernel_id for e in archive.events(result.run_id) if isinstance(e.event, Judged)}
    parent = {made[p.number]: p.parents[0] for p in repairs if p.number in made}
    for kernel in parent:
        chain = list(itertools.takewhile(lambda k: k is not None, itertools.accumulate(range(9), lambda k, _: parent.get(k), initial=kernel)))
        assert len(chain) <= 3


@pytest.mark.parametrize(
    ("answer", "note"),
    [
        ("I would rather not write any code.", ""),
        (Completion("", "refused", 900, 0, 5), "refused"),
        (Completion("```cpp\n// @launch f(x", "length", 900, 0, 5), "cut off"),
        ("```python\nimport torch\n```", ""),
        ("```cpp\n\ud800// @launch relu(x, out, x.numel)\n```", ""),
    ],
)  # fmt: skip
def test_an_answer_without_a_kernel_costs_no_measurement_and_is_stored(archive: Archive, answer: str | Completion, note: str) -> None:
    model = Scripted(lambda n, _: answer if n % 2 else fenced(n))
    judge = FakeJudge()
    result = searched(archive, model, judge, candidates=4)
    assert result.candidates == 4
    rejected = [e.event.verdict for e in archive.events(result.run_id) if isinstance(e.event, Judged) and e.event.placement is Placement.REJECTED]
    assert rejected and all(v.status in (Status.NO_KERNEL, Status.INVALID) for v in rejected)
    assert any(note in v.message for v in rejected)


def test_a_model_that_never_writes_a_kernel_ends_the_run_some_day(archive: Archive) -> None:
    result = searched(archive, Scripted(lambda n, _: "no"), candidates=2)
    assert "answers gave a kernel to measure" in result.reason and result.candidates == 0


def test_out_of_quota_stops_at_once_and_the_results_stay(archive: Archive) -> None:
    model = Scripted(lambda n, _: fenced(n) if n < 3 else ModelError("out of quota: add credit"))
    result = searched(archive, model)
    assert result.resumable and result.stopped and "out of quota" in result.reason and result.candidates >= 1 and result.confirmed
    assert any(isinstance(e.event, Failed) for e in archive.events(result.run_id))
    done = resume(archive, FakeJudge(), result.run_id, models={NAME: Scripted(lambda n, _: fenced(100 + n))})
    assert done.candidates == 12 and not done.resumable


def test_half_of_all_calls_failing_loses_nothing_and_costs_nothing(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_BACK_OFF_S", (0.01, 0.02))
    monkeypatch.setattr(run, "_LOOK_S", 0.01)
    model = Scripted(lambda n, _: Unavailable("overloaded (529)") if n % 2 else fenced(n))
    result = searched(archive, model)
    answered = sum(isinstance(e.event, Answered) and e.event.reply.input_tokens > 0 for e in archive.events(result.run_id))
    assert result.candidates == 12 and result.tokens == 1100 * answered
    numbers = Counter(e.event.number for e in archive.events(result.run_id) if isinstance(e.event, Judged))
    assert max(numbers.values()) == 1


def test_an_endpoint_that_stays_down_ends_the_session_clearly(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_BACK_OFF_S", (0.01, 0.02)), ("_LOOK_S", 0.01), ("GIVE_UP_S", 0.2)):
        monkeypatch.setattr(run, name, value)
    result = searched(archive, Scripted(lambda n, _: Unavailable("connection refused")))
    assert result.resumable and "connection refused" in result.reason and result.tokens == 0 and result.candidates == 0


def test_a_budget_is_never_exceeded_and_killed_calls_stay_spent(archive: Archive) -> None:
    model = Scripted(lambda n, _: fenced(n))
    result = searched(archive, model, candidates=100, budget_usd=4.0)
    assert "budget of 4 USD" in result.reason and 0.5 < result.cost_usd <= 4.0 and 20 < result.candidates < 100
    events = list(archive.events(result.run_id))
    first = next(i for i, e in enumerate(events) if isinstance(e.event, Called))
    killed = fold(events[: first + 1])
    assert killed.written.spending.total == (events[first].event.tokens, events[first].event.usd) and events[first].event.usd > 1  # type: ignore[union-attr]


def test_a_budget_in_usd_asks_for_the_price(archive: Archive) -> None:
    with pytest.raises(UsageError, match="--price"):
        run_search(archive, FakeJudge(), RunSettings("cpp", models=(NAME,), budget_usd=1.0), models={NAME: Scripted(lambda n, _: "")})


@pytest.mark.parametrize("policy", ["best-of-n", "serial", "random-operator"])
def test_other_policies_run_under_the_same_budget(archive: Archive, policy: str) -> None:
    result = searched(archive, Scripted(lambda n, _: fenced(n)), policy=policy, candidates=8)
    operators = {e.event.proposal.operator for e in archive.events(result.run_id) if isinstance(e.event, Asked)}
    assert result.candidates == 8
    assert operators == {"best-of-n": {"translate"}, "serial": {"translate", "mutate"}}.get(policy, operators)


def test_one_dead_model_of_two_does_not_hold_up_the_run(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_LOOK_S", 0.01)
    dead = "openai/dead@http://localhost:2/v1"
    models = {NAME: Scripted(lambda n, _: fenced(n)), dead: Scripted(lambda n, _: Unavailable("429", 900.0))}
    started = time.monotonic()
    result = run_search(archive, FakeJudge(), RunSettings("cpp", candidates=12, models=(NAME, dead)), models=models)
    assert result.candidates == 12 and time.monotonic() - started < 60
    asked = {e.event.model for e in archive.events(result.run_id) if isinstance(e.event, Called)}
    assert asked == {NAME, dead}
