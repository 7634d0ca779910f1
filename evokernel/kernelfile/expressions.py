"""The expressions of a plan: Python syntax, evaluated by a small walker over the syntax tree with bounded size and magnitude.

A value is a number (int, float, bool) or a `Tensor`; tensors have attributes but no arithmetic. Nothing is ever executed.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ..records import ITEMSIZE_BYTES, Device, Number, Scalar, contiguous_stride
from .located import KernelFileError, Span, suggest

MAX_LENGTH, MAX_DEPTH, MAX_INTEGER = 2000, 50, 1 << 63
LAUNCH_SHAPE = "a launch shape"
DEVICE_ATTRIBUTES = ("sm_count", "max_threads_per_sm", "regs_per_sm", "smem_per_block", "l2_bytes")
TENSOR_ATTRIBUTES = ("shape", "stride", "numel", "ndim", "itemsize", "contiguous")


@dataclass(frozen=True)
class Tensor:
    """What a plan knows of a tensor or buffer. `kind` is a `Role` value, or scratch or persist. `stride` in elements."""

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        return ITEMSIZE_BYTES[self.dtype]

    @property
    def contiguous(self) -> bool:
        return self.stride == contiguous_stride(self.shape) or self.numel <= 1


Value = Number | Tensor


@dataclass(frozen=True)
class Expression:
    """One expression of a plan line: its place and its syntax tree."""

    span: Span

    @cached_property
    def tree(self) -> ast.expr:
        """Raises: KernelFileError: not an expression, or too large a one."""
        text = self.span.text
        if not text:
            raise self.span.error("an expression is missing here")
        if len(text) > MAX_LENGTH:
            raise self.span.error(f"the expression is over {MAX_LENGTH} characters; split it with @const")
        if glued := _GLUED.search(text):  # Python would warn on standard error
            raise self.span.error("not an expression: numbers are decimal and end before the next word; no backslashes", glued.start())
        try:
            tree = ast.parse(f"({text}\n)", mode="eval").body
        except SyntaxError as error:
            raise self.span.error(f"not an expression ({error.msg}); plan expressions use Python syntax", _column(text, error)) from None
        except (ValueError, MemoryError, RecursionError):
            raise self.span.error("the expression is nested too deeply; split it with @const") from None
        return tree

    @cached_property
    def names(self) -> frozenset[str]:
        """The names it reads; functions it calls are not among them."""
        called = {id(n.func) for n in ast.walk(self.tree) if isinstance(n, ast.Call)}
        return frozenset(n.id for n in ast.walk(self.tree) if isinstance(n, ast.Name) and id(n) not in called)

    def error(self, message: str, node: ast.expr | None = None) -> KernelFileError:
        if node is None or node.lineno != 1:
            return self.span.error(message)
        prefix = f"({self.span.text}".encode()[: node.col_offset].decode("utf-8", "ignore")
        return self.span.error(message, max(0, len(prefix) - 1))


_GLUED = re.compile(r"\\|(?<![\w.])(?>(?:\d[\d.]*|\.\d+)(?:[eE][+-]?\d+)?)[A-Za-z_]")


def _column(text: str, error: SyntaxError) -> int:
    return min(max((error.offset or 2) - 2, 0), max(len(text) - 1, 0)) if error.lineno == 1 else max(len(text) - 1, 0)


@dataclass(frozen=True)
class Names:
    """Everything an expression may name. `varying`: scalars that the task draws anew for each call."""

    values: dict[str, Value]
    scalars: dict[str, Scalar] = field(default_factory=dict)
    varying: frozenset[str] = frozenset()
    device: Device | None = None

    def known(self) -> Collection[str]:
        return {*self.values, *self.scalars, "device", *FUNCTIONS}


def evaluate(expression: Expression, names: Names, *, fixed: str = "") -> Value:
    """The value of an expression: a number or a tensor.

    `fixed` names a place whose value must be the same for every call ("a constant", "a size"): scalars that vary are refused there.

    Raises:
        KernelFileError: an unknown name, a value that does not fit, or a number out of bounds.
    """
    return _Walker(expression, names, fixed).value(expression.tree, 0)


def number(expression: Expression, names: Names, *, fixed: str = "") -> Number:
    """As `evaluate`, for places where only a number fits."""
    value = evaluate(expression, names, fixed=fixed)
    if isinstance(value, Tensor):
        raise expression.error(f"{value.name} is a tensor and a number is needed here: {value.name}.numel, {value.name}.shape[0] ...")
    return value


def integer(expression: Expression, names: Names, *, fixed: str = "") -> int:
    """As `evaluate`, for places where only an integer fits."""
    value = number(expression, names, fixed=fixed)
    if isinstance(value, float):
        raise expression.error(f"{value!r} is not an integer; use // or int(...)")
    return int(value)


_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}  # fmt: skip
_COMPARE: dict[type[ast.cmpop], Callable[[Number, Number], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip


def _integers(*values: Number) -> tuple[int, ...]:
    if any(isinstance(v, float) for v in values):
        raise ValueError("takes integers")
    return tuple(int(v) for v in values)


def cdiv(a: Number, b: Number) -> int:
    """Quotient rounded up, of integers."""
    a, b = _integers(a, b)
    return -(-a // b)


def next_pow2(n: Number) -> int:
    """The smallest power of two that is at least n (1 for n <= 1)."""
    (n,) = _integers(n)
    return 1 << max(n - 1, 0).bit_length()


def ilog2(n: Number) -> int:
    """Floor of the logarithm to base two, n >= 1."""
    (n,) = _integers(n)
    if n < 1:
        raise ValueError("takes an integer of at least 1")
    return n.bit_length() - 1


FUNCTIONS: Mapping[str, tuple[Callable[..., Number], int, int]] = {  # function, fewest and most arguments
    "min": (min, 2, 16), "max": (max, 2, 16), "cdiv": (cdiv, 2, 2), "next_pow2": (next_pow2, 1, 1), "ilog2": (ilog2, 1, 1),
    "int": (int, 1, 1), "float": (float, 1, 1),
}  # fmt: skip
_SPELLED = {  # what other languages call for it
    "numel": "x.numel", "size": "x.shape[0] or x.numel", "len": "x.shape[0]", "dim": "x.ndim", "stride": "x.stride[0]",
    "is_contiguous": "x.contiguous", "data_ptr": "x, the tensor itself", "dim3": "(2, 3), a tuple", "ceil": "cdiv(a, b)",
    "ceildiv": "cdiv(a, b)", "ceil_div": "cdiv(a, b)",
}  # fmt: skip


@dataclass
class _Walker:
    expression: Expression
    names: Names
    fixed: str

    def value(self, node: ast.expr, depth: int) -> Value:
        if depth > MAX_DEPTH:
            raise self.expression.error("the expression is nested too deeply; split it with @const", node)
        if isinstance(node, ast.Name):
            return self._name(node)
        if isinstance(node, ast.Constant):
            return self._bounded(node.value, node)
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Subscript):
            return self._subscript(node, depth)
        return self._compound(node, depth)

    def _compound(self, node: ast.expr, depth: int) -> Number:
        match node:
            case ast.BinOp(left, op, right) if type(op) in _BINARY:
                return self._binary(node, op, self._number(left, depth), self._number(right, depth))
            case ast.UnaryOp(ast.USub(), operand):
                return self._bounded(-self._number(operand, depth), node)
            case ast.UnaryOp(ast.UAdd(), operand):
                return +self._number(operand, depth)
            case ast.UnaryOp(ast.Not(), operand):
                return not self._number(operand, depth)
            case ast.BoolOp(op, values):
                stop = isinstance(op, ast.Or)
                return any(self._number(v, depth) for v in values) if stop else all(self._number(v, depth) for v in values)
            case ast.Compare():
                return self._compare(node, depth)
            case ast.IfExp(test, body, orelse):
                return self._number(body if self._number(test, depth) else orelse, depth)
            case ast.Call():
                return self._call(node, depth)
        raise self.expression.error("this is not part of the expression language: numbers, names, + - * // / % **, comparisons, and or not, "
                                    f"`a if c else b`, {' '.join(FUNCTIONS)}", node)  # fmt: skip

    def _number(self, node: ast.expr, depth: int) -> Number:
        value = self.value(node, depth + 1)
        if isinstance(value, Tensor):
            raise self.expression.error(f"{value.name} is a tensor here; use {value.name}.numel, {value.name}.shape[0] ...", node)
        return value

    def _name(self, node: ast.Name) -> Value:
        if node.id in self.names.varying and self.fixed:
            message = f"{node.id} is drawn anew for each call, so it cannot be part of {self.fixed}; pass it as a launch argument"
            raise self.expression.error(message, node)
        if node.id in self.names.values:
            return self.names.values[node.id]
        if node.id in self.names.scalars:
            value = self.names.scalars[node.id]
            if value is None or isinstance(value, str):
                raise self.expression.error(f"{node.id} is {value!r} in this task; a plan holds numbers only, so write the code for this value", node)
            return self._bounded(value, node)
        raise self.expression.error(f"unknown name {node.id!r}; {suggest(node.id, self.names.known())}", node)

    def _attribute(self, node: ast.Attribute) -> Number:
        if isinstance(node.value, ast.Name) and node.value.id == "device" and self.names.device is not None:
            if node.attr not in DEVICE_ATTRIBUTES:
                raise self.expression.error(f"a device has no {node.attr!r}; {suggest(node.attr, DEVICE_ATTRIBUTES)}", node)
            return int(getattr(self.names.device, node.attr))
        tensor = self._tensor(node.value, node.attr)
        if node.attr in ("shape", "stride"):
            raise self.expression.error(f"{tensor.name}.{node.attr} needs an index: {tensor.name}.{node.attr}[0]", node)
        return int(getattr(tensor, node.attr)) if node.attr != "contiguous" else tensor.contiguous

    def _tensor(self, node: ast.expr, attribute: str) -> Tensor:
        tensor = self._name(node) if isinstance(node, ast.Name) else None
        if not isinstance(tensor, Tensor):
            raise self.expression.error("only tensors and `device` have attributes", node)
        if attribute not in TENSOR_ATTRIBUTES:
            raise self.expression.error(f"a tensor has no {attribute!r} in a plan; {suggest(attribute, TENSOR_ATTRIBUTES)}", node)
        return tensor

    def _subscript(self, node: ast.Subscript, depth: int) -> Number:
        if not (isinstance(node.value, ast.Attribute) and node.value.attr in ("shape", "stride")):
            hint = f"; {suggest(node.value.attr, ('shape', 'stride'))}" if isinstance(node.value, ast.Attribute) else ""
            raise self.expression.error(f"only t.shape[i] and t.stride[i] take an index{hint}", node)
        tensor = self._tensor(node.value.value, node.value.attr)
        index = self._number(node.slice, depth)
        entries: tuple[int, ...] = getattr(tensor, node.value.attr)
        if not isinstance(index, int) or not -len(entries) <= index < len(entries):
            raise self.expression.error(f"{tensor.name} has {tensor.ndim} dimension(s), shape {list(tensor.shape)}: no index {index}", node)
        return entries[index]

    def _compare(self, node: ast.Compare, depth: int) -> bool:
        left = self._number(node.left, depth)
        for op, comparator in zip(node.ops, node.comparators, strict=True):
            right = self._number(comparator, depth)
            if type(op) not in _COMPARE:
                raise self.expression.error("only == != < <= > >= compare in a plan", node)
            if not _COMPARE[type(op)](left, right):
                return False
            left = right
        return True

    def _binary(self, node: ast.expr, op: ast.operator, left: Number, right: Number) -> Number:
        if isinstance(op, ast.Pow) and (abs(right) > 64 or (left < 0 and isinstance(right, float))):
            raise self.expression.error("exponents go up to 64, and a negative base takes integers only", node)
        try:
            return self._bounded(_BINARY[type(op)](left, right), node)
        except ZeroDivisionError:
            raise self.expression.error("division by zero", node) from None
        except OverflowError:
            raise self.expression.error("the number is too large", node) from None

    def _call(self, node: ast.Call, depth: int) -> Number:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name == "occupancy":
            return self._occupancy(node, depth)
        if name not in FUNCTIONS:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else name
            hint = f"in a plan that is {_SPELLED[called]}" if called in _SPELLED else suggest(name, FUNCTIONS)
            raise self.expression.error(f"unknown function {name or ast.unparse(node.func)[:40]!r}; {hint}", node)
        function, fewest, most = FUNCTIONS[name]
        if node.keywords or not fewest <= len(node.args) <= most:
            raise self.expression.error(f"{name} takes {fewest if fewest == most else f'{fewest} to {most}'} argument(s)", node)
        arguments = [self._number(a, depth) for a in node.args]
        try:
            return self._bounded(function(*arguments), node)
        except (ValueError, OverflowError, ZeroDivisionError) as error:
            raise self.expression.error(f"{name}({', '.join(map(repr, arguments))}): {error}", node) from None

    def _occupancy(self, node: ast.Call, depth: int) -> int:
        """Blocks per multiprocessor that threads and shared memory allow (registers are known to the compiler only)."""
        device = self.names.device
        if device is None or device.target != "cuda" or self.fixed not in ("", LAUNCH_SHAPE) or len(node.args) != 3 or node.keywords:
            raise self.expression.error("occupancy(kernel, block, smem) stands in the grid, block or `if` of a `cuda` launch only", node)
        threads, smem = _integers(self._number(node.args[1], depth), self._number(node.args[2], depth))
        if not 1 <= threads <= 1024:
            raise self.expression.error(f"a block has 1 to 1024 threads, not {threads}", node)
        by_smem = device.smem_per_block // smem if smem > 0 else 32
        return max(min(device.max_threads_per_sm // threads, by_smem, 32), 0)

    def _bounded(self, value: object, node: ast.expr) -> Number:
        if not isinstance(value, (bool, int, float)):
            raise self.expression.error(f"{str(value)[:40]!r} is not a number", node)
        if isinstance(value, int) and not -MAX_INTEGER <= value < MAX_INTEGER:
            raise self.expression.error("the integer does not fit in 64 bits", node)
        return value
