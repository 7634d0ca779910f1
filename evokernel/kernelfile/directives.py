"""What the lines of a plan say, one frozen record a directive; expressions are still unevaluated."""

from __future__ import annotations

from dataclasses import dataclass

from ..records import Number
from .expressions import Expression
from .located import Place, Span


@dataclass(frozen=True)
class Tune:
    """`@tune NAME = default in v1 v2 ...`. All values have one type. `default_span` is where the default stands."""

    name: str
    default: Number
    values: tuple[Number, ...]
    default_span: Span
    place: Place


@dataclass(frozen=True)
class Const:
    """`@const NAME = EXPR`."""

    name: str
    value: Expression
    place: Place


@dataclass(frozen=True)
class Require:
    """`@require EXPR`."""

    condition: Expression
    place: Place


@dataclass(frozen=True)
class Memory:
    """`@scratch NAME dtype [dims] zero` and `@persist NAME dtype [dims]`; `kind` is the directive's word."""

    name: str
    kind: str
    dtype: str
    dims: tuple[Expression, ...]
    zero: bool
    place: Place


@dataclass(frozen=True)
class FillLine:
    """`@fill NAME value`."""

    name: Span
    value: Expression
    place: Place


@dataclass(frozen=True)
class Shape:
    """What stands between `<<<` and `>>>`: one to three expressions for grid and block, bytes of shared memory, launch keys."""

    grid: tuple[Expression, ...]
    block: tuple[Expression, ...]
    smem: Expression | None
    cluster: tuple[Expression, ...] | None
    cooperative: Expression | None
    pdl: Expression | None


@dataclass(frozen=True)
class LaunchLine:
    """`@launch` and `@prepare launch`. `shape` is None for `cpp`."""

    kernel: Span
    template: tuple[Expression, ...] | None
    shape: Shape | None
    args: tuple[Expression, ...]
    condition: Expression | None
    prepare: bool
    place: Place


@dataclass(frozen=True)
class CallLine:
    """`@call` and `@prepare call`; `kwargs` are (name, value)."""

    result: Span
    op: Span
    args: tuple[Expression, ...]
    kwargs: tuple[tuple[Span, Expression], ...]
    condition: Expression | None
    prepare: bool
    place: Place


@dataclass(frozen=True)
class Flags:
    """`@flags name name=value ...`."""

    flags: tuple[Span, ...]
    place: Place


@dataclass(frozen=True)
class Nondeterministic:
    """`@nondeterministic`."""

    place: Place


Directive = Tune | Const | Require | Memory | FillLine | LaunchLine | CallLine | Flags | Nondeterministic
