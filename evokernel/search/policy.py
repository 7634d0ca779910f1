"""Policies: what a run tries next. Pure: the same state and random stream give the same decision; no clock, no files, no judge.

A policy is one function and one line in `_POLICIES` or `_WITH_MODELS` (writing.py), and passes `tests/contracts/policy_contract.py`. Without
models every proposal is made once (operator and parents), so such a search runs dry some day and says so.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from itertools import combinations

from ..errors import UsageError
from ..records import Placement, Proposal
from .state import RECOMBINE, TUNE, Member, State

START, TRANSPLANT = "start", "transplant"
_PROPOSALS = 5  # proposals a candidate: a model that never writes a kernel ends some day
RESTS_AFTER = 4  # stale children in a row
ELITE = 16  # members that may become parents
TRANSPLANT_SHARE = 1 / 3  # of the candidates, before anything else is tried


@dataclass(frozen=True)
class Stop:
    """Nothing more is to be tried, for this reason."""

    reason: str


@dataclass(frozen=True)
class Wait:
    """Nothing to decide before something that is under way is done."""


Decision = Proposal | Stop | Wait
Policy = Callable[[State, random.Random], Decision]


def ranked(state: State, rng: random.Random) -> Decision:
    """The start kernel, transplants up to their share, then the best tuned; recombination and tuning of others by turns; the stones left over."""
    stop = limit(state)
    if stop:
        return stop
    share = max(1, round(state.started.settings.candidates * TRANSPLANT_SHARE))
    early = state.measured[TRANSPLANT] < share
    first = start(state) or (transplant(state) if early else None) or tune(state, 1)
    if first:
        return first
    turns = [recombine(state, rng), tune(state, ELITE)]
    rng.shuffle(turns)
    return turns[0] or turns[1] or transplant(state) or run_dry(state)


def random_operator(state: State, rng: random.Random) -> Decision:
    """The start kernel, then any operator that has something to try, with equal chances: what `ranked` is compared with."""
    stop = limit(state)
    if stop:
        return stop
    possible = [p for p in (transplant(state), tune(state, ELITE), recombine(state, rng)) if p]
    return start(state) or (rng.choice(possible) if possible else run_dry(state))


_POLICIES = {"ranked": "policy:ranked", "random-operator": "policy:random_operator"}
_WITH_MODELS = {"ranked": "writing:bandit", "random-operator": "writing:random_writer", "best-of-n": "writing:best_of_n", "serial": "writing:serial"}


def get(name: str, *, models: bool = False) -> Policy:
    """The policy of that name for runs with or without models.

    Raises:
        UsageError: no such policy.
    """
    known = _WITH_MODELS if models else _POLICIES
    if name not in known:
        raise UsageError(f"there is no policy {name!r} for runs with{'' if models else 'out'} models; known policies: {', '.join(known)}")
    module, _, function = known[name].partition(":")
    return getattr(import_module(f"{__package__}.{module}"), function)  # type: ignore[no-any-return]


def decide(state: State) -> Decision:
    """The next decision of the run's own policy. The random numbers of decision n come from (seed, n)."""
    settings = state.started.settings
    return get(settings.policy, models=bool(settings.models))(state, random.Random(f"{settings.seed}:{state.proposals}"))


def limit(state: State) -> Stop | Wait | None:
    """The end of the budget, if it is reached, or of what can be begun before something is done."""
    settings = state.started.settings
    if state.candidates >= settings.candidates:
        return Stop(f"all {settings.candidates} candidates are measured")
    if settings.seconds is not None and state.elapsed_s >= settings.seconds:
        return Stop(f"the {settings.seconds:g} seconds are over")
    if state.proposals >= _PROPOSALS * settings.candidates + 20:
        same = state.placements[Placement.DUPLICATE]
        return Stop(f"only {state.candidates} of {state.proposals} answers gave a kernel to measure ({same} were the same code as an earlier one)")
    return Wait() if state.candidates + len(state.pending) >= settings.candidates else None


def run_dry(state: State) -> Stop:
    """The end of all that operators without a model can try."""
    if not state.members:
        return Stop("nothing left to try: no kernel was verified; give a start kernel, or one more stepping stone to the archive")
    return Stop("nothing left to try without a model: every stone, tuning and recombination of the best kernels was tried")


def start(state: State) -> Proposal | None:
    """The start kernel, if there is one and it was not proposed yet."""
    return _fresh(state, START, ()) if state.started.settings.start is not None else None


def transplant(state: State) -> Proposal | None:
    """The first stone that was not tried and is not a member already."""
    return _first(state, TRANSPLANT, (s.kernel_id for s in state.started.stones if s.kernel_id not in state.members))


def tune(state: State, best: int) -> Proposal | None:
    """The fittest of the `best` members that has tunables and whose space was not searched."""
    return _first(state, TUNE, (m.kernel_id for m in state.ranked(best) if m.verdict.config and m.family not in state.tuned))


def recombine(state: State, rng: random.Random) -> Proposal | None:
    """A pair of different texts that share tunables at different values; fitter ones are likelier, those with only stale children rest."""
    awake = [(1 / (1 + rank), m) for rank, m in enumerate(state.ranked(ELITE)) if m.stale < RESTS_AFTER and m.verdict.config]
    pairs = [(a * b, tuple(sorted((m.kernel_id, n.kernel_id)))) for (a, m), (b, n) in combinations(awake, 2) if _differ(m, n)]
    fresh = [(weight, pair) for weight, pair in pairs if (RECOMBINE, pair) not in state.tried]
    if not fresh:
        return None
    chosen = rng.choices([pair for _, pair in fresh], [weight for weight, _ in fresh])[0]
    return _fresh(state, RECOMBINE, chosen)


def _differ(one: Member, other: Member) -> bool:
    if one.family == other.family:
        return False
    mine, theirs = one.verdict.config, other.verdict.config
    return any(name in theirs and theirs[name] != value for name, value in mine.items())


def _fresh(state: State, operator: str, parents: tuple[str, ...]) -> Proposal | None:
    return None if (operator, parents) in state.tried else Proposal(state.proposals, operator, parents)


def _first(state: State, operator: str, kernel_ids: Iterable[str]) -> Proposal | None:
    return next((p for p in (_fresh(state, operator, (k,)) for k in kernel_ids) if p), None)
