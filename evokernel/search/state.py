"""The state of a run: a fold over its events. The same events give the same state, live or read from the archive.

What it holds does not grow with the run: the best members and those that were measured twice, the latest failures, what was tried with any of them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ..archive.runs import CONDENSING, Answered, Asked, Called, Condensed, Confirmed, Ended, Judged, Logged, Started, Uncalled
from ..records import Placement, Proposal, Reply, Status, Verdict

TUNE, RECOMBINE, REPAIR = "tune", "recombine", "repair"
REPAIRS = 2  # in a row
DISCOUNT = 0.95
HISTORY = 200
KEPT = 256  # members: sixteen times those that a policy looks at, so that some may fall in rank and none is missed
FAILURES = 64  # that may be repaired: the message of each can be as long as a compiler is talkative


@dataclass
class Member:
    """A verified kernel of the run. `family`: the first kernel with the same text but for defaults. `order`: proposals judged when it came.
    `stale`: children in a row that were no better. `confirmed`: measured again in a fresh process."""

    kernel_id: str
    verdict: Verdict
    family: str
    order: int
    stale: int = 0
    confirmed: bool = False


@dataclass
class Pending:
    """A proposal that is not judged yet; without `reply` it is not answered either. Once a model was asked, the proposal holds the prompt's hash.
    `turn`: how often its operator was proposed before. `parents`: its parents of this run, whatever becomes of them meanwhile."""

    proposal: Proposal
    reply: Reply | None = None
    turn: int = 0
    parents: tuple[Member | Broken, ...] = ()


@dataclass(frozen=True)
class Broken:
    """A written kernel that failed and may be repaired. `depth`: repairs that led to it."""

    verdict: Verdict
    depth: int


@dataclass
class Spending:
    """Tokens and US dollars. `open`: by proposal, the reservations of calls whose cost is not known (yet, or ever: they were killed)."""

    tokens: int = 0
    usd: float = 0.0
    open: dict[int, list[tuple[int, float]]] = field(default_factory=dict)

    def settle(self, number: int, tokens: int, usd: float) -> None:
        """The last call of a proposal cost this; those before it that nobody heard of again stay spent in full."""
        *lost, _ = self.open.pop(number, None) or [(0, 0.0)]
        self.tokens += tokens + sum(t for t, _ in lost)
        self.usd += usd + sum(u for _, u in lost)

    @property
    def total(self) -> tuple[int, float]:
        """Never below the truth: all that is settled and all that is open."""
        held = [r for calls in self.open.values() for r in calls]
        return self.tokens + sum(t for t, _ in held), self.usd + sum(u for _, u in held)


@dataclass
class Arm:
    """What an operator has earned: gains in fitness over the parent and trials, both fading by DISCOUNT with each trial of any operator."""

    gain: float = 0.0
    trials: float = 0.0


@dataclass
class Written:
    """What came of models. `asked` counts proposals by operator; `broken`: kernels that failed and may be repaired, the latest last; `since_best`:
    proposals judged since the best kernel changed; `history`: the latest kernels with their parents, a line each."""

    asked: Counter[str] = field(default_factory=Counter)
    broken: dict[str, Broken] = field(default_factory=dict)
    arms: dict[str, Arm] = field(default_factory=dict)
    spending: Spending = field(default_factory=Spending)
    since_best: int = 0
    history: deque[tuple[frozenset[str], str]] = field(default_factory=lambda: deque(maxlen=HISTORY))


@dataclass
class State:
    """What a policy decides from. `apply` is the only thing that changes it, at a cost that does not grow with the run.

    `ranking` holds (minus fitness, order of arrival, kernel id) of the members, best first. `tried`: operator and parents of proposals, with the
    latest one's number. `measured` counts by operator the kernels that cost a measurement; `placements` counts all judged proposals. `tuned` holds
    the families whose space was searched.
    """

    started: Started
    proposals: int = 0
    pending: dict[int, Pending] = field(default_factory=dict)
    members: dict[str, Member] = field(default_factory=dict)
    ranking: list[tuple[float, int, str]] = field(default_factory=list)
    tried: dict[tuple[str, tuple[str, ...]], int] = field(default_factory=dict)
    tuned: set[str] = field(default_factory=set)
    measured: Counter[str] = field(default_factory=Counter)
    placements: Counter[Placement] = field(default_factory=Counter)
    written: Written = field(default_factory=Written)
    elapsed_s: float = 0.0
    ended: str | None = None

    @property
    def best(self) -> Member | None:
        """The member with the highest fitness; the earlier one of equals."""
        return self.members[self.ranking[0][2]] if self.ranking else None

    @property
    def candidates(self) -> int:
        """Kernels measured so far."""
        return self.measured.total()

    def ranked(self, count: int) -> list[Member]:
        """The best members, the fittest first."""
        return [self.members[kernel_id] for _, _, kernel_id in self.ranking[:count]]

    def history_of(self, parents: tuple[str, ...], most: int) -> tuple[str, ...]:
        """What was made of these kernels, or of any where there are none: the latest `most` lines, the oldest first."""
        lines = [line for ids, line in self.written.history if not parents or ids & set(parents)]
        return tuple(lines[-most:])

    def apply(self, logged: Logged) -> None:
        """Take in the next event."""
        self.elapsed_s = logged.elapsed_s
        match logged.event:
            case Asked(proposal):
                self.proposals = proposal.number + 1
                self.tried[proposal.operator, proposal.parents] = proposal.number
                parents = (self.members.get(p) or self.written.broken.get(p) for p in proposal.parents)
                self.pending[proposal.number] = Pending(proposal, None, self.written.asked[proposal.operator], tuple(p for p in parents if p))
                self.written.asked[proposal.operator] += 1
            case Called(number, tokens, usd, prompt_hash, model):
                self.written.spending.open.setdefault(number, []).append((tokens, usd))
                if number != CONDENSING:
                    proposal = self.pending[number].proposal
                    self.pending[number].proposal = replace(proposal, prompt_hash=prompt_hash, model=model or proposal.model)
            case Uncalled(number):
                self.written.spending.open[number].pop()
            case Answered(number, reply):
                self.pending[number].reply = reply
                self.written.spending.settle(number, reply.input_tokens + reply.output_tokens, reply.cost_usd)
            case Condensed(_, tokens, usd):
                self.written.spending.settle(CONDENSING, tokens, usd)
            case Judged():
                self._judged(logged.event)
            case Confirmed(verdict):
                self._confirmed(verdict)
            case Ended(reason):
                self.ended = reason

    def _judged(self, event: Judged) -> None:
        pending = self.pending.pop(event.number)
        proposal = pending.proposal
        self.placements[event.placement] += 1
        kernel_id, verdict = event.verdict.kernel_id, event.verdict
        if kernel_id and event.placement is not Placement.DUPLICATE:
            self.measured[proposal.operator] += 1
        before = self.best.kernel_id if self.best else None
        parents = [p for p in pending.parents if isinstance(p, Member)]
        self._reward(proposal.operator, parents, verdict)
        family = self._family(proposal.operator, parents) or kernel_id
        if proposal.model:
            speedup = verdict.speedup
            said = f"{speedup.low!r}x" if speedup else f"{verdict.status}: {verdict.message.partition(chr(10))[0][:160]}"
            note = pending.reply.note if pending.reply else ""
            self.written.history.append((frozenset((*proposal.parents, kernel_id)), f"{proposal.operator}: {note} -> {said}"))
        depth = max((p.depth + 1 for p in pending.parents if isinstance(p, Broken)), default=0)
        if proposal.operator == REPAIR and proposal.parents:
            self.written.broken.pop(proposal.parents[0], None)
        if proposal.model and kernel_id and verdict.status is not Status.VERIFIED and depth < REPAIRS and (REPAIR, (kernel_id,)) not in self.tried:
            self.written.broken[kernel_id] = Broken(verdict, depth)
            if len(self.written.broken) > FAILURES:
                del self.written.broken[next(iter(self.written.broken))]
        if verdict.status is Status.VERIFIED:
            if kernel_id not in self.members:
                self.members[kernel_id] = Member(kernel_id, verdict, family, self.placements.total())
                insort(self.ranking, self._place(kernel_id))
            elif verdict.fitness < self.members[kernel_id].verdict.fitness:
                self._replace(kernel_id, verdict)
        self.written.since_best = self.written.since_best + 1 if self.best and self.best.kernel_id == before else 0
        if self.placements.total() % KEPT == 0:  # now and then, so that a candidate costs the same however many there were
            self._forget()

    def _reward(self, operator: str, parents: Sequence[Member], child: Verdict) -> None:
        """What this trial earned: the gain in fitness over the best parent (over eager code for first drafts), nothing where there is none."""
        for arm in self.written.arms.values():
            arm.gain *= DISCOUNT
            arm.trials *= DISCOUNT
        gain = child.fitness - max((p.verdict.fitness for p in parents), default=0.0)
        arm = self.written.arms.setdefault(operator, Arm())
        arm.trials += 1.0
        arm.gain += min(gain, 1.0) if gain > 0 else 0.0
        for parent in parents if child.kernel_id else ():
            parent.stale = 0 if child.fitness > parent.verdict.fitness else parent.stale + 1

    def _family(self, operator: str, parents: Sequence[Member]) -> str | None:
        """Tuning and recombination change defaults only: what they make has the space of the text that they started from."""
        source = max(parents, key=lambda p: p.verdict.fitness, default=None) if operator in (TUNE, RECOMBINE) else None
        if source and operator == TUNE:
            self.tuned.add(source.family)
        return source.family if source else None

    def _forget(self) -> None:
        """Let go of all members but the best and the confirmed, and of what was tried long ago with kernels that are nothing to the run any more."""
        self.ranking = [place for n, place in enumerate(self.ranking) if n < KEPT or self.members[place[2]].confirmed]
        self.members = {kernel_id: self.members[kernel_id] for _, _, kernel_id in self.ranking}
        self.tuned &= {m.family for m in self.members.values()}
        known = {*self.members, *self.written.broken, *(s.kernel_id for s in self.started.stones)}
        self.tried = {what: n for what, n in self.tried.items() if n >= self.proposals - KEPT or known.issuperset(what[1])}

    def _confirmed(self, verdict: Verdict) -> None:
        self._replace(verdict.kernel_id, verdict)
        if verdict.kernel_id in self.members:
            self.members[verdict.kernel_id].confirmed = True

    def _replace(self, kernel_id: str, verdict: Verdict) -> None:
        """Another verdict for a member; one that is not verified any more ends its membership."""
        del self.ranking[bisect_left(self.ranking, self._place(kernel_id))]
        if verdict.status is not Status.VERIFIED:
            del self.members[kernel_id]
            return
        self.members[kernel_id].verdict = verdict
        insort(self.ranking, self._place(kernel_id))

    def _place(self, kernel_id: str) -> tuple[float, int, str]:
        member = self.members[kernel_id]
        return (-member.verdict.fitness, member.order, kernel_id)


def fold(events: Iterable[Logged]) -> State:
    """The state after these events of one run.

    Raises:
        ValueError: the first one is not Started.
    """
    rest = iter(events)
    first = next(rest, None)
    if first is None or not isinstance(first.event, Started):
        raise ValueError("a run's first event is Started")
    state = State(first.event)
    for logged in rest:
        state.apply(logged)
    return state
