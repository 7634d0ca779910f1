"""Kernels that remember, work ahead or change their ways, in races of whole turns, and honest ones beside them. The GPU and the clock are doubles
here: a call takes what the kernel's rule says, and what it needs for its rule outlives a call. All else is the judge's own."""

import math
import random
import statistics
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from evokernel.judge import timed, timing
from evokernel.judge.candidate import Candidate, Loaded
from evokernel.judge.cases import Case
from evokernel.judge.contestant import Failure, Seat
from evokernel.judge.timed import TimedCandidate
from evokernel.judge.timing import Race, race

HONEST_US, QUICK_US = 20.0, 3.0
TRIES = 20


class Known(Case):
    """A case that is its own input."""

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "name", name)

    placed_inputs = property(lambda self: self.name)  # type: ignore[assignment]
    __hash__ = object.__hash__
    __eq__ = object.__eq__


class Kernel:
    """What a call takes in microseconds, and which slots hold wrong outputs after it; this one is honest."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        self.wrong: set[int] = set()

    def call(self, held: dict[int, str], slot: int) -> float:
        return HONEST_US


class Remembers(Kernel):
    def call(self, held: dict[int, str], slot: int) -> float:
        met = held[slot] in self.known
        self.known.add(held[slot])
        return QUICK_US if met else HONEST_US


class WorksAhead(Kernel):
    """Each call does the work of all slots that hold something new, itself included."""

    def call(self, held: dict[int, str], slot: int) -> float:
        new = set(held.values()) - self.known
        self.known |= new
        return max(QUICK_US, len(new) * HONEST_US)


class RemembersTheCallBefore(Kernel):
    """And only that, in a place that cold calls find empty."""

    def __init__(self) -> None:
        super().__init__()
        self.latest = ""

    def call(self, held: dict[int, str], slot: int) -> float:
        before, self.latest = self.latest, held[slot]
        return QUICK_US if before == held[slot] else HONEST_US


class RemembersTheCallBeforeLateInATurn(RemembersTheCallBefore):
    """When calls on unseen inputs have passed."""

    def turn_begins(self) -> None:
        self.calls = 0

    def call(self, held: dict[int, str], slot: int) -> float:
        self.calls += 1
        us = super().call(held, slot)
        return us if self.calls > 6 else HONEST_US


class RemembersWhenWarm(Remembers):
    """As long as nothing empties the caches; then it has to meet all again."""

    def cold_call_comes(self) -> None:
        self.known.clear()


class RemembersWithinATurn(Remembers):
    """All is gone when others have been on the GPU."""

    def turn_begins(self) -> None:
        self.known.clear()


class Guesses(Remembers):
    """Wrong at once on what it does not know."""

    def call(self, held: dict[int, str], slot: int) -> float:
        self.wrong.discard(slot)
        if held[slot] in self.known or len(self.known) < 3:
            return super().call(held, slot)
        self.wrong.add(slot)
        return QUICK_US


class ComputesThenGuesses(Guesses):
    """Computes what it has not met, as long as that may be looked at; then it guesses."""

    def call(self, held: dict[int, str], slot: int) -> float:
        return Remembers.call(self, held, slot) if len(self.known) < 9 else super().call(held, slot)


class GuessesAtFirstSight(Guesses):
    """Wrong at once on what it has not met, but only once: the next call on the same inputs computes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def call(self, held: dict[int, str], slot: int) -> float:
        if held[slot] in self.seen or len(self.known) < 3:
            self.wrong.discard(slot)
            self.seen.add(held[slot])
            return Remembers.call(self, held, slot)
        self.seen.add(held[slot])
        return super().call(held, slot)


class FakeSeat(Seat):
    """A seat whose process is a rule."""

    def __init__(self, kernel: Kernel, clock: list[float], rng: random.Random, between: object) -> None:
        self.held: dict[int, str] = {}
        self.kernel, self.clock, self.rng = kernel, clock, rng
        self.memory = cast(Any, SimpleNamespace(slots=3, machine=SimpleNamespace(between=between), fill_inputs=self.fill, same_outputs=self.right))
        self._call_us = math.inf
        self.later: dict[int, str] = {}

    def fill(self, slot: int, inputs: str) -> None:
        self.held[slot] = inputs

    def ready(self, slot: int, timeout_s: float) -> None:
        pass

    def stage(self, inputs: Any, held: Any, timeout_s: float) -> None:
        self.later = dict(inputs)

    def right(self, slot: int, expected: object) -> bool:
        return slot not in self.kernel.wrong

    def turn(self, slots: Any, mode: str, timeout_s: float) -> list[float]:
        getattr(self.kernel, "turn_begins", int)()
        took_us = []
        for slot in slots:
            if mode == "cold":
                getattr(self.kernel, "cold_call_comes", int)()
            else:
                self.kernel.call(self.held, slot)
                self.held[slot] = self.later.pop(slot, self.held[slot])
            us = self.kernel.call(self.held, slot)
            took_us.append(us * (1 + abs(self.rng.gauss(0, 0.004))))
        self.clock[0] += 0.0005 + (sum(took_us) + 100 * len(slots)) * 1e-6
        self._call_us = statistics.median(took_us)
        return took_us


