"""Resolving a parsed kernel file for one task signature, device and configuration: every expression becomes a number."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ..records import ITEMSIZE_BYTES, Config, Device, Number, Role, Scalar, Signature, contiguous_stride
from .constants import checked_config, constant_text, replace_lines
from .directives import CallLine, Const, FillLine, Flags, LaunchLine, Memory, Nondeterministic, Require, Tune
from .expressions import Expression, Names, Tensor, Value, evaluate, integer, number
from .launches import launch_shape, template_text
from .located import Place, suggest
from .parse import KernelFile
from .steps import Arg, Buffer, Call, Fill, Launch, Plan, Step
from .vendor import vendor_call

MAX_STEPS, MAX_SCRATCH_BYTES = 64, 64 << 30
_OUTPUTS = (Role.OUTPUT.value, Role.STATE.value)
_PREPARE = "weight preparation"
_WEIGHTS = (Role.PARAMETER.value, Role.BUFFER.value, Role.ATTRIBUTE.value, "persist")


def resolve(
    parsed: KernelFile, signature: Signature, device: Device, config: Config | None = None, scalars: dict[str, Scalar] | None = None
) -> Plan:
    """The plan of a kernel file for one task.

    `config` leaves out what keeps its default; `scalars` are the values of this very call (the signature's own when None).

    Raises:
        KernelFileError: a name, size, shape or argument does not fit, a @require is false, or an output is never written.
    """
    resolver = Resolver(parsed, signature, device, checked_config(parsed, config or {}), scalars)
    for directive in parsed.directives:
        resolver.take(directive)
    return resolver.plan()


def admits(parsed: KernelFile, signature: Signature, device: Device, config: Config) -> bool:
    """Whether all @require lines hold in a configuration.

    Raises:
        KernelFileError: a declaration or condition cannot be evaluated.
    """
    resolver = Resolver(parsed, signature, device, checked_config(parsed, config), None)
    for directive in parsed.directives:
        if isinstance(directive, Require):
            if not resolver.holds(directive):
                return False
        elif isinstance(directive, (Tune, Const, Memory, CallLine)):
            resolver.take(directive)
    return True


@dataclass
class Resolver:
    """Walks the directives in file order; a name can be used once it has been declared above."""

    parsed: KernelFile
    signature: Signature
    device: Device
    config: Config
    scalars: dict[str, Scalar] | None
    values: dict[str, Value] = field(default_factory=dict)
    buffers: list[Buffer] = field(default_factory=list)
    prepare: list[Step] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    constants: dict[str, Number] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    nondeterministic: bool = False

    def __post_init__(self) -> None:
        for t in self.signature.tensors:
            self.values[t.name] = Tensor(t.name, t.role.value, t.dtype, t.shape, t.stride)
        given = {s.name: s.value for s in self.signature.scalars}
        self.names = Names(
            self.values,
            given | {k: v for k, v in (self.scalars or {}).items() if k in given},
            frozenset(s.name for s in self.signature.scalars if s.varies),
            self.device,
        )
        self.task_names = frozenset({*self.values, *given})
        self.changed = {t.path for t in self.signature.of_role(Role.STATE)}

    def take(self, directive: object) -> None:
        """Raises: KernelFileError."""
        match directive:
            case Tune(name):
                self._define(name, self.config[name], directive.place)
            case Const(name, value):
                self._define(name, number(value, self.names, fixed="a constant"), directive.place)
            case Require():
                self._require(directive)
            case Memory():
                self._memory(directive)
            case LaunchLine():
                self._launch(directive)
            case CallLine():
                self._call(directive)
            case FillLine():
                self._fill(directive)
            case Flags(flags):
                self.flags += tuple(f.text for f in flags)
            case Nondeterministic():
                self.nondeterministic = True

    def _declare(self, name: str, value: Value, place: Place) -> None:
        if name in self.task_names:
            raise place.error(f"{name!r} is already a name of the task; choose another one for the plan")
        if name in self.values:
            raise place.error(f"{name!r} is already declared above; choose another name")
        self.values[name] = value

    def _define(self, name: str, value: Number, place: Place) -> None:
        self._declare(name, value, place)
        constant_text(name, value, place)
        self.constants[name] = value

    def holds(self, directive: Require) -> bool:
        return bool(number(directive.condition, self.names, fixed="a @require"))

    def _require(self, directive: Require) -> None:
        if not self.holds(directive):
            read = {n: self.values.get(n) for n in sorted(directive.condition.names)}
            shown = ", ".join(f"{n} = {v}" for n, v in read.items() if isinstance(v, (int, float)))
            raise directive.condition.error(f"this @require is false for this task{f' ({shown})' if shown else ''}; choose values for which it holds")

    def _memory(self, directive: Memory) -> None:
        shape = tuple(integer(d, self.names, fixed="a size") for d in directive.dims)
        for size, dim in zip(shape, directive.dims, strict=True):
            if size < 0:
                raise dim.error(f"a dimension cannot be {size}")
        self._buffer(Buffer(directive.name, directive.kind, directive.dtype, shape, directive.zero), directive.place)

    def _buffer(self, buffer: Buffer, place: Place) -> None:
        self._declare(buffer.name, Tensor(buffer.name, buffer.kind, buffer.dtype, buffer.shape, buffer.stride), place)
        self.buffers.append(buffer)
        total = sum(math.prod(b.shape) * ITEMSIZE_BYTES[b.dtype] for b in self.buffers)
        if total > MAX_SCRATCH_BYTES:
            raise place.error(f"the plan's buffers take {total} bytes; at most {MAX_SCRATCH_BYTES} (64 GiB) are given")

    def _enabled(self, line: LaunchLine | CallLine) -> bool | None:
        """Whether a step runs; None when it never will for this task, so that it can be left out."""
        condition = line.condition
        if condition is None:
            return True
        value = bool(number(condition, self.names, fixed=_PREPARE if line.prepare else ""))
        return value if value or condition.names & self.names.varying else None

    def _add(self, step: Step, prepare: bool, place: Place) -> None:
        (self.prepare if prepare else self.steps).append(step)
        if len(self.prepare) + len(self.steps) > MAX_STEPS:
            raise place.error(f"more than {MAX_STEPS} steps; fuse launches")

    def _readable(self, name: str, prepare: bool, place: Place) -> Tensor:
        tensor = self.values[name]
        assert isinstance(tensor, Tensor)
        if prepare and tensor.kind not in _WEIGHTS:
            message = f"{name} is {_what(tensor)}, but @prepare runs once when weights are bound: it reads parameters, buffers and @persist only"
            raise place.error(message)
        if prepare and tensor.kind == Role.BUFFER and self.signature.tensor(name).path in self.changed:
            raise place.error(f"forward changes {name}, so @prepare cannot read it; read it in a launch")
        return tensor

    def _launch(self, line: LaunchLine) -> None:
        enabled = self._enabled(line)
        if enabled is None:
            return
        function = line.kernel.text + template_text(line.template, self.names)
        grid = launch_shape(line, self.names, self.device) if line.shape else None
        args = tuple(self._arg(a, line.prepare) for a in line.args)
        self._add(Launch(function, args, line.place.line, grid, enabled), line.prepare, line.place)

    def _arg(self, expression: Expression, prepare: bool) -> Arg:
        value = evaluate(expression, self.names, fixed=_PREPARE if prepare else "")
        if not isinstance(value, Tensor):
            return Arg(value=value)
        self._readable(value.name, prepare, expression.span.place())
        return Arg(tensor=value.name, writes=value.kind in (*_OUTPUTS, "scratch") or (prepare and value.kind == "persist"))

    def _call(self, line: CallLine) -> None:
        enabled = self._enabled(line)
        if enabled is None:
            return
        call = vendor_call(line, self.names)
        for name in call.tensors:
            self._readable(name, line.prepare, line.place)
        if line.result.text in call.tensors:
            raise line.result.error(f"{line.op.text} cannot write {line.result.text} while it reads it; use another name for the result")
        self._result(line, call.dtype, call.shape)
        self._add(Call(call.op, line.result.text, call.args, call.kwargs, line.place.line, call.precision, enabled), line.prepare, line.place)

    def _result(self, line: CallLine, dtype: str, shape: tuple[int, ...]) -> None:
        """Declare the result of a call, or check the buffer or output that it is written to."""
        name, place = line.result.text, line.result.place()
        if name not in self.values:
            self._buffer(Buffer(name, "persist" if line.prepare else "scratch", dtype, shape), place)
            return
        target = self.values[name]
        wanted = ("persist",) if line.prepare else (*_OUTPUTS, "scratch")
        if not isinstance(target, Tensor) or target.kind not in wanted:
            other = "a @persist" if line.prepare else "an output or a @scratch"
            raise place.error(f"a result cannot be written to {name}; choose a new name, {other}")
        if (target.dtype, target.shape) != (dtype, shape) or target.stride != contiguous_stride(shape):
            have = f"{target.dtype} {list(target.shape)} with stride {list(target.stride)}"
            raise place.error(f"{line.op.text} gives a contiguous {dtype} {list(shape)}, but {name} is {have}; use a new name and copy in a launch")

    def _fill(self, line: FillLine) -> None:
        names = Names({**self.values, "inf": math.inf, "nan": math.nan}, self.names.scalars, self.names.varying, self.device)
        value, target = float(number(line.value, names, fixed="a fill")), self.values.get(line.name.text)
        if not isinstance(target, Tensor) or target.kind not in (*_OUTPUTS, "scratch"):
            known = [t.name for t in self.values.values() if isinstance(t, Tensor) and t.kind in (*_OUTPUTS, "scratch")]
            raise line.name.error(f"@fill takes an output or a @scratch; {suggest(line.name.text, known)}")
        if not target.dtype.startswith(("float", "bfloat")) and not value.is_integer():
            raise line.value.error(f"{target.name} is {target.dtype}: it takes an integer")
        self._add(Fill(target.name, value, line.place.line), False, line.place)

    def plan(self) -> Plan:
        """Raises: KernelFileError: an output or a persisted buffer is never written."""
        written = {a.tensor for s in (*self.prepare, *self.steps) if isinstance(s, Launch) for a in s.args if a.writes}
        written |= {s.result if isinstance(s, Call) else s.buffer for s in (*self.prepare, *self.steps) if not isinstance(s, Launch)}
        wanted = [t.name for t in self.signature.outputs if t.numel] + [b.name for b in self.buffers if b.kind == "persist"]
        missing = [name for name in wanted if name not in written]
        if missing:
            last = self.parsed.directives[-1].place if self.parsed.directives else Place(1, 1, self.parsed.text.split("\n", 1)[0])
            raise last.error(f"nothing in the plan writes {', '.join(missing)}; pass it to a launch (`// @launch ...`), a @call result or a @fill"
                             + ("" if self.steps else "; the file has no @launch line"))  # fmt: skip
        code = replace_lines(self.parsed, self.constants)
        prepare, steps = tuple(self.prepare), tuple(self.steps)
        return Plan(self.parsed.target, self.config, code, tuple(self.buffers), prepare, steps, self.flags, self.nondeterministic)


def _what(tensor: Tensor) -> str:
    return {"input": "an input", "output": "an output", "state": "an output"}.get(tensor.kind, f"{tensor.kind} memory")


