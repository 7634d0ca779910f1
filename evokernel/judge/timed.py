"""A candidate in a race: its timed calls, which of them are verified, and what shows that it computes its answers.

Covers: slots and input sets by turns, secretly chosen calls compared in full, calls on inputs that the process has not met. Does not cover: clocks
(contestant.py), intervals (timing.py).
"""

from __future__ import annotations

import math
import random
import secrets
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ..records import Status
from .candidate import Candidate, Loaded
from .cases import FEWEST_UNSEEN, Case
from .contestant import Failure
from .memory import SLOTS
from .timing import first_over_again, uneven

_VERIFY_SHARE = 0.2  # of the turns, for one of their calls
_REFILL_EVERY = 9  # turns
_SLOWER = 1.2
_CONTROLS = 3  # calls that one on unseen inputs stands among at random, and is compared with: loads come and go
_WAKING_US, _UNEVEN = 30.0, 0.5  # what one call of a turn may take longer (up to 2 us were seen), and a share of the call
_FIRST_US = 1.0  # what the first calls of a turn may take longer, each (up to 0.7 us were seen)
REMEMBERS = "on inputs that it has not met before: it keeps answers from one call to another"
UNREPEATABLE = (
    "two calls on the same inputs gave different bits: a race, an uninitialised read, or a reduction in changing order. "
    "Fix it, or write `// @nondeterministic` if only the order of additions changes"
)


def _by_unseen() -> dict[bool, list[float]]:
    return {True: [], False: []}


@dataclass
class _Group:
    """Microseconds of a call on unseen inputs (True) and of those around it (False), and likewise of the first calls on all slots of their turns: an
    earlier one may have done its work."""

    calls: dict[bool, list[float]] = field(default_factory=_by_unseen)
    turns: dict[bool, list[float]] = field(default_factory=_by_unseen)


