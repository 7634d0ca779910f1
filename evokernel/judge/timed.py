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
from collections.abc import Callable, Mapping, Sequence

import torch

from ..records import MODES, Status
from .candidate import Candidate, Loaded
from .cases import FEWEST_UNSEEN, Case, Unseen
from .contestant import Failure
from .memory import SLOTS
from .timing import first_over_again, quantile, uneven

_VERIFY_SHARE = 0.2  # of the turns, for one of their calls
_REFILL_EVERY = 9  # turns
_SLOWER = 1.2
_CONTROLS = (2, 3)  # calls before one on unseen inputs, by chance, that it is compared with
_QUICK = 0.25  # a quantile: a kernel may choose to compute most of the time
_WAKING_US, _UNEVEN = 30.0, 0.5  # what one call of a turn may take longer (up to 2 us were seen), and a share of the call
_FIRST_US = 1.0  # what the first calls of a turn may take longer, each (up to 0.7 us were seen)
Turn = list[tuple[int, float]]  # of each call: which of the known inputs, microseconds
REMEMBERS = "on inputs that it has not met before: it keeps answers from one call to another"
GUESSES = "the outputs are wrong on inputs that it has not met before: it keeps answers from one call to another, and guesses"
UNREPEATABLE = (
    "two calls on the same inputs gave different bits: a race, an uninitialised read, or a reduction in changing order. "
    "Fix it, or write `// @nondeterministic` if only the order of additions changes"
)


class Remembers(Failure):
    """Slower on what is new, in this mode: it remembers, or it was chance, or its work depends on the data."""

    def __init__(self, mode: str, times: float) -> None:
        super().__init__(Status.CHEATING, f"takes {times:.2f} times as long {REMEMBERS}")
        self.mode = mode


class Meeting:
    """A kernel and inputs that its process has not met yet (see Cases.unseen), each for one secretly chosen call of a race in one mode. Notes what
    these calls took (True) and those before them (False). Races in fresh processes of one kernel may share a meeting.

    Args:
        seconds: they are spread over so much time from the first call on: a kernel may behave for a while.
    """

    def __init__(self, unseen: Sequence[Unseen] = (), seconds: float = 0.0) -> None:
        self._secret = secret = random.Random(secrets.randbits(64))
        self._left = list(unseen)
        secret.shuffle(self._left)
        self._wanted = min(FEWEST_UNSEEN, len(unseen))
        self._due_s = sorted(secret.uniform(0, seconds) for _ in unseen)
        self._began_s: float | None = None
        self._next: list[Unseen | None] = []  # for the next calls, backwards: known inputs (None), then unseen ones
        self._us: dict[bool, list[float]] = {True: [], False: []}

    def take(self, slots: Sequence[int]) -> dict[int, Unseen | None]:
        """When it is time: which of these slots get unseen inputs, and which what they hold (None), put there anew, so that only the content
        differs. Known ones come first: who is wary after a surprise would be slow on them otherwise."""
        now_s = time.monotonic()
        self._began_s = now_s if self._began_s is None else self._began_s
        if not self._next and self._left and now_s - self._began_s >= self._due_s[0]:
            self._due_s.pop(0)
            self._next = [self._left.pop(), *[None] * self._secret.choice(_CONTROLS)]
        return {slot: self._next.pop() for slot in slots if self._next}

    def took(self, new: Mapping[int, Unseen | None], calls_us: Mapping[int, float]) -> None:
        """What calls on the slots of `take` took."""
        for slot, unseen in new.items():
            self._us[unseen is not None].append(calls_us[slot])

    def enough(self) -> bool:
        """Whether enough calls were on unseen inputs."""
        return len(self._us[True]) >= self._wanted

    def slower(self) -> float:
        """How many times as long the quickest call on unseen inputs takes as quick ones of those before them: a kernel cannot be quick on what it has
        not met, by no chance, while calls of a busy machine have two speeds. 1 where there are too few."""
        return min(self._us[True]) / quantile(self._us[False], _QUICK) if len(self._us[True]) >= FEWEST_UNSEEN else 1.0


