"""A run's state stays as small as it is however long the run gets, and lets go of nothing that a decision or the result needs.

Policies, fold and archive are the real ones; the judge is arithmetic, the models are scripted."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from evokernel.archive.runs import Answered, Asked, Judged, Logged, RunSettings, Started, StoneRef
from evokernel.archive.store import Archive
from evokernel.archive.verdicts import Origin
from evokernel.errors import ModelError
from evokernel.kernelfile import make_kernel
from evokernel.models import Unavailable
from evokernel.records import Placement, Proposal, Reply, Status, Verdict
from evokernel.search import policy, run, state
from evokernel.search.asking import context_of
from evokernel.search.run import resume, run_search
from evokernel.search.state import FAILURES, KEPT, State, fold

from .fake_judge import DEVICE, FakeJudge, kernel_text, make_task
from .test_models import NAME, Scripted, fenced

JUDGE = FakeJudge()
STONES = tuple(StoneRef(f"stone{n}", "task") for n in range(5))
TUNED = "CHUNK = {} in 1 2 4 8 16"
Shape = Callable[[int], str]


def spread(n: int) -> str:
    return kernel_text(300 + int(n * 0.6180339887 % 1 * 600), tunes=TUNED.format(2 ** (n % 5)), extra=f"int n{n};" + "// WRONG" * (n % 8 == 7))


def ever_faster(n: int) -> str:
    return kernel_text(100_000 - n, tunes=TUNED.format(2 ** (n % 5)), extra=f"int n{n};")


def mostly_wrong(n: int) -> str:
    return kernel_text(300 + n % 50, tunes="", extra=f"int n{n};" + "// WRONG" * (n % 4 != 3))


def played(shape: Shape, candidates: int, under_way: int = 4, watch: Callable[[State], None] = lambda _: None, **changed: object) -> list[Logged]:
    """The events of a run whose policy is the real one and whose n-th answer is what `shape` makes of n; several proposals are under way at once."""
    settings = RunSettings("cpp", candidates=candidates, **{"models": (NAME,), **changed})  # type: ignore[arg-type]
    events = [Logged(0.0, Started("task", DEVICE, settings, STONES, "task.py"))]
    now = fold(events)

    def happen(*made: object) -> None:
        for event in made:
            events.append(Logged(len(events) / 10, event))  # type: ignore[arg-type]
            now.apply(events[-1])

    while not isinstance(decision := policy.decide(now), policy.Stop):
        if isinstance(decision, Proposal):
            happen(Asked(decision))
        if not isinstance(decision, Proposal) or len(now.pending) == under_way:
            number = next(iter(now.pending))
            text = shape(number)
            happen(Answered(number, Reply(text, f"Draft {number}.")), Judged(number, Placement.KEPT, JUDGE.judge(make_kernel(text, "cpp"))))
            watch(now)
    return events


def asked(events: list[Logged]) -> list[Proposal]:
    return [e.event.proposal for e in events if isinstance(e.event, Asked)]


@pytest.mark.parametrize("shape", [spread, ever_faster, mostly_wrong])
@pytest.mark.parametrize("name", ["ranked", "random-operator", "best-of-n", "serial"])
def test_what_is_let_go_of_changes_no_decision(monkeypatch: pytest.MonkeyPatch, shape: Shape, name: str) -> None:
    monkeypatch.setattr(state, "KEPT", 32)
    short = asked(played(shape, 300, policy=name))
    monkeypatch.setattr(state, "KEPT", 1_000_000)
    monkeypatch.setattr(state, "FAILURES", 1_000_000)
    assert short == asked(played(shape, 300, policy=name)) and len(short) >= 300


@pytest.mark.parametrize("name", ["ranked", "random-operator"])
def test_nor_does_it_without_models(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(state, "KEPT", 17)
    short = asked(played(ever_faster, 300, 1, policy=name, models=(), start=spread(0)))
    monkeypatch.setattr(state, "KEPT", 1_000_000)
    assert short == asked(played(ever_faster, 300, 1, policy=name, models=(), start=spread(0))) and len(short) > 3 * 17
    assert len({(p.operator, p.parents) for p in short}) == len(short)  # each is made once


@pytest.mark.parametrize(("shape", "name"), [(ever_faster, "ranked"), (spread, "random-operator"), (mostly_wrong, "best-of-n")])
def test_the_state_does_not_grow_with_the_run(shape: Shape, name: str) -> None:
    sizes: list[int] = []

    def watch(now: State) -> None:
        assert len(now.members) == len(now.ranking) < 2 * KEPT and len(now.written.broken) <= FAILURES
        assert len(now.tuned) <= len(now.members) + KEPT and len(now.tried) < 32 * KEPT
        sizes.append(len(pickle.dumps(now)) if now.placements.total() % 32 == 0 else 0)

    events = played(shape, 1800, watch=watch, policy=name)
    assert max(sizes[1300:]) < 1.1 * max(sizes[:1300]) and max(sizes) > 2000
    if shape is not mostly_wrong:
        now = fold(events)
        assert len(now.members) >= KEPT and now.candidates == 1800  # it counts all of them


def test_of_members_the_worst_go_and_the_best_stay_in_order() -> None:
    events = played(spread, 900)
    now = fold(events)
    verified = [e.event.verdict for e in events if isinstance(e.event, Judged) and e.event.verdict.status is Status.VERIFIED]
    best = sorted(verified, key=lambda v: -v.fitness)  # stable: the earlier one of equals first
    assert [m.verdict for m in now.ranked(KEPT)] == best[:KEPT] and len(verified) > 2 * KEPT


def test_the_latest_failures_stay() -> None:
    events = played(mostly_wrong, 300, policy="best-of-n")
    failed = [e.event.verdict.kernel_id for e in events if isinstance(e.event, Judged) and e.event.verdict.status is not Status.VERIFIED]
    assert list(fold(events).written.broken) == failed[-FAILURES:] and len(failed) > 3 * FAILURES


class Told:
    """A state that is told what happened, proposal by proposal."""

    def __init__(self) -> None:
        self.state = State(Started("task", DEVICE, RunSettings("cpp", candidates=100_000, models=(NAME,)), STONES, "task.py"))

    def ask(self, operator: str, *parents: str) -> int:
        proposal = Proposal(self.state.proposals, operator, parents, NAME)
        self.state.apply(Logged(0.0, Asked(proposal)))
        return proposal.number

    def judge(self, number: int, text: str, placement: Placement = Placement.KEPT) -> Verdict:
        verdict = JUDGE.judge(make_kernel(text, "cpp"))
        self.state.apply(Logged(0.0, Answered(number, Reply(text))))
        self.state.apply(Logged(0.0, Judged(number, placement, verdict)))
        return verdict

    def fill(self, count: int = 2 * KEPT) -> None:
        """So many faster kernels that all that stands now falls out of the best ones, and that it is let go of."""
        for _ in range(count):
            self.judge(number := self.ask("translate"), kernel_text(200, extra=f"int n{number};"))


def test_a_parent_that_fell_behind_while_its_child_was_under_way_is_its_parent_still(tmp_path: Path) -> None:
    told = Told()
    slow, wrong = told.judge(told.ask("translate"), kernel_text(900)), told.judge(told.ask("translate"), kernel_text(901, extra="// WRONG"))
    mutate, tune, repair = told.ask("mutate", slow.kernel_id), told.ask("tune", slow.kernel_id), told.ask("repair", wrong.kernel_id)
    told.fill()
    for n in range(FAILURES):
        told.judge(told.ask("translate"), kernel_text(902 + n, extra="// WRONG"))
    now = told.state
    assert slow.kernel_id not in now.members and wrong.kernel_id not in now.written.broken
    with Archive(tmp_path / "a.db") as archive:
        for text in (kernel_text(900), kernel_text(901, extra="// WRONG"), *(kernel_text(200, extra=f"int n{5 + n};") for n in range(2 * KEPT))):
            archive.add_kernel(make_kernel(text, "cpp"), Origin("run"))
        contexts = [context_of(now, archive, make_task(), DEVICE, now.pending[n].proposal) for n in (mutate, tune, repair)]
    assert [[p.verdict for p in c.parents] for c in contexts if c] == [[slow], [slow], [wrong]]
    child = told.judge(mutate, kernel_text(890))
    assert now.written.arms["mutate"].gain == child.fitness - slow.fitness > 0
    tuned = told.judge(tune, kernel_text(100, tunes=TUNED.format(8)))
    assert now.best and now.best.kernel_id == tuned.kernel_id and now.best.family == slow.kernel_id and slow.kernel_id in now.tuned
    again = told.judge(repair, kernel_text(999, extra="// WRONG"))
    assert now.written.broken[again.kernel_id].depth == 1


def test_a_kernel_that_was_let_go_of_and_comes_back_is_a_member_like_any_other() -> None:
    told = Told()
    slow = told.judge(told.ask("translate"), kernel_text(900))
    told.fill()
    now, measured = told.state, told.state.candidates
    best, ranking = now.best, list(now.ranking)
    assert slow.kernel_id not in now.members
    told.judge(told.ask("translate"), kernel_text(900), Placement.DUPLICATE)
    assert now.ranking[:-1] == ranking and now.ranking[-1][2] == slow.kernel_id and now.best is best
    assert now.candidates == measured and now.members[slow.kernel_id].family == slow.kernel_id
    told.fill()
    assert slow.kernel_id not in now.members


def test_what_was_tried_with_stones_and_members_is_known_for_ever_and_the_rest_for_a_while() -> None:
    told = Told()
    best, slow = (told.judge(told.ask("translate"), kernel_text(base)).kernel_id for base in (20, 900))
    old = [("transplant", "stone1"), ("transfer", "stone2"), ("tune", best), ("translate",), ("tune", slow), ("repair", "gone")]
    for what in old:
        told.judge(told.ask(*what), kernel_text(950))
    now = told.state
    assert now.tuned == {best, slow}
    told.fill()
    assert [(operator, tuple(parents)) in now.tried for operator, *parents in old] == [True, True, True, True, False, False]
    assert now.tuned == {best}
    told.judge(told.ask("repair", "latest"), kernel_text(950))
    told.fill(KEPT - now.placements.total() % KEPT)
    assert ("repair", ("latest",)) in now.tried


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    with Archive(tmp_path / "a.db") as opened:
        yield opened


def settings(candidates: int, **changed: str) -> RunSettings:
    return RunSettings("cpp", candidates=candidates, models=(NAME,), **changed)  # type: ignore[arg-type]


def test_a_state_that_let_go_of_much_is_read_back_as_it_was_and_decides_the_same(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "KEPT", 7)
    monkeypatch.setattr(state, "FAILURES", 2)
    live: list[State] = []
    model = Scripted(lambda n, _: fenced(n).replace("int n", "// WRONG\nint n") if n % 3 == 0 else fenced(n))
    result = run_search(archive, FakeJudge(), settings(60), lambda _, now: live.append(now), {NAME: model})
    first, *events = archive.events(result.run_id)
    again = fold([first])
    for logged in events:  # wherever the run is killed, it goes on as it did
        assert not isinstance(logged.event, Asked) or policy.decide(again) == logged.event.proposal
        again.apply(logged)
    assert again == live[-1] and len(again.members) < 14 < result.candidates == 60


def test_the_best_confirmed_kernel_is_the_result_however_far_it_fell_behind(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first session confirms one; in the second many are faster, and each one of them is wrong when it is measured again."""
    monkeypatch.setattr(state, "KEPT", 20)

    class Liar(FakeJudge):
        def judge(self, kernel, *, incumbent_us=None, patience=1.0):  # type: ignore[no-untyped-def]
            verdict = super().judge(kernel, incumbent_us=incumbent_us)
            return replace(verdict, status=Status.MISMATCH, timing=None, milestone=-1) if self.restarts else verdict

    first = run_search(archive, FakeJudge(), settings(200), models={NAME: Scripted(lambda n, _: fenced(n) if n < 3 else ModelError("no credit"))})
    assert first.confirmed and first.resumable and first.best
    faster = Scripted(lambda n, _: f"```cpp\n{kernel_text(100 + n % 50, extra=f'int m{n};')}```")
    live: list[State] = []
    last = resume(archive, Liar(), first.run_id, lambda _, now: live.append(now), {NAME: faster})
    behind = [m.kernel_id for m in live[-1].ranked(1000)].index(first.best.id)
    assert last.candidates == 200 and behind >= 20
    assert (last.best, last.verdict, last.confirmed) == (first.best, first.verdict, True)
    assert resume(archive, Liar(), first.run_id, models={NAME: faster}) == last  # read back


