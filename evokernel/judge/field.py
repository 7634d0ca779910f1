"""The field a candidate races in: times of all baselines, and a live process of the fastest."""

from __future__ import annotations

from ..errors import JudgeError
from .baselines import FROZEN, Baseline, measure, read_cached, write_cached
from .contestant import Failure
from .memory import SLOTS, TaskMemory
from .workshop import Workshop


class Field:
    """Baselines of one task on one device. Times are cached in a file; processes live as long as the judge.

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
        known = [n for n in self._names if n in self.times_us]
        for name in [self._fastest(tuple(known))] if len(known) == len(self._names) else self._names:
            self._live[name] = self._open(name)

    def settle(self) -> None:
        """Wait for what was started, measure what is not known, keep the fastest alive.

        Raises:
            JudgeError: not even eager runs.
        """
        self._collect()
        unknown = {n: b for n, b in self._live.items() if n not in self.times_us}
        if unknown:
            self._record(unknown)
        if not self.times_us or not self._live:
            raise JudgeError(f"no baseline runs here: {'; '.join(f'{n}: {why}' for n, why in self.failed.items())}")
        keep = self._fastest(tuple(n for n in self._live if n != FROZEN))
        for name in [n for n in self._live if n not in (keep, FROZEN)]:
            self._live.pop(name).close()

    def rival(self, *, prepares: bool) -> Baseline:
        """The fastest baseline, live. One with frozen weights counts only against kernels that prepare weights, and starts with the first."""
        if prepares and FROZEN not in self._live and FROZEN not in self.failed:
            self._live[FROZEN] = self._open(FROZEN)
            self._collect()
            if FROZEN in self._live and FROZEN not in self.times_us:
                self._record({FROZEN: self._live[FROZEN]})
        return self._live[self._fastest(tuple(n for n in self._live if prepares or n != FROZEN))]

    def names(self, *, prepares: bool) -> list[str]:
        """All baselines with a time that a candidate is compared with."""
        return [n for n in self.times_us if prepares or n != FROZEN]

    def close(self) -> None:
        for baseline in self._live.values():
            baseline.close()

    def _fastest(self, names: tuple[str, ...]) -> str:
        return min(names, key=lambda n: self.times_us[n][self.score])

    def _open(self, name: str) -> Baseline:
        shop = self.shop
        memory = TaskMemory(shop.loaded.task.signature, sealed=False, slots=SLOTS, flush=shop.flush)
        return Baseline(name, shop.zygote, shop.loaded.task.path, memory, shop.cases.timed(), shop.environ)

    def _collect(self) -> None:
        for name, baseline in list(self._live.items()):
            try:
                baseline.wait()
            except Failure as failure:
                self.failed[name] = failure.message
                self._live.pop(name).close()

    def _record(self, unknown: dict[str, Baseline]) -> None:
        self.times_us.update(measure(unknown))
        write_cached(self.shop.baseline_cache, self._cached | self.times_us)
