"""The state of a run: a fold over its events. The same events give the same state, live or read from the archive."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..archive.runs import Answered, Asked, Confirmed, Ended, Judged, Logged, Started
from ..records import Placement, Proposal, Reply, Status, Verdict

TUNE, RECOMBINE = "tune", "recombine"


@dataclass
class Member:
    """A verified kernel of the run. `stale`: children in a row that were no better. `confirmed`: measured again in a fresh process."""

    kernel_id: str
    verdict: Verdict
    stale: int = 0
    confirmed: bool = False


@dataclass
class Pending:
    """A proposal that is not judged yet; without `reply` it is not answered either."""

    proposal: Proposal
    reply: Reply | None = None


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

    def apply(self, logged: Logged) -> None:
        """Take in the next event."""
        self.elapsed_s = logged.elapsed_s
        match logged.event:
            case Asked(proposal):
                self.proposals = proposal.number + 1
                self.tried.add((proposal.operator, proposal.parents))
                self.pending[proposal.number] = Pending(proposal)
            case Answered(number, reply):
                self.pending[number].reply = reply
            case Judged():
                self._judged(logged.event)
            case Confirmed(verdict):
                self._confirmed(verdict)
            case Ended(reason):
                self.ended = reason
            case _:
                pass

    def _judged(self, event: Judged) -> None:
        proposal = self.pending.pop(event.number).proposal
        self.placements[event.placement] += 1
        kernel_id, verdict = event.verdict.kernel_id, event.verdict
        if kernel_id and event.placement is not Placement.DUPLICATE:
            self.measured[proposal.operator] += 1
        self._age_parents(proposal, verdict)
        self._join_family(proposal, kernel_id)
        if verdict.status is Status.VERIFIED:
            if kernel_id not in self.members:
                self._order[kernel_id] = len(self._order)
                self.members[kernel_id] = Member(kernel_id, verdict)
                insort(self.ranking, self._place(kernel_id))
            elif verdict.fitness < self.members[kernel_id].verdict.fitness:
                self._replace(kernel_id, verdict)

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