def test_a_run_goes_on_where_a_parent_of_what_is_asked_was_dropped(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider goes down while the best kernel is being mutated; the proof then finds that kernel wrong."""
    for name, value in (("_BACK_OFF_S", (0.01, 0.02)), ("_LOOK_S", 0.01), ("GIVE_UP_S", 0.1)):
        monkeypatch.setattr(run, name, value)
    once: list[str] = []

    class Once(FakeJudge):
        def judge(self, kernel, *, incumbent_us=None, patience=1.0):  # type: ignore[no-untyped-def]
            verdict = super().judge(kernel, incumbent_us=incumbent_us)
            if not self.restarts or once:
                return verdict
            once.append(kernel.id)
            return replace(verdict, status=Status.MISMATCH, timing=None, milestone=-1)

    down = Scripted(lambda n, _: fenced(n) if n < 8 else Unavailable("connection refused"))
    paused = run_search(archive, Once(), settings(40, policy="serial"), models={NAME: down})
    waiting = fold(archive.events(paused.run_id)).pending.values()
    assert paused.resumable and any(once[0] in p.proposal.parents for p in waiting), "the case that this is about"
    done = resume(archive, FakeJudge(), paused.run_id, models={NAME: Scripted(lambda n, _: fenced(100 + n))})
    assert done.candidates == 40 and done.confirmed and not done.resumable
