"""The loop: asks the policy, has an operator or a model answer, has the judge judge, and stores each step before the next.

A run lives in the archive as rows that only move forward: asked, answered, judged. Killed at any moment, it goes on where it was: what was answered
is judged, what was only asked is asked again. One process at a time holds the run's lease, and in it one thread (this one) decides and writes: models
are called in threads of their own, the judge has one, and all they do is send their results back.

What fails on the candidate's side is a verdict. What fails on ours is stored as an event and then raised as what it is; the run can be resumed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.pool import ThreadPool
from queue import Empty, SimpleQueue
from types import TracebackType

from .. import operators
from ..archive.runs import CONDENSING, Answered, Asked, Called, Ended, Event, Failed, Logged, Paused, RunLog, RunSettings, Started, StoneRef, Uncalled
from ..archive.stones import LATE
from ..archive.store import Archive
from ..errors import ArchiveError, ModelError, UsageError
from ..judge.lane import Judge
from ..kernelfile import make_kernel
from ..models import CallSettings, Completion, Model, ModelSpec, Prompt, Unavailable
from ..models.money import Reservation, limit_reached, prices_for, reserve, settle
from ..models.prices import parse_price
from ..operators import Answering, OperatorContext
from ..records import Admission, Attempt, Device, Environment, Kernel, Proposal, Reply, Task, Verdict
from . import condensing, policy
from .asking import context_of, kernel_of, prompt_of, reply_of
from .policy import START, Stop
from .state import Member, Pending, State, fold

PROOF_PATIENCE = 4.0  # a number that is announced deserves a narrow interval
PROOFS = 3  # re-measurements at the end, while the best so far is not confirmed
CALLS = 4  # model calls under way
WAITING = 4  # written kernels that wait for the judge; more are not asked for
GRACE_S = 2.0  # for calls under way at the end, so that what they cost is known
GIVE_UP_S = 600.0  # after which a provider that does not answer ends the session
_BACK_OFF_S = (1.0, 60.0)  # first and longest pause
_LOOK_S = 0.5  # how often pauses and limits are looked at while nothing happens

Watcher = Callable[[Logged, State], None]


@dataclass(frozen=True)
class RunResult:
    """How a run, or a session of it, ended.

    `confirmed`: the best kernel was measured again in a fresh process and `verdict` is the lower of the two; without that it is no result to
    announce. `resumable`: the run is not over. `placements` counts all proposals, `candidates` the kernels that cost a measurement.
    `stopped`: models could not be used any more. `tokens` and `cost_usd`: what models used, never below the truth; the cost
    holds only those whose price is known.
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
    tokens: int = 0
    cost_usd: float = 0.0
    stopped: bool = False


def run_search(
    archive: Archive, judge: Judge, settings: RunSettings, on_event: Watcher | None = None, models: Mapping[str, Model] | None = None
) -> RunResult:
    """Search for a fast kernel of the judge's task until a limit is reached or nothing is left to try.

    `models`: by id, those of the settings. `on_event` sees every event after it is stored, with the state that it led to. KeyboardInterrupt ends the
    session with a resumable result.

    Raises:
        UsageError: no such policy, a model that was not given, a budget in USD without a price.
        TaskError, JudgeError, ArchiveError: as they came; the run is stored up to there.
    """
    policy.get(settings.policy, models=bool(settings.models))
    admission = judge.admit()
    with _Session(archive, judge, new_run(archive, admission.task, admission.device, settings), on_event, models) as session:
        return session.drive(admission)


def new_run(archive: Archive, task: Task, device: Device, settings: RunSettings) -> RunLog:
    """The first event of a run, with the stepping stones and lessons that the archive has for it now; release the log at the end."""
    archive.add_task(task)
    stones = archive.stones(task, settings.target, device=device.name)
    late = archive.usefulness([s.kernel.id for s in stones], LATE)
    refs = tuple(StoneRef(s.kernel.id, s.task_id, late[s.kernel.id]) for s in stones)
    lessons = archive.advice(task.id, settings.target, [s.task_id for s in stones]) if settings.models else ()
    return archive.start_run(Started(task.id, device, settings, refs, task.path, lessons))


