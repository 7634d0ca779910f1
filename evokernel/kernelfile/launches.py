"""The shape and the template arguments of a launch, as numbers and C++ text."""

from __future__ import annotations

import math
import re

from ..records import Device
from .directives import LaunchLine
from .expressions import LAUNCH_SHAPE, Expression, Names, integer, number
from .located import KernelFileError
from .steps import Grid

_MAX_GRID, _MAX_BLOCK, _MAX_THREADS, _MAX_CLUSTER = (2**31 - 1, 65535, 65535), (1024, 1024, 64), 1024, 8


def template_text(arguments: tuple[Expression, ...] | None, names: Names) -> str:
    """`<4, float>`: an argument is evaluated when it is an expression of known names, and C++ text otherwise; "" without arguments.

    Raises:
        KernelFileError: not a template argument.
    """
    if arguments is None:
        return ""
    return f"<{', '.join(_template_argument(a, names) for a in arguments)}>"


def _template_argument(argument: Expression, names: Names) -> str:
    text = argument.span.text
    if not re.fullmatch(r"[\w\s:<>,*&.+/%()\[\]=!-]+", text):
        raise argument.error("this cannot be a template argument: write an integer expression or a C++ type")
    if text in ("true", "false") or not _is_expression(argument, names):
        return text
    value = number(argument, names, fixed="a template argument")
    if isinstance(value, float):
        raise argument.error(f"{value!r}: template arguments are integers, bools or types; use int(...) or an @const in the code")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_expression(argument: Expression, names: Names) -> bool:
    try:
        names_read = argument.names
    except KernelFileError:
        return False
    return names_read <= {*names.values, *names.scalars, "device"}


def launch_shape(line: LaunchLine, names: Names, device: Device) -> Grid:
    """The `cuda` launch shape within the device's limits.

    Raises:
        KernelFileError: grid, block, shared memory or cluster out of bounds.
    """
    shape = line.shape
    assert shape is not None
    grid = _triple(shape.grid, names, _MAX_GRID, "grid")
    block = _triple(shape.block, names, _MAX_BLOCK, "block")
    if math.prod(block) > _MAX_THREADS:
        raise shape.block[0].error(f"a block of {' x '.join(map(str, block))} has {math.prod(block)} threads; at most {_MAX_THREADS}")
    smem = integer(shape.smem, names, fixed=LAUNCH_SHAPE) if shape.smem else 0
    if shape.smem and not 0 <= smem <= device.smem_per_block:
        raise shape.smem.error(f"{smem} bytes of shared memory; {device.name} gives 0 to {device.smem_per_block} to a block")
    cluster = _triple(shape.cluster, names, (_MAX_CLUSTER,) * 3, "cluster") if shape.cluster else None
    if shape.cluster and cluster and (math.prod(cluster) > _MAX_CLUSTER or any(g % c for g, c in zip(grid, cluster, strict=True))):
        raise shape.cluster[0].error(f"a cluster has at most {_MAX_CLUSTER} blocks and divides the grid {grid}")
    cooperative = bool(number(shape.cooperative, names, fixed=LAUNCH_SHAPE)) if shape.cooperative else False
    pdl = bool(number(shape.pdl, names, fixed=LAUNCH_SHAPE)) if shape.pdl else False
    return Grid(grid, block, smem, cluster, cooperative, pdl)


def _triple(expressions: tuple[Expression, ...], names: Names, limits: tuple[int, int, int], what: str) -> tuple[int, int, int]:
    values = [integer(e, names, fixed=LAUNCH_SHAPE) for e in expressions]
    for value, limit, expression in zip(values, limits, expressions, strict=False):
        if not 1 <= value <= limit:
            hint = "; guard the launch with `if`" if value == 0 else ""
            raise expression.error(f"a {what} dimension here is 1 to {limit}, not {value}{hint}")
    x, y, z = (*values, 1, 1)[:3]
    return x, y, z
