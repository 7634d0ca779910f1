"""Recombine: the faster parent's text with some of its tunables at the other parent's values."""

from __future__ import annotations

import random

from ..errors import UsageError
from ..kernelfile import KernelFileError, parse, space, with_defaults
from ..records import Config, Number, Reply
from . import Answering, OperatorContext


class Recombine:
    """Crosses the defaults of the tunables that both parents declare; only configurations that the text's own @require lines allow."""

    def run(self, context: OperatorContext) -> Answering:
        if len(context.parents) < 2:
            raise UsageError("recombine needs two parents")
        yield from ()
        better, other = sorted(context.parents[:2], key=lambda p: -p.verdict.fitness)
        try:
            parsed, mate = parse(better.kernel), parse(other.kernel)
            allowed = list(space(parsed, context.task.signature, context.device))
        except KernelFileError as error:
            return Reply(None, f"cannot recombine: {error}")
        own: Config = {t.name: t.default for t in parsed.tunables}
        theirs: Config = {t.name: t.default for t in mate.tunables}
        crossed = [c for c in allowed if _is_cross(c, own, theirs)]
        if not crossed:
            return Reply(None, f"no tunable of {other.kernel.id} gives {better.kernel.id} an allowed configuration that it has not")
        config = random.Random(f"recombine:{context.seed}").choice(crossed)
        changed = ", ".join(f"{n}={config[n]!r}" for n in config if config[n] != own[n])
        return Reply(with_defaults(better.kernel.text, config), f"{better.kernel.id} with {changed} of {other.kernel.id}")


def _is_cross(config: Config, own: Config, theirs: Config) -> bool:
    def parents_of(name: str) -> tuple[Number | None, ...]:
        return own[name], theirs.get(name, own[name])

    return config != own and all(value in parents_of(name) for name, value in config.items())
