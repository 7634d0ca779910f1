"""The state of a run: a fold over its events. The same events give the same state, live or read from the archive."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ..archive.runs import CONDENSING, Answered, Asked, Called, Condensed, Confirmed, Ended, Judged, Logged, Started, Uncalled
from ..records import Placement, Proposal, Reply, Status, Verdict

TUNE, RECOMBINE, REPAIR = "tune", "recombine", "repair"
REPAIRS = 2  # in a row
DISCOUNT = 0.95
HISTORY = 200


@dataclass
class Member:
    """A verified kernel of the run. `stale`: children in a row that were no better. `confirmed`: measured again in a fresh process."""

    kernel_id: str
    verdict: Verdict
    stale: int = 0
    confirmed: bool = False


@dataclass
class Pending:
    """A proposal that is not judged yet; without `reply` it is not answered either. Once a model was asked, the proposal holds the prompt's hash.
    `turn`: how often its operator was proposed before."""

    proposal: Proposal
    reply: Reply | None = None
    turn: int = 0


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

    `ranking` holds (minus fitness, order of arrival, kernel id), best first. `tried`: operator and parents of every proposal. `measured` counts
    by operator the kernels that cost a measurement; `placements` counts all judged proposals. `families` leads from a kernel to the first one with
    the same text but for defaults; `tuned` holds the families whose space was searched.
    """

    started: Started
    proposals: int = 0
    pending: dict[int, Pending] = field(default_factory=dict)
    members: dict[str, Member] = field(default_factory=dict)
    ranking: list[tuple[float, int, str]] = field(default_factory=list)
    tried: set[tuple[str, tuple[str, ...]]] = field(default_factory=set)
    families: dict[str, str] = field(default_factory=dict)
    tuned: set[str] = field(default_factory=set)
    measured: Counter[str] = field(default_factory=Counter)
    placements: Counter[Placement] = field(default_factory=Counter)
    written: Written = field(default_factory=Written)
    elapsed_s: float = 0.0
    ended: str | None = None
    _order: dict[str, int] = field(default_factory=dict)

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

    def verdict_of(self, kernel_id: str) -> Verdict | None:
        """The verdict of a member or of a failure that may be repaired."""
        if kernel_id in self.members:
            return self.members[kernel_id].verdict
        return self.written.broken[kernel_id].verdict if kernel_id in self.written.broken else None

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
                self.tried.add((proposal.operator, proposal.parents))
                self.written.asked[proposal.operator] += 1
                self.pending[proposal.number] = Pending(proposal, turn=self.written.asked[proposal.operator] - 1)
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
        self._reward(proposal, verdict)
        self._age_parents(proposal, verdict)
        self._join_family(proposal, kernel_id)
        if proposal.model:
            speedup = verdict.speedup
            said = f"{speedup.low!r}x" if speedup else f"{verdict.status}: {verdict.message.partition(chr(10))[0][:160]}"
            note = pending.reply.note if pending.reply else ""
            self.written.history.append((frozenset((*proposal.parents, kernel_id)), f"{proposal.operator}: {note} -> {said}"))
        repaired = self.written.broken.pop(proposal.parents[0], None) if proposal.operator == REPAIR and proposal.parents else None
        depth = repaired.depth + 1 if repaired else 0
        if proposal.model and kernel_id and verdict.status is not Status.VERIFIED and depth < REPAIRS and (REPAIR, (kernel_id,)) not in self.tried:
            self.written.broken[kernel_id] = Broken(verdict, depth)
        if verdict.status is Status.VERIFIED:
            if kernel_id not in self.members:
                self._order[kernel_id] = len(self._order)
                self.members[kernel_id] = Member(kernel_id, verdict)
                insort(self.ranking, self._place(kernel_id))
            elif verdict.fitness < self.members[kernel_id].verdict.fitness:
                self._replace(kernel_id, verdict)
        self.written.since_best = self.written.since_best + 1 if self.best and self.best.kernel_id == before else 0

    def _reward(self, proposal: Proposal, child: Verdict) -> None:
        """What this trial earned: the gain in fitness over the best parent (over eager code for first drafts), nothing where there is none."""
        for arm in self.written.arms.values():
            arm.gain *= DISCOUNT
            arm.trials *= DISCOUNT
        parents = [self.members[p].verdict.fitness for p in proposal.parents if p in self.members]
        gain = child.fitness - max(parents, default=0.0)
        arm = self.written.arms.setdefault(proposal.operator, Arm())
        arm.trials += 1.0
        arm.gain += min(gain, 1.0) if gain > 0 else 0.0

    def _age_parents(self, proposal: Proposal, child: Verdict) -> None:
        if not child.kernel_id:
            return
        for parent in (self.members[p] for p in proposal.parents if p in self.members):
            parent.stale = 0 if child.fitness > parent.verdict.fitness else parent.stale + 1

    def _join_family(self, proposal: Proposal, child: str) -> None:
        """Tuning and recombination change defaults only: what they make has the space of the text that they started from."""
        texts = [p for p in proposal.parents if p in self.families]
        source = max(texts, key=self._fitness, default=None) if proposal.operator in (TUNE, RECOMBINE) else None
        if child:
            self.families.setdefault(child, self.families[source] if source else child)
        if source and proposal.operator == TUNE:
            self.tuned.add(self.families[source])

    def _fitness(self, kernel_id: str) -> float:
        return self.members[kernel_id].verdict.fitness if kernel_id in self.members else -math.inf

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
        return (-self.members[kernel_id].verdict.fitness, self._order[kernel_id], kernel_id)


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
