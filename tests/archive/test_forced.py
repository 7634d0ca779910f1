"""Verdicts on tasks that admission refuses: marked wherever they are shown, and nothing is built on them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from evokernel import api, codec
from evokernel.archive.lineage import dot, path
from evokernel.archive.runs import RunSettings, Started
from evokernel.archive.search import Filters
from evokernel.archive.store import Archive
from evokernel.archive.verdicts import versions_key
from evokernel.exports.columns import dataset_row
from evokernel.exports.folder import write_folder
from evokernel.exports.module import drop_in
from evokernel.exports.selection import Selection, left_out, sources
from evokernel.records import Admission, Attempt, Kernel, Proposal, Reply, Verdict
from evokernel.search.run import run_search
from evokernel.view.tables import admission_text, entries_text, hits_text, kernel_text, lineage_text
from evokernel.view.terminal import outcome, summary, verdict_text
from tests.search.fake_judge import DEVICE, FakeJudge, environment, failed, make, make_task, verified
from tests.search.fake_judge import kernel_text as text_of

TASK = make_task()
FORCED = replace(environment(), forced=True)


class ForcedJudge(FakeJudge):
    """A lane on a task that is judged by force."""

    def admit(self) -> Admission:
        return replace(super().admit(), forced=True, survived=("input x",), notes=("judged by force: the task is identity-like",))

    def judge(self, kernel: Kernel, *, incumbent_us: float | None = None, patience: float = 1.0) -> Verdict:
        return replace(super().judge(kernel, incumbent_us=incumbent_us, patience=patience), environment=FORCED)


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    with Archive(tmp_path / "a.db") as opened:
        opened.add_task(TASK)
        yield opened


def record(archive: Archive, *kernels: tuple[Kernel, Verdict, tuple[str, ...]]) -> None:
    log = archive.start_run(Started(TASK.id, DEVICE, RunSettings("cpp"), (), "task.py"))
    for number, (kernel, verdict, parents) in enumerate(kernels):
        archive.record(Attempt(Proposal(number, "mutate", parents), Reply(kernel.text), kernel, verdict), TASK, log, 1.0)


def test_every_view_says_so(archive: Archive) -> None:
    result = run_search(archive, ForcedJudge(), RunSettings("cpp", 2, start=text_of(500), force=True))
    assert result.best and result.verdict and result.verdict.environment.forced
    entries = archive.entries(Filters(kernel_id=result.best.id))
    dag = archive.lineage(result.best.id)
    for text in (
        summary(result, TASK, Path("k.cpp")), verdict_text(result.verdict), outcome(result.verdict), entries_text(entries),
        kernel_text(result.best, entries), hits_text(archive.search("rows", Filters())), lineage_text(dag, result.best.id), dot(dag),
    ):  # fmt: skip
        assert "by force" in text
    assert path(dag, result.best.id)[-1].forced and archive.check() == []
    text = admission_text(ForcedJudge().admit())
    assert "tried, and fail: zeros\n" in text and "do not fail: input x\n" in text
    assert "by force" not in verdict_text(verified(make(text_of(500)), 400)) + admission_text(FakeJudge().admit())


def test_nothing_is_built_on_it(archive: Archive, tmp_path: Path) -> None:
    slow, fast, proven = (make(text_of(n)) for n in (501, 502, 503))
    record(archive, (slow, verified(slow, 800, where=FORCED), ()), (fast, verified(fast, 100, where=FORCED), (slow.id,)))
    other = make_task("relu_cols", "def forward(self, v): return torch.relu(v)")
    assert archive.stones(TASK, "cpp") == archive.stones(other, "cpp") == () and archive.stone(fast.id, TASK.id) is None
    assert archive.lessons() == [] and archive.pairs(TASK.id) == []
    record(archive, (proven, verified(proven, 700), ()))
    assert [s.kernel.id for s in archive.stones(other, "cpp")] == [proven.id]
    mine = Selection(licence="MIT")
    assert [s.kernel["id"] for s in sources(archive.database, mine)] == [proven.id]
    assert left_out(archive.database, mine) == {"judged by force only": 2}
    everything = [dataset_row(s, 0) for s in sources(archive.database, replace(mine, everything=True))]
    assert [row["forced"] for row in everything] == [True, True, False]
    assert write_folder(archive, tmp_path / "folder", replace(mine, verified=True))[0] == 1


def test_it_is_taken_for_no_other_verdict(archive: Archive) -> None:
    kernel = make(text_of(501))
    record(archive, (kernel, verified(kernel, 100, where=FORCED), ()))
    record(archive, (kernel, verified(kernel, 900), ()))
    assert {v.time_us for where in (FORCED, environment()) if (v := archive.known(kernel.id, TASK.id, where))} == {100, 900}
    assert archive.lineage(kernel.id).nodes[kernel.id]["speedup_low"] == pytest.approx(0.99 * 1000 / 900), "what is proven comes first"
    assert archive.stone(kernel.id, TASK.id).speedup_low == pytest.approx(0.99 * 1000 / 900)


def test_verdicts_from_before_the_mark_are_read(archive: Archive) -> None:
    kernel = make(text_of(501))
    stored = json.loads(codec.dumps(failed(kernel)))
    del stored["environment"]["forced"]
    read = codec.loads(Verdict, json.dumps(stored))
    assert not read.environment.forced and versions_key(read.environment) == '{"torch": "2"}'


def test_a_drop_in_says_so() -> None:
    kernel = make(text_of(501))
    for forced in (False, True):
        head = drop_in(TASK, kernel, replace(FORCED, forced=forced)).partition('"""\n')[0]
        assert ("NOT PROVEN" in head) == forced


def test_resume_takes_it_from_the_run(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = []

    @contextlib.contextmanager
    def lane(task: object, target: object, session: api.Session) -> Iterator[FakeJudge]:
        sessions.append(session.force)
        yield ForcedJudge()

    monkeypatch.setattr(api, "open_lane", lane)
    monkeypatch.setattr(api, "shipped_root", lambda: None)
    session = api.Session(archive.database.path, force=True)
    for force in (True, False):
        run = api.evolve("task.py", RunSettings("cpp", 1, start=text_of(500)), replace(session, force=force)).run_id
        api.resume_run(run, api.Session(archive.database.path))
        assert sessions == [force, force]
        sessions.clear()
