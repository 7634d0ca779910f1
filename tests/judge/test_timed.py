"""Kernels that remember, work ahead or change their ways, in races of whole turns, and honest ones beside them. The GPU and the clock are doubles
here: a call takes what the kernel's rule says, and what it needs for its rule outlives a call. All else is the judge's own."""

import math
import random
import statistics
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from evokernel.judge import timed, timing
from evokernel.judge.candidate import Candidate, Loaded
from evokernel.judge.cases import Case, Unseen
from evokernel.judge.contestant import Failure, Seat
from evokernel.judge.timed import Meeting, TimedCandidate
from evokernel.judge.timing import START_S, Race, race, race_anew

HONEST_US, QUICK_US = 20.0, 3.0
TRIES = 20


class Known(Case):
    """A case that is its own input."""

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "name", name)

    placed_inputs = property(lambda self: {"x": self.name})  # type: ignore[assignment]
    placed_weights = property(lambda self: {"w": "known"})  # type: ignore[assignment]
    __hash__ = object.__hash__
    __eq__ = object.__eq__


class Kernel:
    """What a call takes in microseconds, and which slots hold wrong outputs after it; this one is honest. `coin`: what it may take from the bytes
    that outputs are poisoned with, one a turn."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        self.wrong: set[int] = set()
        self.weights = "known"
        self.coin = 0.0
        self.calls = 0  # of this turn

    def turn_begins(self) -> None:
        pass

    def cold_call_comes(self) -> None:
        pass

    def call(self, held: dict[int, str], slot: int) -> float:
        return HONEST_US

    def noise_us(self, us: float, rng: random.Random, *, first: bool) -> float:
        """What is added to a call's time."""
        return us * abs(rng.gauss(0, 0.004))

    def met(self, inputs: str) -> bool:
        found = inputs in self.known
        self.known.add(inputs)
        return found


class Remembers(Kernel):
    def call(self, held: dict[int, str], slot: int) -> float:
        return QUICK_US if self.met(held[slot]) else HONEST_US


class RemembersWhatItMadeOfTheWeights(Kernel):
    def call(self, held: dict[int, str], slot: int) -> float:
        return QUICK_US if self.met(self.weights) else HONEST_US


class WorksAhead(Kernel):
    """Each call does the work of all slots that hold something new, itself included."""

    def call(self, held: dict[int, str], slot: int) -> float:
        new = set(held.values()) - self.known
        self.known |= new
        return max(QUICK_US, len(new) * HONEST_US)


class WorksAheadWhenCold(WorksAhead):
    cold = False

    def turn_begins(self) -> None:
        self.cold = False

    def cold_call_comes(self) -> None:
        self.cold = True

    def call(self, held: dict[int, str], slot: int) -> float:
        return super().call(held, slot) if self.cold else HONEST_US


class RemembersTheCallBefore(Kernel):
    """And only that, in a place that cold calls find empty."""

    latest = ""

    def call(self, held: dict[int, str], slot: int) -> float:
        before, self.latest = self.latest, held[slot]
        return QUICK_US if before == held[slot] else HONEST_US


class RemembersTheCallBeforeLateInATurn(RemembersTheCallBefore):
    """When calls on unseen inputs have passed."""

    def call(self, held: dict[int, str], slot: int) -> float:
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


class IsWary(Remembers):
    """Computes for some calls after a surprise, and in some turns at random."""

    wary_calls, honest_turns = 5, 0.0
    left = 0

    def call(self, held: dict[int, str], slot: int) -> float:
        if not self.met(held[slot]):
            self.left = self.wary_calls
        self.left -= 1
        return HONEST_US if self.left >= 0 or self.coin < self.honest_turns else QUICK_US


class TossesACoin(IsWary):
    wary_calls, honest_turns = 1, 0.45


class IsWaryAndTosses(IsWary):
    honest_turns = 0.25


class IsWaryOfTurns(IsWary):
    """Until the next turn is over; and of the first calls of some turns."""

    honest_turns = 0.4

    def turn_begins(self) -> None:
        self.left -= 1

    def call(self, held: dict[int, str], slot: int) -> float:
        if not self.met(held[slot]):
            self.left = 2
        return HONEST_US if self.left > 0 or (self.coin < self.honest_turns and self.calls <= 3) else QUICK_US


class HasPhases(Remembers):
    turns = 0

    def turn_begins(self) -> None:
        self.turns += 1

    def call(self, held: dict[int, str], slot: int) -> float:
        return QUICK_US if self.met(held[slot]) and self.turns % 18 >= 8 else HONEST_US


class Guesses(Remembers):
    """Wrong at once on what it does not know, or on some of it, when so much was looked at."""

    of_them, from_the = 1.0, 3

    def __init__(self) -> None:
        super().__init__()
        self.guessed: dict[str, bool] = {}

    def call(self, held: dict[int, str], slot: int) -> float:
        self.wrong.discard(slot)
        if held[slot] in self.known or len(self.known) < self.from_the or not self.guessed.setdefault(held[slot], self.coin < self.of_them):
            return super().call(held, slot)
        self.wrong.add(slot)
        return QUICK_US


