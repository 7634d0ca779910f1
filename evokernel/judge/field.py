"""The field a candidate races in: times of all baselines, and live processes of the fastest."""

from __future__ import annotations

from ..errors import JudgeError
from .baselines import FROZEN, Baseline, measure, read_cached, write_cached
from .contestant import Failure
from .memory import SLOTS, TaskMemory
from .workshop import Workshop

_CLOSE = 1.25  # baselines this near to the fastest are raced too: which is the fastest is then measured, not remembered


class Field:
    """Baselines of one task on one device. Times are cached in a file; processes live as long as the judge.

    Args:
        score: the mode that counts, cold or warm.
        names: the baselines to use.

    Attributes:
        times_us: median microseconds by baseline and mode.
        failed: why a baseline does not exist here, by name.
    """

    def __init__(self, shop: Workshop, score: str, names: tuple[str, ...]) -> None:
        self.shop = shop
        self.score = score
        self._names = names
        self._cached = read_cached(shop.baseline_cache)
        self.times_us = {n: t for n, t in self._cached.items() if n in (*names, FROZEN)}
        self.failed: dict[str, str] = {}
        self._live: dict[str, Baseline] = {}

    def start(self) -> None:
        """Start the processes that will be needed, without waiting for them: all baselines, or the fastest where the times are known."""
        known = all(n in self.times_us for n in self._names)
        self._open_all(self._front(self._names) if known else self._names)

    def settle(self) -> None:
        """Wait for what was started, measure what is not known, keep the fastest alive.

        Raises:
            JudgeError: not even eager runs.
        """
        self._collect()
        if not self._live:  # what was the fastest does not run any more
            self._open_all(tuple(n for n in self._names if n not in self.failed))
            self._collect()
        if not self._live:
            raise JudgeError(f"no baseline runs here: {'; '.join(f'{n}: {why}' for n, why in self.failed.items())}")
        self._measure_new()
        front = self._front(tuple(self._live))
        for name in [n for n in self._live if n not in front]:
            self._live.pop(name).close()

    def rivals(self, *, prepares: bool) -> list[Baseline]:
        """The live baselines that are the fastest or close to it. One with frozen weights counts only against kernels that prepare weights, and
        starts with the first of them."""
        wanted = prepares and "compile" in self._names
        if wanted and FROZEN not in self._live and FROZEN not in self.failed:
            self._open_all((FROZEN,))
            self._collect()
            self._measure_new()
        return [self._live[n] for n in self._front(tuple(n for n in self._live if prepares or n != FROZEN))]

    def names(self, *, prepares: bool) -> list[str]:
        """All baselines with a time that a candidate is compared with."""
        return [n for n in self.times_us if prepares or n != FROZEN]

    def close(self) -> None:
        for baseline in self._live.values():
            baseline.close()

    def _front(self, names: tuple[str, ...]) -> tuple[str, ...]:
        fastest = min(self.times_us[n][self.score] for n in names)
        return tuple(n for n in names if self.times_us[n][self.score] <= _CLOSE * fastest)

    def _open_all(self, names: tuple[str, ...]) -> None:
        self._live.update({name: self.another(name) for name in names})

    def another(self, name: str) -> Baseline:
        """One more process of a baseline, on buffers of its own, not waited for; to be closed."""
        shop = self.shop
        memory = TaskMemory(shop.machine, shop.loaded.task.signature, sealed=False, slots=SLOTS)
        return Baseline(name, shop.zygote, shop.loaded.task.path, memory, shop.cases.timed(), shop.environ)

    def _collect(self) -> None:
        for name, baseline in list(self._live.items()):
            try:
                baseline.wait()
            except Failure as failure:
                self.failed[name] = failure.message
                self._live.pop(name).close()

    def _measure_new(self) -> None:
        new = {n: b for n, b in self._live.items() if n not in self.times_us}
        if new:
            self.times_us.update(measure(new))
            write_cached(self.shop.baseline_cache, self._cached | self.times_us)