class TimedCandidate:
    """A candidate in a race: rotates slots and input sets, and has secretly chosen calls, and the fastest, verified in full.

    Args:
        unseen: inputs that its process has not met yet (see Cases.unseen), each for one secretly chosen call.
        seconds: they are spread over so much time from the first cold call on: a kernel may behave for a while.
    """

    def __init__(
        self, candidate: Candidate, loaded: Loaded, cases: list[Case], unseen: Sequence[Case | dict[str, torch.Tensor]] = (), seconds: float = 0.0
    ) -> None:
        self._candidate = candidate
        self._loaded = loaded
        self._cases = cases
        self._turn = 0
        self._fastest_us: dict[str, float] = {}
        self._held: dict[int, int] = {}
        self._seen: dict[int, dict[str, torch.Tensor]] = {}
        self.verified = 0
        self._secret = random.Random(secrets.randbits(64))
        self._unseen = self._secret.sample(unseen, len(unseen))
        self._wanted = min(FEWEST_UNSEEN, len(unseen))
        self._turns: dict[str, list[list[float]]] = {"cold": [], "warm": []}
        self._due_s = sorted(self._secret.uniform(0, seconds) for _ in unseen)
        self._began_s: float | None = None
        self._next: list[Case | dict[str, torch.Tensor] | None] = []  # for the next calls: unseen inputs among known ones (None)
        self._groups: list[_Group] = []

    def run(self, mode: str) -> list[float]:
        """The timed calls of one turn (see timing.Entrant); raises Failure when a verified one is wrong."""
        seat, limit_s = self._loaded.seat, self._candidate.call_limit_s
        slots = seat.next_turn(self._turn % SLOTS)
        cases = {slot: (slot + self._turn // _REFILL_EVERY) % len(self._cases) for slot in slots}  # no two slots hold the same
        self._turn += 1
        for slot, case_index in cases.items():
            if self._held.get(slot) != case_index:
                self._candidate.fill(self._loaded, slot, self._cases[case_index])
                self._held[slot] = case_index
        if self._candidate.shop.machine.seals:
            seat.ready(slots[0], limit_s)
        # Not in warm calls: the one that warms up would show them. Nor in the first of several: the GPU changes over to its process then.
        new = self._fill_new({slot: cases[slot] for slot in [*cases][1:] or cases}) if mode == "cold" else {}
        if any(isinstance(case, Case) for case in new.values()):
            del slots[len(cases) :]  # what can be compared is then the first call on them
        took_us = seat.turn(slots, mode, limit_s)
        self._turns[mode].append(took_us)
        last_us = dict(zip(slots[-len(cases) :], took_us[-len(cases) :], strict=True))  # of each slot: its outputs are still there
        for slot, case in new.items():
            self._groups[-1].calls[case is not None].append(took_us[slots.index(slot)])
        if new:
            self._groups[-1].turns[any(c is not None for c in new.values())].append(sum(took_us[: len(cases)]))
        chosen = self._secret.choice(slots) if self._secret.random() < _VERIFY_SHARE else None
        for slot, elapsed_us in last_us.items():
            if isinstance(case := new.get(slot), Case):
                self._candidate.compare(self._loaded, slot, case)
            elif case is None and (elapsed_us < self._fastest_us.get(mode, math.inf) or slot == chosen):
                self._fastest_us[mode] = min(elapsed_us, self._fastest_us.get(mode, math.inf))
                self._verify(slot, cases[slot])
        return took_us

    def _fill_new(self, cases: dict[int, int]) -> dict[int, Case | dict[str, torch.Tensor] | None]:
        """When it is time, put inputs that its process has not met into one of these slots, and into those of the calls around it (None) what they
        hold, so that only the inputs differ."""
        now_s = time.monotonic()
        self._began_s = now_s if self._began_s is None else self._began_s
        if not self._next and self._unseen and now_s - self._began_s >= self._due_s[0]:
            self._due_s.pop(0)
            self._next = self._secret.sample([self._unseen.pop(), *[None] * _CONTROLS], _CONTROLS + 1)
            self._groups.append(_Group())
        found = {slot: self._next.pop() for slot in cases if self._next}
        for slot, new in found.items():
            case = self._cases[cases[slot]] if new is None else new
            self._loaded.seat.memory.fill_inputs(slot, case.placed_inputs if isinstance(case, Case) else case)
            if new is not None:
                del self._held[slot]
        return found

    def met_enough(self, mode: str) -> bool:
        """Whether a race in this mode may end: enough calls were on unseen inputs, the one whose answer is known among them. Steady races would be
        over before that, and to go on afterwards would be another phase, in which a kernel could behave."""
        known_left = any(isinstance(u, Case) for u in self._unseen)
        return mode != "cold" or (len(self._groups) >= self._wanted and not known_left and not self._next)

    def computes(self) -> None:
        """Raises:
        Failure: calls on inputs that its process, or the turn, had not met before took longer than others, or one call of a turn longer than all.
        """
        middle, more = uneven(self._turns["cold"] + self._turns["warm"])
        if more > _WAKING_US + _UNEVEN * middle:
            raise Failure(Status.CHEATING, f"one of several calls takes {more:.1f} us longer than the others ({middle:.1f} us): it does their work")
        if (times := first_over_again(self._turns["cold"], SLOTS, _FIRST_US)) > _SLOWER:  # warm ones have met all by the call that warms up
            raise Failure(Status.CHEATING, f"takes {times:.2f} times as long {REMEMBERS}")
        for measured in ([g.calls for g in self._groups], [g.turns for g in self._groups]):
            ratios = [m[True][0] / statistics.median(m[False]) for m in measured if m[True] and m[False]]
            if len(ratios) < FEWEST_UNSEEN:
                continue
            middle_one = len(ratios) // 2
            for half in (ratios[:middle_one], ratios[middle_one:]):  # what is to pay off is done in one of them at least
                # On a GPU half have to be slower. A CPU may be busy with other things half of the time: there all have to.
                if sorted(half)[0 if self._candidate.shop.machine.seals else len(half) // 2] > _SLOWER:
                    raise Failure(Status.CHEATING, f"takes {statistics.median(half):.2f} times as long {REMEMBERS}")

    def _verify(self, slot: int, case_index: int) -> None:
        self.verified += 1
        seen = self._seen.get(case_index)
        repeatable = seen is not None and not self._loaded.build.plan.nondeterministic
        if repeatable and self._loaded.seat.memory.same_outputs(slot, seen or {}):
            self._candidate.untouched(self._loaded, slot, self._cases[case_index])
            return
        _, outputs = self._candidate.compare(self._loaded, slot, self._cases[case_index])
        if repeatable:
            raise Failure(Status.MISMATCH, UNREPEATABLE)
        self._seen[case_index] = outputs
