"""The space that @tune and @require open, and a kernel file with other defaults."""

from __future__ import annotations

import math
import random

from ..records import Config, Device, Signature, config_key, digest
from .constants import literal
from .located import KernelFileError, suggest
from .parse import KernelFile, parse_tune
from .plan import admits
from .scan import plan_lines

MAX_CONFIGURATIONS = 4096


def space(parsed: KernelFile, signature: Signature, device: Device) -> list[Config]:
    """All configurations whose @require lines hold, the default first; of more than 4096 a fixed sample of that many is looked at.

    Raises:
        KernelFileError: no configuration meets the @require lines, or one of them cannot be evaluated.
    """
    sizes = [len(t.values) for t in parsed.tunables]
    total = math.prod(sizes)
    numbers = range(total)
    if total > MAX_CONFIGURATIONS:
        rng = random.Random(digest("space", parsed.kernel.id))
        numbers = sorted(rng.sample(range(total), MAX_CONFIGURATIONS))  # type: ignore[assignment]
    default: Config = {t.name: t.default for t in parsed.tunables}
    others = [c for c in (_configuration(parsed, n) for n in numbers) if config_key(c) != config_key(default)]
    found = [c for c in (default, *others[: MAX_CONFIGURATIONS - 1]) if admits(parsed, signature, device, c)]
    if not found:
        raise KernelFileError("no configuration meets the @require lines for this task; change the values of @tune or the conditions")
    return found


def _configuration(parsed: KernelFile, index: int) -> Config:
    config: Config = {}
    for tune in reversed(parsed.tunables):
        index, digit = divmod(index, len(tune.values))
        config[tune.name] = tune.values[digit]
    return {t.name: config[t.name] for t in parsed.tunables}


def with_defaults(text: str, config: Config) -> str:
    """The same kernel file with the defaults of its @tune lines set to `config`.

    Raises:
        KernelFileError: a name that is no tunable, or a value that is not listed.
    """
    lines = text.split("\n")
    tunes = {t.name: t for t in (parse_tune(line) for line in plan_lines(text) if line.word == "tune")}
    for name, value in config.items():
        if name not in tunes:
            raise KernelFileError(f"the kernel has no tunable {name!r}; {suggest(name, tunes)}")
        tune = tunes[name]
        if value not in tune.values:
            raise tune.place.error(f"{name} = {value!r} is not among its values {' '.join(literal(v) for v in tune.values)}")
        place, old = tune.default_span.place(), tune.default_span.text
        line = lines[place.line - 1]
        lines[place.line - 1] = line[: place.column - 1] + literal(type(tune.default)(value)) + line[place.column - 1 + len(old) :]
    return "\n".join(lines)
