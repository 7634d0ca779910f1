"""From a task file to a LoadedTask: sizes first, then the module, its signature, and everything that makes a task impossible to judge."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

from ..codec import dumps
from ..errors import TaskError
from ..records import ITEMSIZE_BYTES, Options, Role, Scalar, ScalarSpec, Signature, Task, TensorSpec, digest
from .loaded import LoadedTask, Shape, argument_leaves, as_call, draw_arguments, forward, seeded
from .module import Slot, compact, find_slots, same_values
from .sizes import refuse_too_large, sizes_before_allocation, sizes_of
from .source import find_task, import_task, read_options, user_code
from .tree import Leaf, Names, expression, leaves, rebuild

CONSTRUCTION_SEED = 0
_PROBE_SEEDS = (11, 12, 13, 14, 15, 16, 17, 18)  # the first two also run forward
Phase = Callable[[str], None]


def load_task(path: str | Path, *, on_phase: Phase = lambda phase: None, known: bool = False) -> LoadedTask:
    """Import a task file, construct its module and take down its signature.

    Args:
        path: a Python file with `Model`, `get_inputs` and optionally `get_init_inputs`; or `DIR:level/number` (KernelBench).
        on_phase: told "import", "inputs", "init" or "forward" before that part of the user's code runs, and "judging" after draws and runs.
        known: it has been loaded before, so nobody asks whether it fits into the memory that is free now (which imports for two seconds).

    Raises:
        TaskError: the file is wrong, or (`refused`) sound but impossible to judge; the message says what would help.
    """
    file = find_task(path)
    on_phase("import")
    module = import_task(file)
    options = read_options(module, file)
    get_inputs = _function(module, "get_inputs", file)
    model_class = getattr(module, "Model", None)
    if not (isinstance(model_class, type) and issubclass(model_class, nn.Module)):
        raise TaskError(f"{file.name} defines no class `Model` that derives from torch.nn.Module; define it")
    variants = ({}, *options.shapes)
    on_phase("inputs")
    for sizes in () if known else sizes_before_allocation(module, variants):
        refuse_too_large(sizes)
    on_phase("init")
    model, call, notes = _construct(module, model_class, file)
    return _Loader(file, options, model, get_inputs, on_phase, known=known).load(variants, call, notes)


def _function(module: ModuleType, name: str, file: Path) -> Callable[..., object]:
    found = getattr(module, name, None)
    if not callable(found):
        raise TaskError(f"{file.name} defines no function `{name}`; define it to return the list of forward()'s arguments")
    return found  # type: ignore[no-any-return]


def _construct(module: ModuleType, model_class: type[nn.Module], file: Path) -> tuple[nn.Module, str, list[str]]:
    """The module, the text of its constructor call, and notes."""
    get_init = getattr(module, "get_init_inputs", None)
    with user_code("get_init_inputs()", file), seeded(CONSTRUCTION_SEED):
        args, kwargs, note = as_call(get_init() if callable(get_init) else [], "get_init_inputs()")
    with user_code("Model()", file), seeded(CONSTRUCTION_SEED):
        model = model_class(*args, **kwargs)
    bound = inspect.signature(model_class).bind(*args, **kwargs)
    shown: list[str] = []
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            shown += [repr(v) for v in value]
        elif kind is inspect.Parameter.VAR_KEYWORD:
            shown += [f"{k}={v!r}" for k, v in value.items()]
        else:
            shown.append(f"{name}={value!r}")
    return model, f"Model({', '.join(shown)})", [note] if note else []


class _Loader:
    """The state of one loading: what is fixed once the module is there."""

    def __init__(
        self, file: Path, options: Options, model: nn.Module, get_inputs: Callable[..., object], on_phase: Phase, *, known: bool
    ) -> None:
        self.file, self.options, self.model, self.get_inputs = file, options, model, get_inputs
        self.on_phase, self.known = on_phase, known
        self.notes: list[str] = []

    def load(self, variants: tuple[dict[str, Scalar], ...], call: str, notes: list[str]) -> LoadedTask:
        self._refuse_lazy()
        self._refuse_dropout()
        slots, more = find_slots(self.model, Names())
        for slot in slots:
            check_tensor(slot.get(), f"{slot.role} `{slot.path}`")
        self.notes += notes + more
        found = [self._variant(keywords, slots, call) for keywords in variants]
        shapes, signatures = tuple(f[0] for f in found), tuple(f[1] for f in found)
        structures = {(s.inputs, tuple(s.outputs), tuple(s.constants), tuple(t.name for t in g.outputs)) for s, g in found}
        if len(structures) > 1:
            raise TaskError("EVOKERNEL['shapes'] changes the structure of the inputs or outputs; it may change sizes only", refused=True)
        self._check_domains(signatures[0])
        source = self.file.read_text(encoding="utf-8", errors="replace")
        task_id = digest(source, dumps(self.options), dumps(signatures))
        task = Task(task_id, self.options.name or self.file.stem, str(self.file), source, self.options, signatures)
        loaded = LoadedTask(task, self.model, self.get_inputs, slots, shapes)
        loaded.notes += dict.fromkeys(self.notes)
        loaded._on_phase = self.on_phase
        return loaded

    def _refuse_dropout(self) -> None:
        for name, child in self.model.named_modules():
            if isinstance(child, nn.modules.dropout._DropoutNd) and child.training and child.p > 0:
                raise TaskError(
                    f"the task is stochastic: dropout `{name}` is active, so no two calls agree; call self.eval() at the end of Model.__init__, "
                    "or set p=0", refused=True,
                )  # fmt: skip

    def _refuse_lazy(self) -> None:
        for name, tensor in [*self.model.named_parameters(), *self.model.named_buffers()]:
            if isinstance(tensor, nn.parameter.UninitializedTensorMixin):
                raise TaskError(f"`{name}` has no shape yet (a lazy module): give its sizes in the constructor", refused=True)

    def _draw(self, keywords: dict[str, Scalar], seed: int) -> inspect.BoundArguments:
        arguments, note = draw_arguments(self.model, self.get_inputs, keywords, seed, str(self.file))
        if note:
            self.notes.append(note)
        return arguments

    def _variant(self, keywords: dict[str, Scalar], slots: list[Slot], call: str) -> tuple[Shape, Signature]:
        self.on_phase("inputs")
        arguments = self._draw(keywords, _PROBE_SEEDS[0])
        given = argument_leaves(arguments)
        for leaf in given:
            check_leaf(leaf, "input")
        if not self.known:
            refuse_too_large(sizes_of([f for f in given if isinstance(f.value, Tensor)], [s.get() for s in slots], []))
        result, changed = self._probe(arguments, slots)
        found = list(leaves(result, "out", "output"))
        tensors = [f for f in found if isinstance(f.value, Tensor)]
        names = Names()
        outs = [names.reserve("out" if len(found) == 1 else f"out{i}") for i in range(len(tensors))]
        inputs = tuple(names.give(leaf.name, leaf.path) for leaf in given)
        for slot in slots:
            slot.name = names.give(slot.path.replace(".", "_"), slot.path)
        states = [(slot, names.give(f"out_{slot.name}", slot.path)) for slot in slots if slot.path in changed]
        self.notes += names.renamed
        specs = [spec_of(n, Role.INPUT, f.path, f.value) for n, f in zip(inputs, given, strict=True) if isinstance(f.value, Tensor)]
        specs += [spec_of(s.name, s.role, s.path, s.get()) for s in slots]
        specs += [spec_of(n, Role.OUTPUT, f.path, f.value) for n, f in zip(outs, tensors, strict=True) if isinstance(f.value, Tensor)]
        specs += [spec_of(name, Role.STATE, slot.path, slot.get().clone()) for slot, name in states]
        varying = self._varying(keywords, given)
        scalars = tuple(
            ScalarSpec(n, f.path, f.value, f.path in varying) for n, f in zip(inputs, given, strict=True) if isinstance(f.value, Scalar)
        )
        shape = Shape(keywords, _template(arguments), inputs, {f.path: n for n, f in zip(outs, tensors, strict=True)}, _constants(found))
        texts = iter(outs)
        text = expression(result, lambda leaf: next(texts) if isinstance(leaf, Tensor) else repr(leaf))
        return shape, Signature(tuple(specs), scalars, text, call)

    def _probe(self, arguments: inspect.BoundArguments, slots: list[Slot]) -> tuple[object, set[str]]:
        """Run forward twice on equal inputs: its result, and the paths of the buffers it changes.

        Raises:
            TaskError: forward raises, is stochastic, changes a parameter or attribute, or returns what cannot be judged.
        """
        self.on_phase("forward")
        before = {slot.path: slot.get().clone() for slot in slots}
        calls = []
        for seed in (1, 2):
            args, kwargs = _copied(arguments)
            with user_code("forward()", self.file), seeded(seed):
                calls.append(forward(self.model, slots, args, kwargs))
        (result, after), _ = calls
        found, again = (list(leaves(call[0], "out", "output")) for call in calls)
        changed = _changed(slots, before, after)
        for leaf in found:
            check_leaf(leaf, "output")
        if not any(isinstance(f.value, Tensor) for f in found):
            raise TaskError("the task is empty: forward() returns no tensor; return what is to be computed as tensors", refused=True)
        if [f.path for f in found] != [f.path for f in again] or not all(_agree(a.value, b.value) for a, b in zip(found, again, strict=True)):
            raise TaskError(
                "the task is stochastic: two calls of forward() on the same inputs disagree (random numbers, dropout, or state outside of buffers); "
                "pass random numbers in as inputs, or call self.eval() in Model.__init__", refused=True,
            )  # fmt: skip
        self._note_mutation(arguments, args, kwargs)
        return result, changed

    def _note_mutation(self, arguments: inspect.BoundArguments, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        used = argument_leaves(inspect.signature(self.model.forward).bind(*args, **kwargs))
        for old, new in zip(argument_leaves(arguments), used, strict=True):
            if isinstance(old.value, Tensor) and isinstance(new.value, Tensor) and not same_values(old.value, new.value):
                self.notes.append(f"forward() changes its input `{old.path}` in place; that is not part of the contract, kernels must not do it")

    def _varying(self, keywords: dict[str, Scalar], given: list[Leaf]) -> set[str]:
        """Paths of the scalars that get_inputs draws anew."""
        if all(isinstance(leaf.value, Tensor) for leaf in given):
            return set()
        varying: set[str] = set()
        for seed in _PROBE_SEEDS[1:]:
            for old, new in zip(given, argument_leaves(self._draw(keywords, seed)), strict=False):
                if not isinstance(old.value, Tensor) and repr(old.value) != repr(new.value):
                    varying.add(old.path)
        return varying

    def _check_domains(self, signature: Signature) -> None:
        names = [t.name for t in signature.inputs if t.floating]
        for name in self.options.domain:
            if name not in names:
                raise TaskError(f"EVOKERNEL['domain'] names {name!r}, which is no floating input; they are {', '.join(names) or 'none'}")


def _template(arguments: inspect.BoundArguments) -> inspect.BoundArguments:
    """The argument tree without its tensors, which would hold memory."""
    emptied = (torch.empty(0) if isinstance(leaf.value, Tensor) else leaf.value for leaf in argument_leaves(arguments))
    return inspect.BoundArguments(arguments.signature, rebuild(arguments.arguments, iter(emptied)))  # type: ignore[arg-type]


def _copied(arguments: inspect.BoundArguments) -> tuple[tuple[object, ...], dict[str, object]]:
    values = (compact(leaf.value) if isinstance(leaf.value, Tensor) else leaf.value for leaf in argument_leaves(arguments))
    built = inspect.BoundArguments(arguments.signature, rebuild(arguments.arguments, iter(values)))  # type: ignore[arg-type]
    return built.args, built.kwargs


def _constants(found: list[Leaf]) -> dict[str, Scalar]:
    return {f.path: f.value for f in found if isinstance(f.value, int | float | bool | str | None)}


def _changed(slots: list[Slot], before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    """Paths of the buffers that forward changed.

    Raises:
        TaskError: it changed a parameter, an attribute, or the shape of a buffer.
    """
    changed: set[str] = set()
    for slot in slots:
        new = slot.get() if slot.role is Role.PARAMETER else after.get(slot.name)
        if new is not None and same_values(before[slot.path], new):
            continue
        if slot.role is not Role.BUFFER:
            raise TaskError(
                f"forward() changes the {slot.role} `{slot.path}`: only buffers may change; use register_buffer for state, and train outside "
                "of forward", refused=True,
            )  # fmt: skip
        if new is None or new.shape != before[slot.path].shape or new.dtype != before[slot.path].dtype:
            raise TaskError(f"forward() changes the shape or dtype of the buffer `{slot.path}`; allocate it at its full size", refused=True)
        changed.add(slot.path)
    return changed


def _agree(a: object, b: object) -> bool:
    """Equal up to the last bits: a parallel reference may add in another order."""
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return repr(a) == repr(b)
    if a.shape != b.shape or same_values(a, b) or not a.is_floating_point():
        return a.shape == b.shape and same_values(a, b)
    return bool(torch.allclose(a.double(), b.double(), rtol=1e-3, atol=1e-4 * float(a.double().abs().max()), equal_nan=True))


def spec_of(name: str, role: Role, path: str, tensor: Tensor) -> TensorSpec:
    """The record of a tensor as it lies."""
    return TensorSpec(name, role, path, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tuple(tensor.stride()))


def check_leaf(leaf: Leaf, kind: str) -> None:
    """Refuse by name what no plan can pass."""
    if isinstance(leaf.value, Tensor):
        check_tensor(leaf.value, f"{kind} `{leaf.path}`")
        if kind == "output" and leaf.value.numel() == 0:
            raise TaskError(f"the task is empty: output `{leaf.path}` has shape {tuple(leaf.value.shape)}; choose sizes above 0", refused=True)
    elif not isinstance(leaf.value, int | float | bool | str | None):
        raise TaskError(
            f"{kind} `{leaf.path}` is a {type(leaf.value).__module__}.{type(leaf.value).__qualname__}; only tensors, numbers, bools, strings, None "
            "and dicts, lists, tuples, named tuples and dataclasses of them can be judged", refused=True,
        )  # fmt: skip
    elif kind == "input" and isinstance(leaf.value, int) and not -(1 << 63) <= leaf.value < 1 << 63:
        raise TaskError(f"input `{leaf.path}` is an integer beyond 64 bits: no kernel can take it", refused=True)


def check_tensor(tensor: Tensor, what: str) -> None:
    """Refuse by name a tensor that has no plain strided memory on the CPU, or a dtype that kernels cannot take."""
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        raise TaskError(f"{what} is a {'nested' if tensor.is_nested else tensor.layout} tensor: pass its parts as plain dense tensors", refused=True)
    if tensor.device.type != "cpu":
        raise TaskError(f"{what} is on {tensor.device}: create everything on the CPU, it is moved where it is judged", refused=True)
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in ITEMSIZE_BYTES:
        help_ = "use torch.view_as_real" if tensor.is_complex() else f"use one of {', '.join(ITEMSIZE_BYTES)}"
        raise TaskError(f"{what} has dtype {name}, which kernel files cannot name: {help_}", refused=True)
