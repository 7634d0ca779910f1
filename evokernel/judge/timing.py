"""Times and speedups: paired blocks, and an interval that assumes nothing about the noise.

A block is candidate, baseline, baseline, candidate (ABBA), one call each or on a GPU a turn of them, and gives two ratios baseline / candidate of
neighbours, one in each order, so that drift cancels. The speedup is the median of the ratios; its interval comes from order statistics (the sign test
turned round: Thompson 1936, Ann. Math. Stat. 7, 122), exact for independent ratios of any distribution.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..records import Interval

CONFIDENCE = 0.99
_PAIRED = 0.995  # the two ratios of a block are not quite independent: with a correlation of 0.3 this covers as often as CONFIDENCE says
MIN_BLOCKS = 8  # of two ratios; an interval at _PAIRED needs nine (from min to max: 1 - 2 * 0.5**9), and with 16 one outlier does not matter
STOP_WIDTH = 0.01
_WARM_UP, _WARM_UP_S = 3, 0.02  # calls of each side before the first block, as pages are mapped when they are touched; after so long, no more
FEW_BLOCKS = 3  # enough to see that a candidate is out of the race
_LOOKS = 32
_AFTER_NARROW = 1.25  # blocks are added once the interval is narrow: stopping at that moment would favour lucky ones (1.2 to 1.8 % wrong, not 1)
MIN_STARTS = 9  # the fewest that have an interval at CONFIDENCE
START_S = 0.1  # a race's time in each
OVERTIME = 5  # times the budget after which even fewer than MIN_BLOCKS must do, ready or not


class Entrant(Protocol):
    """One side of a race."""

    def run(self, mode: str) -> list[float]:
        """Prepare the next slots for `mode` (cold or warm), run the calls of one turn on them, and return the microseconds of each call alone."""


@dataclass(frozen=True)
class Race:
    """The result of racing two entrants: all call times in microseconds, in order, the ratio baseline / candidate, and how many blocks counted or
    were void. `starts`: of how many races in fresh processes it is made."""

    candidate_us: tuple[float, ...]
    baseline_us: tuple[float, ...]
    speedup: Interval
    blocks: int
    void_blocks: int = 0
    starts: int = 1


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Median of independent values with a distribution-free interval of at least `confidence`.

    With fewer than eight values no such interval exists at 99 %; it is then (0, median, inf).
    """
    ordered = sorted(values)
    n = len(ordered)
    middle = statistics.median(ordered)
    # How many values at each end may be left out: the binomial tail in whole numbers, since 0.5**n has no float for many values.
    ways = most = 1
    allowed, rank = int((1 - confidence) / 2 * 1e9) * 2**n // 10**9, -1
    while ways <= allowed:
        rank += 1
        most = most * (n - rank) // (rank + 1)
        ways += most
    if rank < 0:
        return Interval(0.0, middle, math.inf)
    return Interval(ordered[rank], middle, ordered[n - 1 - rank])


def race(
    candidate: Entrant, baseline: Entrant, mode: str, *, seconds: float, out_of_race_us: float = math.inf, steady: Callable[[], bool] = lambda: True,
    placement: float = 0.0, ready: Callable[[str], bool] = lambda _: True,
) -> Race:
    """Race until the time is up or the interval has become 1 % wide, and `ready` says so; the candidate is clearly out of the race; or five times
    the time is up.

    Args:
        seconds: budget of wall time, everything between the calls included.
        out_of_race_us: stop early once the candidate's median is above this.
        placement: how far, as a ratio, the places of two processes' buffers in memory move their times; the interval is that much wider.
        ready: whether a race in this mode may end.
        steady: whether nothing has disturbed the device since it was asked last; blocks that were disturbed are void, as long as half are not.
    """
    a_us: list[float] = []
    b_us: list[float] = []
    ratios: list[float] = []
    start = time.monotonic()
    for _ in range(_WARM_UP):
        calls = [len(entrant.run(mode)) for entrant in (candidate, baseline)]
        if min(calls) >= _WARM_UP or time.monotonic() - start > _WARM_UP_S:
            break
    start = time.monotonic()
    blocks, void, enough = 0, 0, math.inf
    steady()
    while True:
        block = [e.run(mode) for e in (candidate, baseline, baseline, candidate)]
        if not steady() and void <= blocks:
            void += 1
            continue
        blocks += 1
        for mine, theirs in ((block[0], block[1]), (block[3], block[2])):
            a_us += mine
            b_us += theirs
            ratios.append(statistics.median(theirs) / statistics.median(mine))
        if blocks % max(1, blocks // _LOOKS):
            continue  # the interval of many blocks changes little from one to the next
        found = median_interval(ratios, _PAIRED)
        speedup = Interval(found.low / (1 + placement), found.mid, found.high * (1 + placement))
        used = time.monotonic() - start
        may_end = blocks >= MIN_BLOCKS and ready(mode)
        narrow = may_end and speedup.high - speedup.low <= STOP_WIDTH * speedup.mid
        lost = blocks >= FEW_BLOCKS and (statistics.median(a_us) > out_of_race_us or used > OVERTIME * seconds)
        if narrow:
            enough = min(enough, _AFTER_NARROW * blocks)
        if lost or blocks >= enough or (may_end and used >= seconds):
            return Race(tuple(a_us), tuple(b_us), speedup, blocks, void)


def race_anew(once: Callable[[], Race], *, seconds: float) -> Race:
    """Many short races, each in processes and on buffers of its own. Where those come to lie in memory moves a ratio by several per cent on some
    machines, and all blocks of a race alike: each start is one observation here, its median.

    Args:
        once: starts both sides and races them for `START_S`.
        seconds: budget of wall time, with the starts; MIN_STARTS are made in any case.
    """
    begin, races = time.monotonic(), list[Race]()
    while len(races) < MIN_STARTS or time.monotonic() - begin < seconds:
        races.append(once())
    return Race(
        tuple(us for r in races for us in r.candidate_us), tuple(us for r in races for us in r.baseline_us),
        median_interval([r.speedup.mid for r in races]), sum(r.blocks for r in races), sum(r.void_blocks for r in races), len(races),
    )  # fmt: skip


def uneven(turns: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The median call of turns, and how much longer than it the slowest call of a turn takes; both medians over turns, in microseconds."""
    middle = statistics.median(statistics.median(turn) for turn in turns)
    return middle, statistics.median(max(turn) for turn in turns) - middle


def first_over_again(turns: Sequence[Sequence[float]], slots: int, more_us: float = 0.0, *, begin: int = 0) -> float:
    """How many times as long as their repetitions the first calls on the slots of a turn take together, as the median over turns; 1 where no turn has
    any. `more_us` longer is nothing; calls before the one numbered `begin` are left out."""
    ratios = [(statistics.fmean(turn[begin:slots]) - more_us) / statistics.median(turn[slots:]) for turn in turns if len(turn) > slots]
    return statistics.median(ratios) if ratios else 1.0


def quantile(values: Sequence[float], q: float) -> float:
    """The value at fraction `q` of the sorted values, by nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(q * (len(ordered) - 1))))]