def resume(
    archive: Archive, judge: Judge, run_id: str, on_event: Watcher | None = None, models: Mapping[str, Model] | None = None
) -> RunResult:
    """Go on with a run. One that is over gives its result again, without the judge.

    Raises:
        UsageError: no such run, or the judge's task or device is not the run's.
        TaskError, JudgeError, ArchiveError: as for `run_search`, and where a live process drives the run.
    """
    with _Session(archive, judge, archive.acquire_run(run_id), on_event, models) as session:
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

    def __init__(self, archive: Archive, judge: Judge, log: RunLog, on_event: Watcher | None, models: Mapping[str, Model] | None) -> None:
        self._archive, self._judge, self._log, self._on_event, self._models = archive, judge, log, on_event, models or {}
        self.state = fold(log.events())
        self._began_s = time.monotonic() - self.state.elapsed_s
        self._environment: Environment | None = None  # of this session's latest verdict: stored ones from elsewhere do not count
        settings = self.state.started.settings
        self._settings = settings
        if missing := [m for m in settings.models if ModelSpec.parse(m).id not in self._models]:
            raise UsageError(f"the run asks {', '.join(missing)}, which is not open here")
        self._prices = prices_for([ModelSpec.parse(m) for m in settings.models], dict(parse_price(p) for p in settings.prices), settings.budget_usd)
        self._calls = CallSettings(effort=settings.effort)
        self._results: SimpleQueue[tuple[int, object]] = SimpleQueue()
        self._under_way: dict[int, ThreadPool] = {}
        self._outages = {m: _Outage() for m in self._prices}
        self._events = 0

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
            # Daemon threads: after Ctrl-C nothing waits for a model's answer, and the judge is ended by its lane.
            with ThreadPool(CALLS) as self._calling, ThreadPool(1) as self._judging:
                end = self._advance(admission)
            self._prove(admission)
            if not isinstance(end, _CutShort):
                self._condense(admission)
            self._append(Paused() if isinstance(end, _CutShort) else Ended(end.reason))
        except KeyboardInterrupt:
            self._append(Paused())
            return self.result("interrupted")
        return replace(self.result(end.reason), stopped=isinstance(end, _CutShort))

    def _advance(self, admission: Admission) -> Stop:
        """Begin what can be begun and take results as they come, until there is a reason to stop and nothing answered is left to judge."""
        end: Stop | None = None
        grace_s = 0.0
        while True:
            before = self._events
            for number, pending in list(self.state.pending.items()):
                if number not in self._under_way:
                    end = self._begin(pending, admission, new_calls=end is None) or end
            if self._events != before:
                continue
            if end is None and self._has_room():
                decision = policy.decide(self.state)
                if isinstance(decision, Proposal):
                    self._append(Asked(decision))
                    continue
                end = decision if isinstance(decision, Stop) else None
            if end and self._judging not in self._under_way.values() and not any(p.reply for p in self.state.pending.values()):
                grace_s = grace_s or time.monotonic() + GRACE_S
                if not self._under_way or time.monotonic() > grace_s:
                    return end
            end = self._take(admission) or end

    def _has_room(self) -> bool:
        """Without models one thing is done after another, so that the same seed makes the same run."""
        pending = self.state.pending.values()
        if not self._settings.models:
            return not pending
        answered = sum(p.reply is not None for p in pending)
        return len(pending) - answered < CALLS and answered < WAITING

    def _begin(self, pending: Pending, admission: Admission, *, new_calls: bool) -> Stop | None:
        """Start the next step of a proposal, or leave it for later; a reason to end where its call would go over the budget."""
        proposal = pending.proposal
        if pending.reply is not None:
            self._judge_reply(proposal, pending.reply, admission)
        elif proposal.operator == START:
            self._append(Answered(proposal.number, storable(Reply(self._settings.start, "the start kernel"))))
        elif not new_calls or (proposal.model and not self._reachable(proposal.model)):
            return None
        elif (context := self._context(proposal, admission)) is None:
            self._append(Answered(proposal.number, Reply(None, f"kernel {proposal.parents[0]} may no longer seed a search")))
        elif proposal.model is None:
            self._submit(self._judging, proposal.number, partial(self._screened, operators.get(proposal.operator).run(context)))
        else:
            prompt, model = prompt_of(context, proposal), self._reachable(proposal.model) or proposal.model
            if reason := self._too_dear(proposal.number, prompt, model, self._calls):
                return None if self._calling in self._under_way.values() else Stop(reason)  # what those leave over may be enough
            self._submit(self._calling, proposal.number, partial(self._models[model].complete, prompt, self._calls))
        return None

    def _too_dear(self, number: int, prompt: Prompt, model: str, calls: CallSettings) -> str | None:
        """Why a call must not begin: it could go over the budget. Where it may, it is noted as begun, at the most that it can cost."""
        most = reserve(prompt, calls, self._prices[model])
        spent, settings = Reservation(*self.state.written.spending.total), self._settings
        reason = limit_reached(spent, most, settings.budget_usd, settings.budget_tokens)
        if not reason:
            self._append(Called(number, most.tokens, most.usd, prompt.hash, model))
        return reason

    def _context(self, proposal: Proposal, admission: Admission) -> OperatorContext | None:
        return context_of(self.state, self._archive, admission.task, admission.device, proposal)

    def _reachable(self, model: str) -> str | None:
        """The model, or while it does not answer another one of the run; None while none does."""
        return next((m for m in (model, *self._models) if self._outages[m].over()), None)

    def _submit(self, pool: ThreadPool, number: int, work: Callable[[], object]) -> None:
        self._under_way[number] = pool
        pool.apply_async(work, callback=lambda value: self._results.put((number, value)), error_callback=lambda e: self._results.put((number, e)))

    def _take(self, admission: Admission) -> Stop | None:
        """Wait for one result and store what it means; a reason to end where the models cannot be used any more."""
        try:
            number, value = self._results.get(timeout=_LOOK_S)
        except Empty:
            return None
        del self._under_way[number]
        pending = self.state.pending[number]
        match value:
            case Verdict():
                self._record(pending, make_kernel(pending.reply.text or "", self._settings.target) if pending.reply else None, value, admission)
                self._environment = value.environment
            case Reply():
                self._append(Answered(number, storable(value)))
            case Completion():
                self._outages[pending.proposal.model or ""] = _Outage()
                context = self._context(pending.proposal, admission)
                cost_usd = settle(value, self._prices[pending.proposal.model or ""]).usd
                reply = reply_of(value, context, cost_usd) if context else Reply(None, "its stone is gone", cost_usd=cost_usd)
                self._append(Answered(number, storable(reply)))
            case Unavailable():
                if not value.consumed:
                    self._append(Uncalled(number))
                self._outages[pending.proposal.model or ""].note(value.retry_after_s)
                if all(o.lost() for o in self._outages.values()):
                    return _CutShort(f"{pending.proposal.model} has not answered for {GIVE_UP_S:.0f} s: {value}")
            case ModelError():
                self._append(Uncalled(number))
                self._append(Failed(type(value).__name__, str(value)))
                return _CutShort(str(value))
            case BaseException():
                raise value
        return None

    def result(self, reason: str) -> RunResult:
        """The state as a result: the best confirmed kernel where there is one."""
        state = self.state
        best = next((m for m in state.ranked(len(state.members)) if m.confirmed), state.best)
        return RunResult(
            self._log.run_id, state.started.task_id, self._archive.find(best.kernel_id) if best else None, best.verdict if best else None,
            bool(best and best.confirmed), state.candidates, {p.value: n for p, n in state.placements.items()}, reason, state.ended is None,
            *state.written.spending.total,
        )  # fmt: skip

    def _screened(self, answering: Answering) -> Reply:
        try:
            batch = next(answering)
            while True:
                batch = answering.send(self._judge.screen(batch.kernel, batch.configs))
        except StopIteration as done:
            reply: Reply = done.value
            return reply

    def _judge_reply(self, proposal: Proposal, reply: Reply, admission: Admission) -> None:
        """Have an answer judged, or record at once what needs no judging: no kernel, no file, or a verdict that is known."""
        pending = self.state.pending[proposal.number]
        kernel = kernel_of(reply, self._settings.target, admission.device)
        if isinstance(kernel, Verdict):
            return self._record(pending, None, kernel, admission)
        known = self._archive.known(kernel.id, admission.task.id, self._environment) if self._environment else None
        if known:
            return self._record(pending, kernel, known, admission)
        best = self.state.best
        incumbent_us = best.verdict.time_us if best else None
        self._judge.ahead(kernel)
        return self._submit(self._judging, proposal.number, partial(self._judge.judge, kernel, incumbent_us=incumbent_us))

    def _record(self, pending: Pending, kernel: Kernel | None, verdict: Verdict, admission: Admission) -> None:
        assert pending.reply is not None
        attempt = Attempt(pending.proposal, pending.reply, kernel, verdict)
        self._see(self._archive.record(attempt, admission.task, self._log, self._elapsed_s()))

    def _prove(self, admission: Admission) -> None:
        """Measure the best again, and whatever is best after that: a lucky measurement must not be announced."""
        for _ in range(PROOFS):
            best: Member | None = self.state.best
            if best is None or best.confirmed:
                return
            self._judge.restart()
            verdict = self._judge.judge(self._archive.find(best.kernel_id), patience=PROOF_PATIENCE)
            self._see(self._archive.confirm(verdict, admission.task, self._log, self._elapsed_s()))

    def _condense(self, admission: Admission) -> None:
        """Have a model put the lessons of the task, where they are many, into few sentences. Where that comes to nothing, it has cost its price."""
        lessons = condensing.due(self._archive.lessons(admission.task.id, self._settings.target)) if self._models else []
        model = next((m for m, outage in self._outages.items() if outage.over()), None)
        if not lessons or not model:
            return
        prompt = condensing.prompt_of(lessons)
        if self._too_dear(CONDENSING, prompt, model, condensing.CALL):
            return
        try:
            with ThreadPool(1) as calling:  # a provider may not be called where an event loop runs, as in a notebook
                answer = calling.apply(self._models[model].complete, (prompt, condensing.CALL))
        except (ModelError, Unavailable) as error:
            if not (isinstance(error, Unavailable) and error.consumed):
                self._append(Uncalled(CONDENSING))
            return
        cost = settle(answer, self._prices[model])
        made = condensing.read(answer, lessons)
        self._see(self._archive.condense(made, cost.tokens, cost.usd, self._log, self._elapsed_s()))

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def _append(self, event: Event) -> None:
        self._see(self._log.append(event, self._elapsed_s()))

    def _see(self, logged: Logged) -> None:
        self.state.apply(logged)
        self._events += 1
        if self._on_event:
            self._on_event(logged, self.state)


class _CutShort(Stop):
    """The end of the session, not of the run."""


class _Outage:
    """Since when the models have not answered, and when they may be asked again."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._until_s = 0.0
        self._pause_s = _BACK_OFF_S[0]

    def note(self, retry_after_s: float) -> None:
        """One more call came to nothing."""
        now = time.monotonic()
        self._since_s = self._since_s if self._since_s is not None else now
        if now >= self._until_s:  # calls that were under way together count once
            self._until_s = now + max(self._pause_s, retry_after_s)
            self._pause_s = min(2 * self._pause_s, _BACK_OFF_S[1])

    def lost(self) -> bool:
        """Whether it is time to give up."""
        return self._since_s is not None and time.monotonic() - self._since_s > GIVE_UP_S

    def over(self) -> bool:
        return time.monotonic() >= self._until_s


def storable(reply: Reply) -> Reply:
    """The reply, without what is not valid Unicode: the archive takes nothing else, and a broken answer is the candidate's failure."""
    note = reply.note.encode("utf-8", "replace").decode()
    if reply.text is not None and reply.text.encode("utf-8", "replace").decode() != reply.text:
        return replace(reply, text=None, note=f"the answer is not valid Unicode (half of a surrogate pair); {note}")
    return replace(reply, note=note)
