"""The loop: asks the policy, has an operator answer, has the judge judge, and stores each step before the next.

A run lives in the archive as rows that only move forward: asked, answered, judged. Killed at any moment, it goes on where it was: what was answered
is judged, what was only asked is asked again. One process at a time holds the run's lease.

What fails on the candidate's side is a verdict. What fails on ours is stored as an event and then raised as what it is; the run can be resumed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType

from .. import operators
from ..archive.runs import Answered, Asked, Ended, Failed, Logged, Paused, RunLog, RunSettings, Started, StoneRef
from ..archive.store import Archive
from ..errors import ArchiveError, UsageError
from ..judge.lane import Judge
from ..kernelfile import KernelFileError, make_kernel
from ..operators import Answering, OperatorContext, Parent
from ..records import Admission, Attempt, Environment, Kernel, Proposal, Reply, Status, Verdict, unjudged
from . import policy
from .policy import START, TRANSPLANT, Stop
from .state import Member, Pending, State, fold

PROOF_PATIENCE = 4.0  # a number that is announced deserves a narrow interval
PROOFS = 3  # re-measurements at the end, while the best so far is not confirmed

Watcher = Callable[[Logged, State], None]


@dataclass(frozen=True)
class RunResult:
    """How a run, or a session of it, ended.

    `confirmed`: the best kernel was measured again in a fresh process and `verdict` is the lower of the two; without that it is no result to
    announce. `resumable`: the run is not over. `placements` counts all proposals, `candidates` the kernels that cost a measurement.
    """

    run_id: str
    task_id: str
    best: Kernel | None
    verdict: Verdict | None
    confirmed: bool
    candidates: int
    placements: dict[str, int]
    reason: str
    resumable: bool


def run_search(archive: Archive, judge: Judge, settings: RunSettings, on_event: Watcher | None = None) -> RunResult:
    """Search for a fast kernel of the judge's task until a limit is reached or nothing is left to try.

    `on_event` sees every event after it is stored, with the state that it led to. KeyboardInterrupt ends the session with a resumable result.

    Raises:
        UsageError: no such policy.
        TaskError, JudgeError, ArchiveError: as they came; the run is stored up to there.
    """
    policy.get(settings.policy)
    admission = judge.admit()
    archive.add_task(admission.task)
    stones = archive.stones(admission.task, settings.target)
    refs = tuple(StoneRef(s.kernel.id, s.task_id) for s in stones)
    log = archive.start_run(Started(admission.task.id, admission.device, settings, refs, admission.task.path))
    with _Session(archive, judge, log, on_event) as session:
        return session.drive(admission)


def resume(archive: Archive, judge: Judge, run_id: str, on_event: Watcher | None = None) -> RunResult:
    """Go on with a run. One that is over gives its result again, without the judge.

    Raises:
        UsageError: no such run, or the judge's task or device is not the run's.
        TaskError, JudgeError, ArchiveError: as for `run_search`, and where a live process drives the run.
    """
    with _Session(archive, judge, archive.acquire_run(run_id), on_event) as session:
        if session.state.ended is not None:
            return session.result(session.state.ended)
        admission = judge.admit()
        _same_place(session.state.started, admission)
        return session.drive(admission)


def _same_place(started: Started, admission: Admission) -> None:
    if admission.task.id != started.task_id:
        here = f"{admission.task.id} ({admission.task.path})"
        raise UsageError(f"the run was started for task {started.task_id}, this file is now task {here}; start a new run")
    if (admission.device.name, admission.device.target) != (started.device.name, started.device.target):
        raise UsageError(f"the run was started on {started.device.name}, this is {admission.device.name}; start a new run")


class _Session:
    """One process's work on a run, from taking the lease to giving it back."""

    def __init__(self, archive: Archive, judge: Judge, log: RunLog, on_event: Watcher | None) -> None:
        self._archive, self._judge, self._log, self._on_event = archive, judge, log, on_event
        self.state = fold(log.events())
        self._began_s = time.monotonic() - self.state.elapsed_s
        self._environment: Environment | None = None  # of this session's latest verdict: stored ones from elsewhere do not count

    def __enter__(self) -> _Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # An error on its way out must not be hidden by a second one from an archive that fails.
        with contextlib.suppress(ArchiveError) if error else contextlib.nullcontext():
            if kind and error and not isinstance(error, KeyboardInterrupt):
                self._append(Failed(kind.__name__, str(error)))
        with contextlib.suppress(ArchiveError) if error else contextlib.nullcontext():
            self._log.release()

    def drive(self, admission: Admission) -> RunResult:
        """Move rows forward until the policy stops, then prove the best."""
        try:
            while not isinstance(decision := self._next(), Stop):
                if isinstance(decision, Proposal):
                    self._append(Asked(decision))
                elif decision.reply is None:
                    self._append(Answered(decision.proposal.number, _storable(self._answer(decision.proposal, admission))))
                else:
                    self._see(self._judged(decision.proposal, decision.reply, admission))
            self._prove(admission)
            self._append(Ended(decision.reason))
        except KeyboardInterrupt:
            self._append(Paused())
            return self.result("interrupted")
        return self.result(decision.reason)

    def result(self, reason: str) -> RunResult:
        """The state as a result: the best confirmed kernel where there is one."""
        state = self.state
        best = next((m for m in state.ranked(len(state.members)) if m.confirmed), state.best)
        return RunResult(
            self._log.run_id, state.started.task_id, self._archive.find(best.kernel_id) if best else None, best.verdict if best else None,
            bool(best and best.confirmed), state.candidates, {p.value: n for p, n in state.placements.items()}, reason, state.ended is None,
        )  # fmt: skip

    def _next(self) -> Pending | Proposal | Stop:
        return next(iter(self.state.pending.values()), None) or policy.decide(self.state)

    def _answer(self, proposal: Proposal, admission: Admission) -> Reply:
        state = self.state
        if proposal.operator == START:
            return Reply(state.started.settings.start, "the start kernel")
        refs = [r for r in state.started.stones if proposal.operator == TRANSPLANT and r.kernel_id in proposal.parents]
        stones = [self._archive.stone(r.kernel_id, r.task_id) for r in refs]
        if None in stones:
            return Reply(None, f"kernel {proposal.parents[0]} may no longer seed a search")
        members = [state.members[p] for p in proposal.parents if p in state.members]
        context = OperatorContext(
            admission.task, admission.device, seed=state.started.settings.seed * 1_000_003 + proposal.number,
            parents=tuple(Parent(self._archive.find(m.kernel_id), m.verdict) for m in members), stones=tuple(s for s in stones if s),
        )  # fmt: skip
        return self._screened(operators.get(proposal.operator).run(context))

    def _screened(self, answering: Answering) -> Reply:
        try:
            batch = next(answering)
            while True:
                batch = answering.send(self._judge.screen(batch.kernel, batch.configs))
        except StopIteration as done:
            reply: Reply = done.value
            return reply

    def _judged(self, proposal: Proposal, reply: Reply, admission: Admission) -> Logged:
        task, target = admission.task, self.state.started.settings.target
        kernel, verdict = None, unjudged(admission.device, Status.NO_KERNEL, reply.note)
        if reply.text is not None:
            try:
                kernel = make_kernel(reply.text, target)
                verdict = self._measured(kernel, task.id)
            except KernelFileError as error:
                verdict = unjudged(admission.device, Status.INVALID, str(error))
        return self._archive.record(Attempt(proposal, reply, kernel, verdict), task, self._log, self._elapsed_s())

    def _measured(self, kernel: Kernel, task_id: str) -> Verdict:
        stored = self._archive.known(kernel.id, task_id, self._environment) if self._environment else None
        if stored:
            return stored
        best = self.state.best
        verdict = self._judge.judge(kernel, incumbent_us=best.verdict.time_us if best else None)
        self._environment = verdict.environment
        return verdict

    def _prove(self, admission: Admission) -> None:
        """Measure the best again, and whatever is best after that: a lucky measurement must not be announced."""
        for _ in range(PROOFS):
            best: Member | None = self.state.best
            if best is None or best.confirmed:
                return
            self._judge.restart()
            verdict = self._judge.judge(self._archive.find(best.kernel_id), patience=PROOF_PATIENCE)
            self._see(self._archive.confirm(verdict, admission.task, self._log, self._elapsed_s()))

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def _append(self, event: Asked | Answered | Failed | Paused | Ended) -> None:
        self._see(self._log.append(event, self._elapsed_s()))

    def _see(self, logged: Logged) -> None:
        self.state.apply(logged)
        if self._on_event:
            self._on_event(logged, self.state)


def _storable(reply: Reply) -> Reply:
    """The reply, without what is not valid Unicode: the archive takes nothing else, and a broken answer is the candidate's failure."""
    note = reply.note.encode("utf-8", "replace").decode()
    if reply.text is not None and reply.text.encode("utf-8", "replace").decode() != reply.text:
        return replace(reply, text=None, note=f"the answer is not valid Unicode (half of a surrogate pair); {note}")
    return replace(reply, note=note)
