"""Tunables and constants: a configuration's values, and the `constexpr` definitions that replace their plan lines."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..records import Config, Number
from .directives import Const, Tune
from .located import KernelFileError, Place, suggest
from .parse import KernelFile

_FLOAT_MAX = 3.4028234663852886e38


def checked_config(parsed: KernelFile, config: Config) -> Config:
    """The full configuration: given values where there are some, defaults elsewhere.

    Raises:
        KernelFileError: a name that is no tunable, or a value that is not listed.
    """
    tunables = {t.name: t for t in parsed.tunables}
    for name, value in config.items():
        if name not in tunables:
            raise KernelFileError(f"the kernel has no tunable {name!r}; {suggest(name, tunables)}")
        tune = tunables[name]
        if not any(v == value and isinstance(v, bool) == isinstance(value, bool) for v in tune.values):
            raise tune.place.error(f"{name} = {value!r} is not among its values {' '.join(literal(v) for v in tune.values)}")
    return {t.name: type(t.default)(config.get(t.name, t.default)) for t in parsed.tunables}


def literal(value: Number) -> str:
    """A number as plan lines write it."""
    return str(value).lower() if isinstance(value, bool) else repr(value)


def constant_text(name: str, value: Number, place: Place) -> str:
    """`constexpr int NAME = 4;`. Raises: KernelFileError: not a value that a constant can hold."""
    if isinstance(value, bool):
        return f"constexpr bool {name} = {literal(value)};"
    if isinstance(value, int):
        if -(1 << 31) <= value < 1 << 31:
            return f"constexpr int {name} = {value if value > -(1 << 31) else '-2147483647 - 1'};"
        return f"constexpr long long {name} = {f'{value}LL' if value > -(1 << 63) else '-9223372036854775807LL - 1'};"
    if not math.isfinite(value) or abs(value) > _FLOAT_MAX:
        raise place.error(f"{name} = {value!r} does not fit in a float")
    return f"constexpr float {name} = {value!r}f;"


def replace_lines(parsed: KernelFile, values: Mapping[str, Number]) -> str:
    """The file's text with each constant's definition in place of its own line; all other lines stay where they are."""
    lines = parsed.text.split("\n")
    for directive in parsed.directives:
        if isinstance(directive, (Tune, Const)):
            lines[directive.place.line - 1] = constant_text(directive.name, values[directive.name], directive.place)
    return "\n".join(lines)