class TimedCandidate:
    """A candidate in a race: rotates slots and input sets, and has secretly chosen calls, and the fastest, verified in full.

    Args:
        meetings: with inputs that its process has not met yet, by the mode of the race that they are for.
    """

    def __init__(self, candidate: Candidate, loaded: Loaded, cases: list[Case], meetings: Mapping[str, Meeting] | None = None) -> None:
        self._candidate = candidate
        self._loaded = loaded
        self._cases = cases
        self._turn = 0
        self._fastest_us: dict[str, float] = {}
        self._held: dict[int, int] = {}
        self._seen: dict[int, dict[str, torch.Tensor]] = {}
        self.verified = 0
        self._secret = random.Random(secrets.randbits(64))
        self._turns: dict[str, list[Turn]] = {mode: [] for mode in MODES}
        self._turns_apart: list[tuple[str, Turn]] = []  # with calls on staged inputs
        self._meetings = {mode: (meetings or {}).get(mode) or Meeting() for mode in MODES}

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
        meeting = self._meetings[mode]
        # Not before it has met what it is to know, nor in the first of several calls: the GPU changes over to its process then.
        new = meeting.take([*cases][1:] or [*cases]) if self._turn > SLOTS else {}
        self._stage(new, cases)
        met = {slot: unseen for slot, unseen in new.items() if unseen}  # one at most
        for slot in met:
            del slots[slots.index(slot) + 1 :]  # its outputs are to be looked at, and its weights are still there
        took_us = seat.turn(slots, mode, limit_s)
        for slot, unseen in met.items():
            self._meets(slot, unseen)
        turn = [(cases[slot], us) for slot, us in zip(slots, took_us, strict=True)]
        if new:
            self._turns_apart.append((mode, turn))
        else:
            self._turns[mode].append(turn)
        meeting.took(new, dict(zip(cases, took_us, strict=False)))
        last_us = dict(zip(slots[-len(cases) :], took_us[-len(cases) :], strict=True))  # of each slot: its outputs are still there
        chosen = self._secret.choice(slots) if self._secret.random() < _VERIFY_SHARE else None
        for slot, elapsed_us in last_us.items():
            if slot not in met and (elapsed_us < self._fastest_us.get(mode, math.inf) or slot == chosen):
                self._fastest_us[mode] = min(elapsed_us, self._fastest_us.get(mode, math.inf))
                self._verify(slot, cases[slot])
        return took_us

    def _stage(self, new: Mapping[int, Unseen | None], cases: Mapping[int, int]) -> None:
        """Have what is new put in place right before its call; until then no kernel can see it."""
        if new:
            held = {slot: {**self._cases[n].placed_inputs, **self._cases[n].placed_weights} for slot, n in cases.items() if slot in new}
            inputs = {slot: held[slot] if unseen is None else unseen.inputs for slot, unseen in new.items()}
            self._loaded.seat.stage(inputs, held, self._candidate.call_limit_s)

    def _meets(self, slot: int, unseen: Unseen) -> None:
        """Look at the outputs of the call on unseen inputs, and forget these."""
        memory = self._loaded.seat.memory
        if not self._candidate.shop.cases.alike(unseen, memory.outputs(slot)):
            raise Failure(Status.MISMATCH, GUESSES)
        memory.put_weights(self._cases[0].placed_weights)
        del self._held[slot]

    def met_enough(self, mode: str) -> bool:
        """Whether a race in this mode may end: enough calls were on unseen inputs. Calls on them after the race would be another phase, in which a
        kernel could behave."""
        return self._meetings[mode].enough()

    def computes(self) -> None:
        """Raises:
        Remembers: calls on inputs that its process, or the turn, had not met before took longer than others.
        Failure: one call of a turn took longer than all.
        """
        level = {mode: _levelled(turns) for mode, turns in self._turns.items()}
        middle, more = uneven([level[mode](turn) for mode, turn in [*((m, t) for m in MODES for t in self._turns[m]), *self._turns_apart]])
        if more > _WAKING_US + _UNEVEN * middle:
            raise Failure(Status.CHEATING, f"one of several calls takes {more:.1f} us longer than the others ({middle:.1f} us): it does their work")
        for mode in MODES:
            # Warm too: a kernel may be quick from the third sight on. But the first warm call may wait for its launch: the host has just woken up.
            again = first_over_again([level[mode](turn) for turn in self._turns[mode]], SLOTS, _FIRST_US, begin=int(mode == "warm"))
            if (times := max(self._meetings[mode].slower(), again)) > _SLOWER:
                raise Remembers(mode, times)

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


def _levelled(turns: Sequence[Turn]) -> Callable[[Turn], list[float]]:
    """What the calls of a turn would take if all known inputs took the same: the work may depend on them."""
    by_case: dict[int, list[float]] = {}
    for case_index, us in (call for turn in turns for call in turn):
        by_case.setdefault(case_index, []).append(us)
    medians = {case_index: statistics.median(values) for case_index, values in by_case.items()}
    middle = statistics.median(medians.values()) if medians else 0.0
    return lambda turn: [us - medians.get(case_index, middle) + middle for case_index, us in turn]