class Rival:
    """A baseline that takes as long as an honest kernel."""

    def __init__(self, seat: FakeSeat) -> None:
        self.seat = seat

    def run(self, mode: str) -> list[float]:
        return self.seat.turn(self.seat.next_turn(0), mode, 5.0)


@pytest.fixture
def raced(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Kernel, int], Race]]:
    clock = [0.0]
    for module in (timed, timing):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def judged(kernel: Kernel, seed: int, *, cpu: bool = False) -> Race:
        rng = random.Random(seed)
        monkeypatch.setattr(timed.secrets, "randbits", rng.getrandbits)
        monkeypatch.setattr(timed.secrets, "randbelow", rng.randrange)
        seat, other = (FakeSeat(k, clock, rng, None if cpu else {}) for k in (kernel, Kernel()))
        other.held = dict.fromkeys(range(3), "")

        def compare(loaded: object, slot: int, case: object) -> tuple[list[object], dict[str, object]]:
            if slot in kernel.wrong:
                raise Failure(timed.Status.MISMATCH, "wrong")
            return [], {}

        candidate = SimpleNamespace(
            shop=SimpleNamespace(machine=SimpleNamespace(seals=cpu)), call_limit_s=5.0, compare=compare, untouched=lambda *_: None,
            fill=lambda loaded, slot, case: seat.fill(slot, case.name),
        )  # fmt: skip
        loaded = SimpleNamespace(seat=seat, build=SimpleNamespace(plan=SimpleNamespace(nondeterministic=False)))
        unseen = cast(Any, {mode: [Known(f"known, {mode}"), *(f"unseen {n}, {mode}" for n in range(11))] for mode in ("cold", "warm")})
        known, seconds = [Known(f"case {n}") for n in range(3)], {"cold": 0.5, "warm": 0.2}
        entrant = TimedCandidate(cast(Candidate, candidate), cast(Loaded, loaded), known, unseen, seconds)
        found = race(entrant, Rival(other), "cold", seconds=0.5, ready=entrant.met_enough)
        race(entrant, Rival(other), "warm", seconds=0.2, ready=entrant.met_enough)
        entrant.computes()
        return found

    yield judged


def test_honest_kernels_pass(raced: Callable[[Kernel, int], Race]) -> None:
    for seed in range(TRIES):
        assert raced(Kernel(), seed).speedup.mid == pytest.approx(1.0, rel=0.01)


CHEATS = [
    Remembers, WorksAhead, RemembersTheCallBefore, RemembersTheCallBeforeLateInATurn, RemembersWhenWarm, RemembersWithinATurn, Guesses,
    ComputesThenGuesses, GuessesAtFirstSight,
]  # fmt: skip


@pytest.mark.parametrize("cheat", CHEATS)
def test_kernels_that_keep_something_do_not(raced: Callable[[Kernel, int], Race], cheat: type[Kernel]) -> None:
    caught = 0
    for seed in range(TRIES):
        try:
            raced(cheat(), seed)
        except Failure as failure:
            caught += 1
            assert failure.status in (timed.Status.CHEATING, timed.Status.MISMATCH)
    assert caught == TRIES


class Slow(Kernel):
    """Of 50 ms a call, so that a race holds few."""

    def call(self, held: dict[int, str], slot: int) -> float:
        return 2500 * super().call(held, slot)


class SlowAndRemembers(Slow, Remembers):
    pass


def test_slow_kernels_meet_enough_as_well(raced: Callable[..., Race]) -> None:
    for seed in range(TRIES):
        assert raced(Slow(), seed, cpu=True).speedup.mid == pytest.approx(1 / 2500, rel=0.01)
        with pytest.raises(Failure, match="times as long on inputs that it has not met"):
            raced(SlowAndRemembers(), seed, cpu=True)


def test_steady_races_end_early_but_not_before_unseen_inputs_were_met(raced: Callable[[Kernel, int], Race]) -> None:
    blocks = [raced(Kernel(), seed).blocks for seed in range(TRIES)]
    assert min(blocks) > timing.MIN_BLOCKS
