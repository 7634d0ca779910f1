"""Policies of runs with models: which operator is asked next, of which model, about which kernels. Pure, as policy.py.

Drafts first, then what failed is repaired, at most twice; the best is tuned; after that a discounted bandit (UCB1 on gains that fade: Kocsis and
Szepesvari 2006, "Discounted UCB") chooses among the operators that have something to work on.
"""

from __future__ import annotations

import math
import random

from ..models import ModelSpec
from ..records import Proposal
from .policy import ELITE, RESTS_AFTER, Decision, limit, recombine, run_dry, start, transplant, tune
from .state import DISCOUNT, REPAIR, State

DRAFTS = 4
EARLY_STONES = 2  # tried as they are before a model is asked: they cost nothing and give it examples
STAGNATION = 8
FLOOR = 0.15  # of the decisions, spread evenly over all operators
_CURIOSITY = 0.1  # a gain of 10 % is worth finding out about


def bandit(state: State, rng: random.Random) -> Decision:
    """The default with models."""
    if stop := limit(state):
        return stop
    first = start(state) or (transplant(state) if state.written.asked["transplant"] < EARLY_STONES else None)
    if first or state.written.asked["translate"] < DRAFTS:
        return first or written(state, rng, "translate", ())
    urgent = repair(state, rng) or tune(state, 1)
    if urgent:
        return urgent
    options = possible(state, rng)
    if not options:
        return run_dry(state)
    names = sorted(options)
    chosen = rng.choice(names) if rng.random() < FLOOR else max(names, key=lambda name: (_score(state, name), rng.random()))
    return options[chosen]


def best_of_n(state: State, rng: random.Random) -> Decision:
    """First drafts only: what every other policy has to beat at the same cost."""
    return limit(state) or start(state) or written(state, rng, "translate", ())


def serial(state: State, rng: random.Random) -> Decision:
    """One draft, then always the best one mutated, and failures repaired."""
    if stop := limit(state):
        return stop
    first = start(state) or repair(state, rng)
    if first:
        return first
    best = state.best
    return written(state, rng, "mutate", (best.kernel_id,)) if best else written(state, rng, "translate", ())


def random_writer(state: State, rng: random.Random) -> Decision:
    """Any operator that has something to work on, with equal chances."""
    if stop := limit(state):
        return stop
    options = possible(state, rng)
    return start(state) or repair(state, rng) or (options[rng.choice(sorted(options))] if options else run_dry(state))


def possible(state: State, rng: random.Random) -> dict[str, Proposal]:
    """By operator, what it would work on now."""
    found = {"translate": written(state, rng, "translate", ())}
    if parent := _parent(state, rng):
        found |= {name: written(state, rng, name, (parent,)) for name in ("mutate", "technique", "simplify")}
        mates = [m.kernel_id for m in state.ranked(ELITE) if m.family != state.members[parent].family]
        if mates:
            found["crossover"] = written(state, rng, "crossover", (parent, rng.choice(mates)))
    if state.written.since_best >= STAGNATION:
        found["rethink"] = written(state, rng, "rethink", ())
    foreign = [s for s in state.started.stones if s.task_id != state.started.task_id]  # its own are tried as they are, and are examples then
    fresh = [s for s in foreign if ("transfer", (s.kernel_id,)) not in state.tried]
    if fresh:
        found["transfer"] = written(state, rng, "transfer", (max(fresh, key=lambda s: s.late).kernel_id,))
    others = {"recombine": recombine(state, rng), "tune": tune(state, ELITE), "transplant": transplant(state)}
    return found | {name: proposal for name, proposal in others.items() if proposal}


def repair(state: State, rng: random.Random) -> Proposal | None:
    """The latest failure that may be repaired and is not under repair."""
    waiting = (k for k in reversed(state.written.broken) if (REPAIR, (k,)) not in state.tried)
    return next((written(state, rng, REPAIR, (k,)) for k in waiting), None)


def written(state: State, rng: random.Random, operator: str, parents: tuple[str, ...]) -> Proposal:
    """A proposal for one of the run's models, chosen by their shares."""
    specs = [ModelSpec.parse(text) for text in state.started.settings.models]
    model = rng.choices([s.id for s in specs], [s.weight for s in specs])[0]
    return Proposal(state.proposals, operator, parents, model)


def _parent(state: State, rng: random.Random) -> str | None:
    """A member by rank; those whose latest children were all no better rest, unless all do."""
    ranked = state.ranked(ELITE)
    awake = [m for m in ranked if m.stale < RESTS_AFTER] or ranked
    if not awake:
        return None
    return rng.choices([m.kernel_id for m in awake], [1 / (1 + ranked.index(m)) for m in awake])[0]


def _score(state: State, operator: str) -> float:
    """Upper confidence bound of an operator's gain; infinite for one that was never tried."""
    arm = state.written.arms.get(operator)
    if arm is None or arm.trials < DISCOUNT**60:
        return math.inf
    total = sum(a.trials for a in state.written.arms.values())
    return arm.gain / arm.trials + _CURIOSITY * math.sqrt(2 * math.log(1 + total) / arm.trials)