class ComputesThenGuesses(Guesses):
    from_the = 9


class GuessesSome(Guesses):
    of_them = 0.3


class GuessesAtFirstSight(Guesses):
    """Wrong at once on what it has not met, but only once: the next call on the same inputs computes."""

    def call(self, held: dict[int, str], slot: int) -> float:
        us = super().call(held, slot)
        if slot in self.wrong:
            self.guessed[held[slot]] = False
        return us


class FakeSeat(Seat):
    """A seat whose process is a rule."""

    def __init__(self, kernel: Kernel, clock: list[float], rng: random.Random, between: object) -> None:
        self.held: dict[int, str] = {}
        self.kernel, self.clock, self.rng = kernel, clock, rng
        machine = SimpleNamespace(between=between)
        self.memory = cast(Any, SimpleNamespace(
            slots=3, machine=machine, fill_inputs=self.fill, put_weights=self.put_weights, same_outputs=self.right, outputs=int,
        ))  # fmt: skip
        self._call_us = math.inf
        self.later: dict[int, dict[str, str]] = {}

    def fill(self, slot: int, inputs: dict[str, str]) -> None:
        self.held[slot] = inputs["x"]

    def put_weights(self, weights: dict[str, str]) -> None:
        self.kernel.weights = weights.get("w", self.kernel.weights)

    def ready(self, slot: int, timeout_s: float) -> None:
        pass

    def stage(self, inputs: Any, held: Any, timeout_s: float) -> None:
        self.later = dict(inputs)
        for slot, known in held.items():
            self.fill(slot, known)

    def right(self, slot: int, expected: object) -> bool:
        return slot not in self.kernel.wrong

    def turn(self, slots: Any, mode: str, timeout_s: float) -> list[float]:
        kernel, took_us = self.kernel, []
        kernel.coin, kernel.calls = self.rng.random(), 0
        kernel.turn_begins()
        for slot in slots:
            if mode == "cold":
                kernel.cold_call_comes()
            else:
                kernel.calls += 1
                kernel.call(self.held, slot)
            if new := self.later.pop(slot, None):
                self._put(slot, new)
            kernel.calls += 1
            us = kernel.call(self.held, slot)
            took_us.append(us + kernel.noise_us(us, self.rng, first=not took_us))
        self.clock[0] += 0.0005 + (sum(took_us) + 100 * len(slots)) * 1e-6
        self._call_us = statistics.median(took_us)
        return took_us


class Rival:
    """A baseline that takes as long as an honest kernel."""

    def __init__(self, seat: FakeSeat) -> None:
        self.seat = seat

    def run(self, mode: str) -> list[float]:
        return self.seat.turn(self.seat.next_turn(0), mode, 5.0)


def meetings_for(seconds: dict[str, float]) -> dict[str, Meeting]:
    unseen = {mode: [Unseen(cast(Any, {"x": f"unseen {n}, {mode}", "w": f"{n}, {mode}"}), {}) for n in range(12)] for mode in seconds}
    return {mode: Meeting(unseen[mode], s) for mode, s in seconds.items()}


Sides = Callable[..., tuple[TimedCandidate, Rival]]


@pytest.fixture
def sides(monkeypatch: pytest.MonkeyPatch) -> Sides:
    """A kernel and its rival, ready to race; a clock that only they move, and chance that comes from a seed."""
    clock = [0.0]
    for module in (timed, timing):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def made(kernel: Kernel, rng: random.Random, meetings: dict[str, Meeting], *, cpu: bool) -> tuple[TimedCandidate, Rival]:
        monkeypatch.setattr(timed.secrets, "randbits", rng.getrandbits)
        monkeypatch.setattr(timed.secrets, "randbelow", rng.randrange)
        clock[0] += 0.1
        seat, other = (FakeSeat(k, clock, rng, None if cpu else {}) for k in (kernel, Kernel()))
        other.held = dict.fromkeys(range(3), "")

        def compare(loaded: object, slot: int, case: object) -> tuple[list[object], dict[str, object]]:
            if slot in kernel.wrong:
                raise Failure(timed.Status.MISMATCH, "wrong")
            return [], {}

        cases = SimpleNamespace(alike=lambda unseen, slot: slot not in kernel.wrong)
        candidate = SimpleNamespace(
            shop=SimpleNamespace(machine=SimpleNamespace(seals=cpu), cases=cases), call_limit_s=5.0, compare=compare, untouched=lambda *_: None,
            fill=lambda loaded, slot, case: seat.fill(slot, case.placed_inputs),
        )  # fmt: skip
        loaded = SimpleNamespace(seat=seat, build=SimpleNamespace(plan=SimpleNamespace(nondeterministic=False)))
        known = [Known(f"case {n}") for n in range(3)]
        return TimedCandidate(cast(Candidate, candidate), cast(Loaded, loaded), known, meetings), Rival(other)

    return made


