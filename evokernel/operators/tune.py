"""Tune: search over the declared tunables of one kernel: successive halving over a sample, then steps from the best to its neighbours."""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from ..errors import UsageError
from ..kernelfile import KernelFileError, parse, space, with_defaults
from ..records import Config, Kernel, Reply, Screen, config_key
from . import Answering, Batch, OperatorContext

_BATCH = 8  # keeps two compilers busy while the batch is timed
_KEPT_SHARE = 2  # each halving keeps one of two
_TABLE_LINES = 9  # with the headline ten

Measuring = Generator[Batch, list[Screen], None]


class Tune:
    """Tries configurations of the first parent within `builds` and returns its text with the best one as defaults."""

    def run(self, context: OperatorContext) -> Answering:
        if not context.parents:
            raise UsageError("tune needs a parent")
        kernel = context.parents[0].kernel
        try:
            parsed = parse(kernel)
            configs = list(space(parsed, context.task.signature, context.device))
        except KernelFileError as error:
            return Reply(None, f"{kernel.id} cannot be tuned: {error}")
        default: Config = {t.name: t.default for t in parsed.tunables}
        if len(configs) < 2:
            return Reply(None, f"{kernel.id} declares nothing to tune")
        table = Table(kernel, context.builds)
        yield from _halve(table, _sample(configs, default, context))
        yield from _descend(table, configs)
        return _reply(table, default)


@dataclass
class Table:
    """What has been screened: for each configuration the fastest time seen (us), None while none was correct.

    Configurations with the same compiled code share one row: `twin` leads from a configuration to the one that stands for it.
    """

    kernel: Kernel
    builds: int
    times_us: dict[str, float | None] = field(default_factory=dict)
    configs: dict[str, Config] = field(default_factory=dict)
    twin: dict[str, str] = field(default_factory=dict)
    codes: dict[str, str] = field(default_factory=dict)
    failure: str = ""

    def screen(self, configs: Sequence[Config]) -> Measuring:
        """Have configurations screened, new ones as far as there are builds left, in batches."""
        wanted: list[Config] = []
        for config in configs:
            key = config_key(config)
            new = key not in self.configs
            if new and len(self.configs) >= self.builds:
                continue
            self.configs[key] = config
            wanted.append(config)
        for start in range(0, len(wanted), _BATCH):
            batch = Batch(self.kernel, tuple(wanted[start : start + _BATCH]))
            for config, screen in zip(batch.configs, (yield batch), strict=True):
                self._note(config_key(config), screen)

    def _note(self, key: str, screen: Screen) -> None:
        first = self.codes.setdefault(screen.code_hash, key) if screen.code_hash else key
        self.twin[key] = first
        if screen.time_us is None:
            # Wrong once is wrong, whatever an earlier look said.
            self.times_us[first] = None
            self.failure = self.failure or f"{key}: {screen.status}: {screen.message}"
        elif first not in self.times_us:
            self.times_us[first] = screen.time_us
        elif (seen := self.times_us[first]) is not None:
            self.times_us[first] = min(seen, screen.time_us)

    def ranked(self) -> list[Config]:
        """The correct configurations, the fastest first, one for each compiled code."""
        correct = [(time, key) for key, time in self.times_us.items() if time is not None]
        return [self.configs[key] for _, key in sorted(correct)]

    def time_us(self, config: Config) -> float | None:
        key = config_key(config)
        return self.times_us.get(self.twin.get(key, key))


def _sample(configs: list[Config], default: Config, context: OperatorContext) -> list[Config]:
    """All configurations where half the builds suffice for them, otherwise the defaults and a random choice."""
    others = [c for c in configs if c != default]
    chosen = [default] if default in configs else []
    room = context.builds if len(configs) <= context.builds else context.builds // 2
    # A string seeds the same stream in every process; a tuple's hash would not.
    return (chosen + random.Random(f"tune:{context.seed}").sample(others, min(len(others), room)))[:room]


def _halve(table: Table, configs: list[Config]) -> Measuring:
    yield from table.screen(configs)
    alive = table.ranked()
    while len(alive) > 2:
        alive = alive[: -(-len(alive) // _KEPT_SHARE)]
        yield from table.screen(alive)
        still = [config_key(c) for c in alive]
        alive = [c for c in table.ranked() if config_key(c) in still]


def _descend(table: Table, configs: list[Config]) -> Measuring:
    """Go to the best neighbour while there is a better one. A neighbour differs in one tunable, by one declared value."""
    while ranked := table.ranked():
        best = ranked[0]
        fresh = [c for c in neighbours(best, configs) if config_key(c) not in table.configs]
        if not fresh or len(table.configs) >= table.builds:
            return
        yield from table.screen(fresh)
        if not table.ranked() or table.ranked()[0] == best:
            return


def neighbours(config: Config, configs: list[Config]) -> list[Config]:
    """The configurations of the space that differ from this one in one tunable, to its nearest value up or down that the space has there."""
    found: list[Config] = []
    for name, value in config.items():
        line = sorted((c[name], i) for i, c in enumerate(configs) if all(c[n] == v for n, v in config.items() if n != name))
        below = [i for v, i in line if v < value][-1:]
        above = [i for v, i in line if v > value][:1]
        found += [configs[i] for i in below + above]
    return found


def _reply(table: Table, default: Config) -> Reply:
    ranked = table.ranked()
    if not ranked:
        return Reply(None, f"none of {len(table.configs)} configurations of {table.kernel.id} is correct; {table.failure}"[:2000])
    best, before = ranked[0], table.time_us(default)
    rows = [f"{table.time_us(c)!r} us: {config_key(c)}" for c in ranked[:_TABLE_LINES]]
    note = "\n".join([f"{len(table.configs)} built, defaults {before!r} us", *rows])
    if config_key(best) == table.twin.get(config_key(default)):
        return Reply(None, f"the defaults are the best; {note}")
    return Reply(with_defaults(table.kernel.text, best), note)
