"""`@call`: the fixed list of vendor-library steps, their arguments, and the shapes of their results (torch's semantics)."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..records import FLOATING, Number, contiguous_stride
from .directives import CallLine
from .expressions import Expression, Names, Tensor, evaluate, integer
from .located import suggest
from .steps import Keyword, View

Shape = tuple[int, ...]
Argument = View | Number | tuple[int, ...] | None
PRECISIONS = ("strict", "tf32", "reduced")


class Misfit(Exception):
    """The arguments of an operation do not fit together."""


@dataclass(frozen=True)
class Op:
    """One operation: its parameters in order, how many are needed, and the shape of its result.

    `tensors` are the parameters that take a tensor; `result` gets their shapes and the other arguments by name.
    """

    parameters: tuple[str, ...]
    needed: int
    tensors: tuple[str, ...]
    result: Callable[[Mapping[str, Shape], Mapping[str, Argument]], Shape]


def _need(condition: bool, message: str) -> None:
    if not condition:
        raise Misfit(message)


def _mm(t: Mapping[str, Shape], _: Mapping[str, Argument], first: str = "input", second: str = "mat2") -> Shape:
    a, b = t[first], t[second]
    _need(len(a) == len(b) == 2, f"two matrices are needed, not shapes {list(a)} and {list(b)}")
    _need(a[1] == b[0], f"{list(a)} times {list(b)}: {a[1]} and {b[0]} differ")
    return a[0], b[1]


def _bmm(t: Mapping[str, Shape], _: Mapping[str, Argument], first: str = "input", second: str = "mat2") -> Shape:
    a, b = t[first], t[second]
    _need(len(a) == len(b) == 3 and a[0] == b[0], f"two batches of matrices of one length are needed, not shapes {list(a)} and {list(b)}")
    _need(a[2] == b[1], f"{list(a)} times {list(b)}: {a[2]} and {b[1]} differ")
    return a[0], a[1], b[2]


def _addmm(t: Mapping[str, Shape], o: Mapping[str, Argument]) -> Shape:
    return _broadcast(t["input"], _mm(t, o, "mat1", "mat2"))


def _baddbmm(t: Mapping[str, Shape], o: Mapping[str, Argument]) -> Shape:
    return _broadcast(t["input"], _bmm(t, o, "batch1", "batch2"))


def _broadcast(added: Shape, result: Shape) -> Shape:
    fits = len(added) <= len(result) and all(a in (1, r) for a, r in zip(added[::-1], result[::-1], strict=False))
    _need(fits, f"{list(added)} cannot be added to {list(result)}")
    return result


def _linear(t: Mapping[str, Shape], _: Mapping[str, Argument]) -> Shape:
    x, w, b = t["input"], t["weight"], t.get("bias")
    _need(len(w) == 2 and len(x) >= 1, f"linear takes an input and a matrix as weight, not shapes {list(x)} and {list(w)}")
    _need(x[-1] == w[1], f"the input's last dimension {x[-1]} is not the weight's second {w[1]}")
    _need(b is None or b == (w[0],), f"the bias has shape {list(b or ())}, not [{w[0]}]")
    return *x[:-1], w[0]


def _spread(value: Argument, rank: int, name: str, default: int) -> Shape:
    if value is None:
        return (default,) * rank
    values = (value,) * rank if isinstance(value, int) else value
    _need(isinstance(values, tuple) and len(values) in (1, rank), f"{name} is an integer or a tuple of {rank}")
    assert isinstance(values, tuple)
    return values if len(values) == rank else values * rank


def _settings(o: Mapping[str, Argument], rank: int) -> tuple[Shape, Shape, Shape, int]:
    stride = _spread(o.get("stride"), rank, "stride", 1)
    padding, dilation = _spread(o.get("padding"), rank, "padding", 0), _spread(o.get("dilation"), rank, "dilation", 1)
    groups = o.get("groups", 1)
    _need(isinstance(groups, int) and groups >= 1, "groups is a positive integer")
    _need(min(stride) >= 1 and min(dilation) >= 1 and min(padding) >= 0, "stride and dilation are at least 1, padding at least 0")
    assert isinstance(groups, int)
    return stride, padding, dilation, groups


def _conv_ranks(t: Mapping[str, Shape], rank: int) -> tuple[Shape, Shape]:
    x, w = t["input"], t["weight"]
    _need(len(w) == rank + 2 and len(x) in (rank + 1, rank + 2), f"conv{rank}d takes an input of {rank + 2} and a weight of {rank + 2} dimensions, "
          f"not shapes {list(x)} and {list(w)}")  # fmt: skip
    return x, w


def _conv(rank: int) -> Callable[[Mapping[str, Shape], Mapping[str, Argument]], Shape]:
    def result(t: Mapping[str, Shape], o: Mapping[str, Argument]) -> Shape:
        x, w = _conv_ranks(t, rank)
        stride, padding, dilation, groups = _settings(o, rank)
        channels = x[-rank - 1]
        _need(channels == w[1] * groups, f"the input has {channels} channels, the weight {list(w)} with groups={groups} takes {w[1] * groups}")
        _need(w[0] % groups == 0, f"{w[0]} output channels cannot be split into {groups} groups")
        _need(t.get("bias", (w[0],)) == (w[0],), f"the bias must have shape [{w[0]}]")
        sizes = tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in zip(x[-rank:], w[2:], stride, padding, dilation, strict=True))
        _need(min(sizes) >= 1, f"the kernel {list(w[2:])} is larger than the padded input {list(x[-rank:])}")
        return *x[: -rank - 1], w[0], *sizes

    return result


def _conv_transpose(rank: int) -> Callable[[Mapping[str, Shape], Mapping[str, Argument]], Shape]:
    def result(t: Mapping[str, Shape], o: Mapping[str, Argument]) -> Shape:
        x, w = _conv_ranks(t, rank)
        stride, padding, dilation, groups = _settings(o, rank)
        extra = _spread(o.get("output_padding"), rank, "output_padding", 0)
        channels = x[-rank - 1]
        _need(channels == w[0] and channels % groups == 0, f"the input has {channels} channels, the weight takes {w[0]}, in {groups} group(s)")
        _need(t.get("bias", (w[1] * groups,)) == (w[1] * groups,), f"the bias must have shape [{w[1] * groups}]")
        _need(all(0 <= e < max(s, d) for e, s, d in zip(extra, stride, dilation, strict=True)), "output_padding is smaller than stride or dilation")
        sizes = tuple(
            (n - 1) * s - 2 * p + d * (k - 1) + e + 1 for n, k, s, p, d, e in zip(x[-rank:], w[2:], stride, padding, dilation, extra, strict=True)
        )
        _need(min(sizes) >= 1, f"the result would have shape {list(sizes)}")
        return *x[: -rank - 1], w[1] * groups, *sizes

    return result


_CONV = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_CONV_T = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
OPS: dict[str, Op] = {
    "mm": Op(("input", "mat2"), 2, ("input", "mat2"), _mm),
    "bmm": Op(("input", "mat2"), 2, ("input", "mat2"), _bmm),
    "addmm": Op(("input", "mat1", "mat2", "beta", "alpha"), 3, ("input", "mat1", "mat2"), _addmm),
    "baddbmm": Op(("input", "batch1", "batch2", "beta", "alpha"), 3, ("input", "batch1", "batch2"), _baddbmm),
    "linear": Op(("input", "weight", "bias"), 2, ("input", "weight", "bias"), _linear),
    **{f"conv{r}d": Op(_CONV, 2, ("input", "weight", "bias"), _conv(r)) for r in (1, 2, 3)},
    **{f"conv_transpose{r}d": Op(_CONV_T, 2, ("input", "weight", "bias"), _conv_transpose(r)) for r in (1, 2, 3)},
}
_PER_CALL = ("alpha", "beta")  # factors that may be scalars which vary


@dataclass(frozen=True)
class VendorCall:
    """A `@call` with its arguments evaluated and the shape and dtype of its result."""

    op: str
    args: tuple[Argument, ...]
    kwargs: tuple[Keyword, ...]
    precision: str
    dtype: str
    shape: Shape

    @property
    def tensors(self) -> tuple[str, ...]:
        return tuple(v.tensor for v in (*self.args, *(k.value for k in self.kwargs)) if isinstance(v, View))


def vendor_call(line: CallLine, names: Names) -> VendorCall:
    """Evaluate the arguments of a `@call` and infer its result.

    Raises:
        KernelFileError: unknown operation or argument, or shapes that do not fit.
    """
    op = OPS.get(line.op.text)
    if op is None:
        raise line.op.error(f"unknown operation {line.op.text!r}; {suggest(line.op.text, OPS)}")
    given, precision = _bind(line, op)
    missing = [p for p in op.parameters[: op.needed] if p not in given]
    if missing:
        raise line.op.error(f"{line.op.text} needs {', '.join(missing)}; its arguments are {', '.join(op.parameters)}")
    per_call = () if line.prepare else _PER_CALL
    values = {name: _argument(name, expression, op, names, per_call) for name, expression in given.items()}
    tensors = {name: _view_of(given[name], names)[1] for name in op.tensors if isinstance(values.get(name), View)}
    dtypes = sorted({t.dtype for t in tensors.values()})
    if len(dtypes) != 1 or dtypes[0] not in FLOATING:
        raise line.op.error(f"{line.op.text} takes floating tensors of one dtype, not {' and '.join(dtypes)}")
    try:
        shape = op.result({n: t.shape for n, t in tensors.items()}, {n: v for n, v in values.items() if n not in op.tensors})
    except Misfit as error:
        raise line.op.error(f"{line.op.text}: {error}") from None
    args = tuple(values[p] for p in op.parameters[: len(line.args)])
    kwargs = tuple(Keyword(name.text, values[name.text]) for name, _ in line.kwargs if name.text != "precision")
    return VendorCall(line.op.text, args, kwargs, precision, dtypes[0], shape)


def _bind(line: CallLine, op: Op) -> tuple[dict[str, Expression], str]:
    """The arguments by parameter name, and the precision asked for."""
    if len(line.args) > len(op.parameters):
        raise line.op.error(f"{line.op.text} takes at most {len(op.parameters)} arguments: {', '.join(op.parameters)}")
    given, precision = dict(zip(op.parameters, line.args, strict=False)), ""
    for name, expression in line.kwargs:
        if name.text == "precision":
            precision = expression.span.text.strip("'\"")
            if precision not in PRECISIONS:
                raise expression.error(f"precision is one of {', '.join(PRECISIONS)}")
        elif name.text not in op.parameters or name.text in given:
            hint = suggest(name.text, (*op.parameters, "precision"))
            raise name.error(f"{line.op.text} has no argument {name.text!r} or it is given twice; {hint}")
        else:
            given[name.text] = expression
    return given, precision


def _argument(name: str, expression: Expression, op: Op, names: Names, per_call: tuple[str, ...]) -> Argument:
    if isinstance(expression.tree, ast.Constant) and expression.tree.value is None:
        if name in op.parameters[: op.needed]:
            raise expression.error(f"{name} is needed")
        return None
    if name in op.tensors:
        return _view_of(expression, names)[0]
    if isinstance(expression.tree, (ast.Tuple, ast.List)):
        return tuple(_integer_node(expression, node, names) for node in expression.tree.elts)
    value = evaluate(expression, names, fixed="" if name in per_call else "the geometry of a call")
    if isinstance(value, Tensor) or (isinstance(value, float) and name not in _PER_CALL):
        raise expression.error(f"{name} takes {'a number' if name in _PER_CALL else 'an integer or a tuple of integers'}")
    return value


def _integer_node(expression: Expression, node: ast.expr, names: Names) -> int:
    start = len(f"({expression.span.text}".encode()[: node.col_offset].decode()) - 1
    end = len(f"({expression.span.text}".encode()[: node.end_col_offset].decode()) - 1
    return integer(Expression(expression.span.cut(start, end)), names, fixed="the geometry of a call")


def _view_of(expression: Expression, names: Names) -> tuple[View, Tensor]:
    """`x`, `x.T`, `x.mT`, `x.view(8, -1)` and chains of them: the view and what it makes of the tensor."""
    chain: list[ast.Attribute | ast.Call] = []
    node = expression.tree
    while isinstance(node, (ast.Attribute, ast.Call)):
        chain.append(node)
        node = node.func if isinstance(node, ast.Call) else node.value
    tensor = names.values.get(node.id) if isinstance(node, ast.Name) else None
    if not isinstance(tensor, Tensor):
        known = [n for n, v in names.values.items() if isinstance(v, Tensor)]
        raise expression.error(f"a tensor or a view of one (x, x.T, x.mT, x.view(...)) is needed here; {suggest(expression.span.text, known)}", node)
    views: list[tuple[str | int, ...]] = []
    calls = {id(c.func): c for c in chain if isinstance(c, ast.Call)}
    name = tensor.name
    for item in reversed([c for c in chain if isinstance(c, ast.Attribute)]):
        call = calls.get(id(item))
        if item.attr in ("T", "mT") and call is None:
            tensor = _transposed(expression, item, tensor)
            views.append((item.attr,))
        elif item.attr == "view" and call is not None and not call.keywords:
            tensor = _viewed(expression, item, tensor, tuple(_integer_node(expression, a, names) for a in call.args))
            views.append(("view", *tensor.shape))
        else:
            raise expression.error("the views of a tensor are .T, .mT and .view(...)", item)
    return View(name, tuple(views)), tensor


def _transposed(expression: Expression, node: ast.Attribute, t: Tensor) -> Tensor:
    if (node.attr == "T" and t.ndim != 2) or t.ndim < 2:
        raise expression.error(f".{node.attr} needs {'a matrix' if node.attr == 'T' else 'at least two dimensions'}, shape is {list(t.shape)}", node)
    shape, stride = (*t.shape[:-2], t.shape[-1], t.shape[-2]), (*t.stride[:-2], t.stride[-1], t.stride[-2])
    return Tensor(t.name, t.kind, t.dtype, shape, stride)


def _viewed(expression: Expression, node: ast.Attribute, t: Tensor, sizes: Shape) -> Tensor:
    known = 1
    for size in sizes:
        known *= size if size != -1 else 1
    if sizes.count(-1) > 1 or any(s < -1 for s in sizes) or (-1 in sizes and (known == 0 or t.numel % known)):
        raise expression.error(f"a tensor of shape {list(t.shape)} cannot be viewed as {list(sizes)}", node)
    shape = tuple(t.numel // known if s == -1 else s for s in sizes)
    if -1 not in sizes and known != t.numel:
        raise expression.error(f"a tensor of shape {list(t.shape)} has {t.numel} elements, {list(sizes)} has {known}", node)
    if not t.contiguous:
        raise expression.error(f"view needs contiguous memory, but {t.name} has stride {list(t.stride)} here; view first, then transpose", node)
    return Tensor(t.name, t.kind, t.dtype, shape, contiguous_stride(shape))