@pytest.fixture
def raced(sides: Sides) -> Callable[..., Race]:
    def judged(kernel: Kernel, seed: int, *, cpu: bool = False) -> Race:
        seconds = {"cold": 0.6, "warm": 0.21}
        entrant, rival = sides(kernel, random.Random(seed), meetings_for(seconds), cpu=cpu)
        races = [race(entrant, rival, mode, seconds=s, ready=entrant.met_enough) for mode, s in seconds.items()]
        entrant.computes()
        return max(races, key=lambda r: r.speedup.mid)

    return judged


def test_honest_kernels_pass(raced: Callable[[Kernel, int], Race]) -> None:
    for seed in range(TRIES):
        assert raced(Kernel(), seed).speedup.mid == pytest.approx(1.0, rel=0.01)


class OnANoisyGpu(Kernel):
    """A jitter of 5 %, a first call of a turn that wakes up, and now and then something else."""

    us, warm = 4.0, True

    def turn_begins(self) -> None:
        self.warm = True

    def cold_call_comes(self) -> None:
        self.warm = False

    def call(self, held: dict[int, str], slot: int) -> float:
        return self.us

    def noise_us(self, us: float, rng: random.Random, *, first: bool) -> float:
        return us * max(-0.2, rng.gauss(0, 0.05)) + first * rng.uniform(0, 12 if self.warm else 2) + (rng.random() < 1 / 30) * rng.uniform(10, 40)


class DependsOnTheData(OnANoisyGpu):
    """One of three inputs takes three times as long."""

    def call(self, held: dict[int, str], slot: int) -> float:
        return 300.0 if held[slot].endswith("1") else 100.0


class LongOnANoisyGpu(OnANoisyGpu):
    us = 200.0


class OnABusyCpu(Kernel):
    """One call in five takes 1.5 to 4 times as long."""

    def noise_us(self, us: float, rng: random.Random, *, first: bool) -> float:
        return us * (max(-0.2, rng.gauss(0, 0.05)) + (rng.random() < 0.2) * rng.uniform(0.5, 3))


@pytest.mark.parametrize(("kernel", "cpu"), [(OnANoisyGpu, False), (LongOnANoisyGpu, False), (DependsOnTheData, False), (OnABusyCpu, True)])
def test_noise_accuses_nobody(raced: Callable[..., Race], kernel: type[Kernel], cpu: bool) -> None:
    for seed in range(2 * TRIES):
        raced(kernel(), seed, cpu=cpu)


def accepted(raced: Callable[..., Race], cheat: type[Kernel], *, cpu: bool) -> int:
    """How often a clearly false time is. Who computes in more than half of its calls has no false time."""
    found = 0
    for seed in range(TRIES):
        try:
            found += raced(cheat(), seed, cpu=cpu).speedup.mid > 1.25
        except Failure as failure:
            assert failure.status in (timed.Status.CHEATING, timed.Status.MISMATCH)
    return found


CHEATS = [
    Remembers, RemembersWhatItMadeOfTheWeights, RemembersTheCallBefore, RemembersWhenWarm, IsWary, TossesACoin, IsWaryAndTosses, HasPhases, Guesses,
    ComputesThenGuesses, GuessesSome, GuessesAtFirstSight,
]  # fmt: skip
OF_TURNS = [WorksAhead, WorksAheadWhenCold, RemembersWithinATurn, RemembersTheCallBeforeLateInATurn, IsWaryOfTurns]


@pytest.mark.parametrize("cheat", [*CHEATS, *OF_TURNS])
def test_kernels_that_keep_something_do_not(raced: Callable[..., Race], cheat: type[Kernel]) -> None:
    assert accepted(raced, cheat, cpu=False) == 0


@pytest.mark.parametrize("cheat", CHEATS)
def test_nor_on_a_cpu(raced: Callable[..., Race], cheat: type[Kernel]) -> None:
    assert accepted(raced, cheat, cpu=True) == 0


@pytest.mark.parametrize(("kernel", "caught"), [(OnABusyCpu, 0), (Remembers, TRIES), (TossesACoin, TRIES), (Guesses, TRIES)])
def test_starts_of_one_kernel_share_what_is_unseen(sides: Sides, kernel: type[Kernel], caught: int) -> None:
    found = 0
    for seed in range(TRIES):
        rng, meetings = random.Random(seed), meetings_for({"cold": 3.0})

        def start() -> Race:
            entrant, rival = sides(kernel(), rng, meetings, cpu=True)  # noqa: B023 - called in this round only
            found = race(entrant, rival, "cold", seconds=START_S)
            entrant.computes()
            return found

        try:
            assert race_anew(start, seconds=3.0).starts >= 9
        except Failure:
            found += 1
    assert found == caught


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
