"""A loaded task: drawing inputs, binding weights, and the reference's answer to a draw, all under plan names."""

from __future__ import annotations

import dataclasses
import inspect
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import TaskError
from ..records import Role, Scalar, Task
from .module import Slot, bound, compact, pristine, same_values
from .source import user_code
from .tree import Leaf, leaves, rebuild


@dataclass(frozen=True)
class Draw:
    """One set of inputs of a variant, by plan name. Tensors have the task's strides, on memory of their own."""

    variant: int
    tensors: dict[str, Tensor]
    scalars: dict[str, Scalar]

    def replace(self, tensors: Mapping[str, Tensor]) -> Draw:
        """The same draw with some of its tensors exchanged."""
        return dataclasses.replace(self, tensors={**self.tensors, **tensors})

    def equal(self, other: Draw) -> bool:
        """Whether another draw of the same variant has the same values; a NaN equals a NaN."""
        return repr(self.scalars) == repr(other.scalars) and all(same_values(t, other.tensors[name]) for name, t in self.tensors.items())


@dataclass(frozen=True)
class Shape:
    """How one variant's arguments and results are built: `arguments` is forward's bound argument tree, `inputs` its leaves' plan names
    in order, `results` the paths of forward's result, `outputs` the plan names of its tensors by path, `constants` the other leaves."""

    keywords: dict[str, Scalar]
    arguments: inspect.BoundArguments
    inputs: tuple[str, ...]
    outputs: dict[str, str]
    constants: dict[str, Scalar]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run the body under one seed of torch, random and numpy, and put their states back."""
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


def argument_leaves(arguments: inspect.BoundArguments) -> list[Leaf]:
    """Leaves of forward's arguments in order, named by forward's own parameter names."""
    kinds = arguments.signature.parameters
    found: list[Leaf] = []
    for name, value in arguments.arguments.items():
        if kinds[name].kind is inspect.Parameter.VAR_KEYWORD:
            found += [leaf for key, v in value.items() for leaf in leaves(v, key, f'{name}["{key}"]')]
        else:
            found += leaves(value, name, name)
    return found


def own(tensor: Tensor, shared: set[int]) -> Tensor:
    """`tensor` on dense memory that no other result uses; `shared` collects the addresses of storages seen."""
    plain = tensor.detach()
    if plain.layout is not torch.strided:
        return plain
    storage = plain.untyped_storage()
    dense = storage.nbytes() == plain.numel() * plain.element_size() and 0 not in plain.stride()
    fresh = dense and storage.data_ptr() not in shared
    if not fresh:
        plain = plain.clone()
    shared.add(plain.untyped_storage().data_ptr())
    return plain


def forward(model: nn.Module, slots: list[Slot], args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[object, dict[str, Tensor]]:
    """One call of the reference under no_grad that leaves no trace in the module.

    Returns: its result, tensors detached and on memory of their own; buffers and attributes after the call, by plan name.
    """
    with torch.no_grad(), pristine(model, slots):
        result = model(*args, **kwargs)
        after = {s.name: s.get() for s in slots if s.role is not Role.PARAMETER and s.is_tensor()}
        shared = {s.get().untyped_storage().data_ptr() for s in slots if s.is_tensor()}
        given = [leaf.value for leaf in leaves([args, kwargs], "", "") if isinstance(leaf.value, Tensor)]
        shared |= {t.untyped_storage().data_ptr() for t in given}
        kept = (own(leaf.value, shared) if isinstance(leaf.value, Tensor) else leaf.value for leaf in leaves(result, "", ""))
        return rebuild(result, kept), after


class LoadedTask:
    """A task's record together with its live module. Made by `load_task`."""

    def __init__(self, task: Task, model: nn.Module, get_inputs: Callable[..., object], slots: list[Slot], shapes: tuple[Shape, ...]) -> None:
        self.task = task
        self.model = model
        self.notes: list[str] = []
        self._get_inputs = get_inputs
        self._slots = slots
        self._shapes = shapes
        self._on_phase: Callable[[str], None] = lambda phase: None

    def draw(self, variant: int, seed: int) -> Draw:
        """A fresh set of the task's own inputs, the same for the same seed.

        Raises:
            TaskError: get_inputs fails, or gives other shapes, dtypes or structure than when the task was loaded.
        """
        shape, signature = self._shapes[variant], self.task.variants[variant]
        self._on_phase("inputs")
        arguments = draw_arguments(self.model, self._get_inputs, shape.keywords, seed, self.task.path)[0]
        self._on_phase("judging")  # what comes now is ours
        found = argument_leaves(arguments)
        if [f.path for f in found] != [f.path for f in argument_leaves(shape.arguments)]:
            raise TaskError("get_inputs() returns another structure on each call; return the same nesting every time", refused=True)
        values = dict(zip(shape.inputs, (f.value for f in found), strict=True))
        tensors = {name: compact(v) for name, v in values.items() if isinstance(v, Tensor)}
        for spec in signature.inputs:
            new = tensors.get(spec.name)
            if new is None or (tuple(new.shape), new.stride(), str(new.dtype)) != (spec.shape, spec.stride, f"torch.{spec.dtype}"):
                now = "no tensor" if new is None else f"{tuple(new.shape)} {new.dtype} with strides {new.stride()}"
                raise TaskError(
                    f"input `{spec.path}` was {spec.shape} {spec.dtype} with strides {spec.stride} and is now {now}: get_inputs() must give the "
                    "same shapes on every call; list further shapes under EVOKERNEL['shapes']", refused=True,
                )  # fmt: skip
        return Draw(variant, tensors, {n: v for n, v in values.items() if isinstance(v, Scalar)})

    def arguments(self, draw: Draw) -> tuple[tuple[object, ...], dict[str, object]]:
        """Forward's positional and keyword arguments around the tensors of `draw` themselves; containers are new each time."""
        shape = self._shapes[draw.variant]
        values = (draw.tensors[n] if n in draw.tensors else draw.scalars[n] for n in shape.inputs)
        built = inspect.BoundArguments(shape.arguments.signature, rebuild(shape.arguments.arguments, iter(values)))  # type: ignore[arg-type]
        return built.args, built.kwargs

    def weights(self) -> dict[str, Tensor]:
        """The module's parameters, buffers and plain tensor attributes as they are bound now, by plan name."""
        return {slot.name: slot.get() for slot in self._slots}

    def bind(self, weights: Mapping[str, Tensor]) -> None:
        """Make these tensors the module's own (their memory, not copies); names that are missing stay."""
        for slot in self._slots:
            if slot.name in weights:
                slot.set(weights[slot.name])

    def bound(self, weights: Mapping[str, Tensor]) -> AbstractContextManager[None]:
        """Make these tensors the module's own for a `with` block, and put the ones before it back."""
        return bound(self._slots, weights)

    def run(self, draw: Draw, weights: Mapping[str, Tensor] | None = None, *, consume: bool = False) -> dict[str, Tensor]:
        """The reference's outputs for a draw by plan name (buffers that forward changes included), on memory of their own.

        Inputs, buffers and attributes are copied first, so nothing the reference does in place stays. Tensors of `draw` and
        `weights` may have other dtypes than the task's. `weights` are bound for this call only. `consume`: the draw is not needed
        any more, so its tensors may be used and changed without a copy.

        Raises:
            TaskError: forward raises, or its result has another structure, shape or constant than when the task was loaded.
        """
        args, kwargs = self.arguments(draw if consume else draw.replace({name: compact(t) for name, t in draw.tensors.items()}))
        self._on_phase("forward")
        with self.bound(weights or {}), user_code("forward()", self.task.path):
            result, after = forward(self.model, self._slots, args, kwargs)
        self._on_phase("judging")
        return self._outputs(draw.variant, list(leaves(result, "out", "output")), after)

    def gradients(self, draw: Draw, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """By floating input, the gradient of a random weighting of all outputs; inputs without one, and tasks autograd cannot follow, are missing."""
        leaf = {n: compact(t).requires_grad_() for n, t in draw.tensors.items() if t.is_floating_point()}
        args, kwargs = self.arguments(draw.replace(leaf))
        try:
            with self.bound(weights), torch.enable_grad(), pristine(self.model, self._slots), user_code("forward()", self.task.path):
                found = [v.value for v in leaves(self.model(*args, **kwargs), "out", "output") if isinstance(v.value, Tensor)]
                total = sum((t.double() * torch.rand_like(t, dtype=torch.float64)).sum() for t in found if t.requires_grad)
                if not isinstance(total, Tensor):
                    return {}
                gradients = torch.autograd.grad(total, list(leaf.values()), allow_unused=True)
        except (TaskError, RuntimeError):
            return {}
        return {n: g for n, g in zip(leaf, gradients, strict=True) if g is not None and bool(g.isfinite().all())}

    def _outputs(self, variant: int, found: list[Leaf], after: dict[str, Tensor]) -> dict[str, Tensor]:
        shape = self._shapes[variant]
        if [f.path for f in found if isinstance(f.value, Tensor)] != list(shape.outputs):
            raise TaskError("forward() returns another structure for other inputs; return the same nesting every time", refused=True)
        outputs: dict[str, Tensor] = {}
        for leaf in found:
            if isinstance(leaf.value, Tensor):
                outputs[shape.outputs[leaf.path]] = leaf.value
            elif leaf.path not in shape.constants or repr(leaf.value) != repr(shape.constants[leaf.path]):
                raise TaskError(
                    f"`{leaf.path}` of forward()'s result is {leaf.value!r:.60} here and {shape.constants.get(leaf.path)!r:.60} before: values that "
                    "are no tensors must be constants; return it as a tensor", refused=True,
                )  # fmt: skip
        signature = self.task.variants[variant]
        by_path = {slot.path: slot.name for slot in self._slots}
        outputs |= {spec.name: after[by_path[spec.path]].clone() for spec in signature.of_role(Role.STATE)}
        for spec in signature.outputs:
            if tuple(outputs[spec.name].shape) != spec.shape:
                raise TaskError(
                    f"`{spec.path}` has shape {tuple(outputs[spec.name].shape)} here and {spec.shape} before: output shapes that depend on the data "
                    "cannot be judged; pad the output to a fixed shape", refused=True,
                )  # fmt: skip
        return outputs


def draw_arguments(
    model: nn.Module, get_inputs: Callable[..., object], keywords: dict[str, Scalar], seed: int, file: str
) -> tuple[inspect.BoundArguments, str]:
    """get_inputs() under a seed, bound to forward's parameters, with a note when its result had to be wrapped.

    Raises:
        TaskError: get_inputs raises, or its result does not fit forward.
    """
    with seeded(seed), user_code("get_inputs()", file):
        args, kwargs, note = as_call(get_inputs(**keywords), "get_inputs()")
    try:
        return inspect.signature(model.forward).bind(*args, **kwargs), note
    except TypeError as error:
        accepted = inspect.signature(model.forward)
        raise TaskError(f"get_inputs() does not fit forward{accepted}: {error}; return one entry per argument, in order") from error


def as_call(value: object, function: str) -> tuple[tuple[object, ...], dict[str, object], str]:
    """Positional and keyword arguments from what get_inputs or get_init_inputs returned, and a note when it was no list."""
    if isinstance(value, Mapping):
        return (), {str(k): v for k, v in value.items()}, ""
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return tuple(value), {}, ""
    if inspect.isgenerator(value):
        return tuple(value), {}, f"{function} is a generator: its values are taken as a list; return a list to be clear"
    return (value,), {}, f"{function} returned a bare {type(value).__name__}, taken as a list of one; return [value] to be clear"
