"""A run by post: prompts into a file, answers and verdicts out of files. Steps done live and steps done so mix in one run.

    asked = ask(archive, run_id, 4)                    # prompts for whoever is the model
    told = tell(archive, run_id, answers)              # its answers; then candidates(archive, run_id) for `evokernel judge --batch`
    told = tell(archive, run_id, outcomes)             # and what the judge said of them

What a line is about is in it: the run, the proposal's number, for verdicts the very text that was judged. Nothing is taken twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from .. import operators
from ..archive.runs import Answered, Asked, Called, Event, RunLog, RunSettings
from ..archive.store import Archive
from ..errors import UsageError
from ..kernelfile import make_kernel
from ..models import Completion
from ..records import PROTOCOL, Attempt, BatchCandidate, BatchOutcome, Device, Kernel, Proposal, Reply, Task, TaskFile, Verdict
from . import policy
from .asking import context_of, kernel_of, prompt_of, reply_of
from .policy import START
from .run import new_run, storable
from .state import Pending, State, fold


@dataclass(frozen=True)
class Question:
    """One line of a prompts file. `prefix` and `rest` make the prompt, in this order; an answer names `run` and `number`."""

    run: str
    number: int
    operator: str
    prompt_hash: str
    prefix: str
    rest: str


@dataclass(frozen=True)
class Answer:
    """One line of an answers file. `text` is all that the model said; `stop` and the token counts where they are known."""

    number: int
    text: str
    run: str = ""
    stop: str = "end"
    input_tokens: int = 0
    output_tokens: int = 0
    prompt_hash: str = ""

    def __post_init__(self) -> None:
        Completion(self.text, self.stop, self.input_tokens, output_tokens=self.output_tokens)  # refuses what are no numbers of tokens


@dataclass
class Told:
    """What telling did: answers and verdicts taken, and a line for each that was not, with the reason."""

    answers: int = 0
    without_kernel: int = 0
    verdicts: int = 0
    passed_over: list[str] = field(default_factory=list)


def begin(archive: Archive, task: Task, device: Device, settings: RunSettings) -> str:
    """A new run without a judge, for a device that may be elsewhere; its id."""
    policy.get(settings.policy, models=bool(settings.models))
    log = new_run(archive, task, device, settings)
    log.release()
    return log.run_id


def ask(archive: Archive, run_id: str, count: int) -> list[Question]:
    """Up to `count` prompts that wait for an answer: those asked before first, then new decisions of the run's policy.

    Fewer come back where the policy has to wait for verdicts, or for steps that need the judge (tuning): `evokernel resume` takes those.

    Raises:
        UsageError: no such run, it has no models, or it is over.
        ArchiveError: a live process drives it.
    """
    with _opened(archive, run_id) as desk:
        if not desk.state.started.settings.models:
            raise UsageError(f"run {run_id} asks no models; start one with --model file/NAME")
        found: dict[int, Question] = {}
        while len(found) < count:
            waiting = next((p for n, p in desk.state.pending.items() if p.proposal.model and p.reply is None and n not in found), None)
            if waiting is None:
                decision = policy.decide(desk.state)
                if not isinstance(decision, Proposal):
                    break
                desk.append(Asked(decision))
                if not decision.model:
                    desk.answer_at_once(decision)
                continue
            question = desk.question(waiting)
            if question:
                found[question.number] = question
        return list(found.values())


def tell(archive: Archive, run_id: str, lines: Iterable[Answer | BatchOutcome]) -> Told:
    """Take answers, and verdicts of answers.

    Raises:
        UsageError: no such run, or a line is about another one.
        ArchiveError: a live process drives it.
    """
    told = Told()
    with _opened(archive, run_id) as desk:
        for line in lines:
            reason = desk.answered(line, told) if isinstance(line, Answer) else desk.judged(line, told)
            if reason:
                told.passed_over.append(reason)
    return told


def candidates(archive: Archive, run_id: str) -> list[BatchCandidate]:
    """The answers that wait for a verdict, for `evokernel judge --batch`; each one's id is its proposal's number."""
    with _opened(archive, run_id) as desk:
        return [desk.candidate(p) for p in desk.state.pending.values() if p.reply and p.reply.text is not None]


@contextmanager
def _opened(archive: Archive, run_id: str) -> Iterator[_Desk]:
    log = archive.acquire_run(run_id)
    try:
        desk = _Desk(archive, log)
        if desk.state.ended is not None:
            raise UsageError(f"run {run_id} is over: {desk.state.ended}")
        yield desk
    finally:
        log.release()


class _Desk:
    """A run whose lease is held, and its next events."""

    def __init__(self, archive: Archive, log: RunLog) -> None:
        self._archive, self._log = archive, log
        self.state: State = fold(log.events())
        self._task = archive.task(self.state.started.task_id)

    def append(self, event: Event) -> None:
        self.state.apply(self._log.append(event, self.state.elapsed_s))

    def question(self, pending: Pending) -> Question | None:
        """The prompt of a proposal; None where its stone is gone, which answers it."""
        proposal = pending.proposal
        context = context_of(self.state, self._archive, self._task, self.state.started.device, proposal)
        if context is None:
            self.append(Answered(proposal.number, Reply(None, f"kernel {proposal.parents[0]} may no longer seed a search")))
            self._settle(pending)
            return None
        prompt = prompt_of(context, proposal)
        self._by_file(proposal.number, prompt.hash)
        return Question(self._log.run_id, proposal.number, proposal.operator, prompt.hash, prompt.prefix, prompt.rest)

    def answer_at_once(self, proposal: Proposal) -> None:
        """Answer what needs neither a model nor the judge: the start kernel, stepping stones as they are, recombination."""
        reply: Reply | None = Reply(self.state.started.settings.start, "the start kernel") if proposal.operator == START else None
        if reply is None and (context := context_of(self.state, self._archive, self._task, self.state.started.device, proposal)):
            try:
                next(operators.get(proposal.operator).run(context))
            except StopIteration as done:
                reply = done.value
        if reply:
            self.append(Answered(proposal.number, storable(reply)))
            self._settle(self.state.pending[proposal.number])

    def answered(self, answer: Answer, told: Told) -> str:
        """Take one answer; why not, "" when it was taken."""
        if answer.run and answer.run != self._log.run_id:
            raise UsageError(f"an answer is for run {answer.run}, this is run {self._log.run_id}")
        pending = self.state.pending.get(answer.number)
        if pending is None or pending.reply is not None or pending.proposal.model is None:
            return f"number {answer.number} waits for no answer"
        if answer.prompt_hash and answer.prompt_hash != pending.proposal.prompt_hash:
            return f"the answer to number {answer.number} is to another prompt"
        context = context_of(self.state, self._archive, self._task, self.state.started.device, pending.proposal)
        self._by_file(answer.number, pending.proposal.prompt_hash)
        completion = Completion(answer.text, answer.stop, answer.input_tokens, output_tokens=answer.output_tokens)
        reply = reply_of(completion, context) if context else Reply(None, "its stone is gone")
        self.append(Answered(answer.number, storable(reply)))
        told.answers += 1
        told.without_kernel += self._settle(pending)
        return ""

    def _by_file(self, number: int, prompt_hash: str) -> None:
        """What is asked by file costs nothing here; a live call for the same proposal that was killed stays spent."""
        if self.state.written.spending.open.get(number, [])[-1:] != [(0, 0.0)]:
            self.append(Called(number, 0, 0.0, prompt_hash))

    def judged(self, outcome: BatchOutcome, told: Told) -> str:
        """Take one outcome of a batch; why not, "" when it was taken."""
        pending = self.state.pending.get(outcome.id) if isinstance(outcome.id, int) else None
        if pending is None or pending.reply is None or pending.reply.text is None or self.candidate(pending).key != outcome.candidate:
            return f"no answer of this run waits for the verdict on candidate {outcome.candidate} (id {outcome.id!r})"
        if outcome.verdict is None:
            return f"number {outcome.id} was not judged: {outcome.error}: {outcome.message}"
        here, there = self.state.started.device, outcome.verdict.environment
        if (here.name, here.architecture) != (there.device, there.architecture):
            return f"number {outcome.id} was judged on {there.device} ({there.architecture}), the run is for {here.name} ({here.architecture})"
        if outcome.task_id and outcome.task_id != self._task.id:
            return f"number {outcome.id} was judged for task {outcome.task_id}, the run is for {self._task.id}"
        verdict = replace(outcome.verdict, environment=replace(there, forced=there.forced or outcome.forced))
        self._record(pending, make_kernel(pending.reply.text, self.state.started.settings.target), verdict)
        told.verdicts += 1
        return ""

    def candidate(self, pending: Pending) -> BatchCandidate:
        assert pending.reply is not None and pending.reply.text is not None
        target = self.state.started.settings.target
        return BatchCandidate(PROTOCOL, TaskFile(self._task.name, self._task.source), target, pending.reply.text, pending.proposal.number)

    def _settle(self, pending: Pending) -> bool:
        """Record an answer that holds no kernel file; whether it is one."""
        reply = self.state.pending[pending.proposal.number].reply
        assert reply is not None
        found = kernel_of(reply, self.state.started.settings.target, self.state.started.device)
        if isinstance(found, Verdict):
            self._record(self.state.pending[pending.proposal.number], None, found)
        return isinstance(found, Verdict)

    def _record(self, pending: Pending, kernel: Kernel | None, verdict: Verdict) -> None:
        assert pending.reply is not None
        attempt = Attempt(pending.proposal, pending.reply, kernel, verdict)
        self.state.apply(self._archive.record(attempt, self._task, self._log, self.state.elapsed_s))
