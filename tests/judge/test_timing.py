"""The interval and the race, on made-up times: nothing here depends on a clock but the budget."""

import math
import random
from collections.abc import Iterator

import pytest

from evokernel.judge.timing import FEW_BLOCKS, MIN_BLOCKS, MIN_STARTS, Race, median_interval, quantile, race, race_anew


class Scripted:
    """An entrant with times from a generator."""

    def __init__(self, times: Iterator[float], each: int = 1) -> None:
        self.times, self.each = times, each

    def run(self, mode: str) -> list[float]:
        return [next(self.times) for _ in range(self.each)]


def noisy(level: float, spread: float, seed: int) -> Iterator[float]:
    rng = random.Random(seed)
    while True:
        yield level * (1 + spread * abs(rng.gauss(0, 1)))


def test_the_interval_covers_the_median_as_often_as_it_says() -> None:
    rng = random.Random(5)
    for count in (8, 15, 40):
        missed = 0
        for _ in range(2000):
            interval = median_interval([rng.lognormvariate(0, 1) for _ in range(count)])
            missed += not interval.low <= 1.0 <= interval.high
        assert missed <= 36, (count, missed)  # 1 % of 2000, and what chance adds at 99.97 %


def test_too_few_values_give_an_open_interval() -> None:
    interval = median_interval([1.0, 2.0, 3.0])
    assert (interval.low, interval.mid, interval.high) == (0.0, 2.0, math.inf)
    assert median_interval([float(i) for i in range(8)]).low == 0.0


def test_the_interval_narrows_with_more_values() -> None:
    rng = random.Random(1)
    few, many = ([rng.gauss(1, 0.1) for _ in range(n)] for n in (10, 400))
    wide, narrow = median_interval(few), median_interval(many)
    assert narrow.high - narrow.low < (wide.high - wide.low) / 2


@pytest.mark.parametrize("ratio", [0.7, 1.0, 1.05, 3.0])
def test_a_race_finds_the_ratio(ratio: float) -> None:
    result = race(Scripted(noisy(100, 0.02, 1)), Scripted(noisy(100 * ratio, 0.02, 2)), "cold", seconds=0.2)
    assert result.speedup.low <= ratio * 1.01 and ratio * 0.99 <= result.speedup.high
    assert result.speedup.mid == pytest.approx(ratio, rel=0.02)


def test_drift_that_hits_both_sides_alike_cancels() -> None:
    clock = {"now": 1.0}

    def drifting(level: float) -> Iterator[float]:
        while True:
            clock["now"] *= 1.004
            yield level * clock["now"]

    result = race(Scripted(drifting(100)), Scripted(drifting(150)), "cold", seconds=0.01)
    assert result.speedup.mid == pytest.approx(1.5, rel=0.001)


def test_steady_times_end_the_race_at_once() -> None:
    candidate = Scripted(iter(lambda: 10.0, None))
    result = race(candidate, Scripted(iter(lambda: 20.0, None)), "cold", seconds=60)
    assert result.speedup.mid == 2.0 and 2 * MIN_BLOCKS < len(result.candidate_us) <= 3 * MIN_BLOCKS  # a quarter more than the fewest


def test_a_lost_race_ends_early_and_claims_nothing() -> None:
    candidate = Scripted(iter(lambda: 100.0, None))
    result = race(candidate, Scripted(iter(lambda: 20.0, None)), "cold", seconds=60, out_of_race_us=50)
    assert len(result.candidate_us) < 2 * MIN_BLOCKS
    assert result.speedup.low == 0.0


def test_a_race_whose_time_is_up_goes_on_until_it_may_end_but_not_for_ever() -> None:
    asked: list[str] = []

    def ready_at_last(mode: str) -> bool:
        asked.append(mode)
        return len(asked) > 20

    steady = Scripted(iter(lambda: 10.0, None))
    assert race(steady, steady, "warm", seconds=1e-9, ready=lambda _: False).blocks == FEW_BLOCKS
    waited = race(steady, steady, "warm", seconds=0.5, ready=ready_at_last)
    assert waited.blocks >= MIN_BLOCKS + 20 and set(asked) == {"warm"}


def test_one_slow_call_does_not_move_the_result() -> None:
    def hiccup() -> Iterator[float]:
        for n in range(10**6):
            yield 5000.0 if n == 7 else 100.0

    result = race(Scripted(hiccup()), Scripted(noisy(120, 0.001, 3)), "cold", seconds=0.05)
    assert result.speedup.mid == pytest.approx(1.2, rel=0.01)


def test_the_first_of_several_calls_may_be_slow() -> None:
    def waking(level: float) -> Iterator[float]:
        while True:
            yield from (level + 8.0, level, level * 1.01)

    result = race(Scripted(waking(20.0), 3), Scripted(waking(30.0), 3), "cold", seconds=60)
    assert result.speedup.mid == pytest.approx(1.5, rel=0.001)
    assert len(result.candidate_us) == len(result.baseline_us) == 6 * result.blocks


def test_where_buffers_lie_is_in_the_interval_of_many_starts_and_in_no_other() -> None:
    rng = random.Random(3)

    def start() -> Race:
        place = rng.gauss(1, 0.03)
        return race(Scripted(noisy(100 * place, 0.02, rng.getrandbits(32))), Scripted(noisy(100, 0.02, rng.getrandbits(32))), "cold", seconds=0.01)

    single = [start().speedup for _ in range(60)]
    anew = [race_anew(start, seconds=0.0) for _ in range(60)]
    assert all(r.starts == MIN_STARTS and r.blocks >= MIN_STARTS * FEW_BLOCKS for r in anew)
    assert sum(not s.low <= 1 <= s.high for s in single) > 15
    assert sum(not r.speedup.low <= 1 <= r.speedup.high for r in anew) <= 3
    assert len(anew[0].candidate_us) == 2 * anew[0].blocks


def test_quantiles() -> None:
    assert [quantile([3.0, 1.0, 2.0], q) for q in (0.0, 0.5, 1.0)] == [1.0, 2.0, 3.0]
