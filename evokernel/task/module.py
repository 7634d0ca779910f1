"""A module's own tensors: finding them under plan names, replacing them, and running the module so that nothing it does stays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ..records import Role
from .tree import Names, leaves

_OWN = ("_parameters", "_buffers", "_modules")  # where nn.Module itself keeps its tensors


@dataclass
class Slot:
    """One tensor of a module. `places`: every (owner, key) that holds it, so tied tensors are one slot."""

    name: str
    role: Role
    path: str
    places: list[tuple[nn.Module, str]] = field(default_factory=list)

    def _store(self, owner: nn.Module) -> dict[str, Tensor]:
        if self.role is Role.PARAMETER:
            return owner._parameters  # type: ignore[no-any-return]
        return owner._buffers if self.role is Role.BUFFER else vars(owner)  # type: ignore[no-any-return]

    def get(self) -> Tensor:
        """The tensor that stands there now, without its autograd history."""
        owner, key = self.places[0]
        return self._store(owner)[key].detach()

    def is_tensor(self) -> bool:
        owner, key = self.places[0]
        return isinstance(self._store(owner).get(key), Tensor)

    def set(self, tensor: Tensor) -> None:
        """Make `tensor` itself (its memory) the module's."""
        for owner, key in self.places:
            if self.role is Role.PARAMETER:
                self._store(owner)[key].data = tensor
            else:
                self._store(owner)[key] = tensor


def find_slots(model: nn.Module, names: Names) -> tuple[list[Slot], list[str]]:
    """All parameters, buffers and plain tensor attributes of a module, tied ones once, and notes on tensors no plan can name."""
    slots: dict[object, Slot] = {}
    notes: list[str] = []
    for role, place, path, tensor in _tensors(model):
        key = (role, id(tensor)) if role is Role.PARAMETER else (role, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if key not in slots:
            slots[key] = Slot(names.give(path.replace(".", "_"), path), role, path)
        slots[key].places.append(place)
    for prefix, owner in model.named_modules():
        for name, value in vars(owner).items():
            nested = name not in _OWN and not isinstance(value, Tensor | nn.Module)
            if nested and any(isinstance(leaf.value, Tensor) and not isinstance(leaf.value, nn.Parameter) for leaf in leaves(value, "", "")):
                path = f"{prefix}.{name}".lstrip(".")
                notes.append(f"`{path}` holds tensors inside a container: no plan can name them; register them as buffers if a kernel needs them")
    return list(slots.values()), notes


def _tensors(model: nn.Module) -> Iterator[tuple[Role, tuple[nn.Module, str], str, Tensor]]:
    stores = ((Role.PARAMETER, "_parameters"), (Role.BUFFER, "_buffers"), (Role.ATTRIBUTE, ""))
    for role, store in stores:
        for prefix, owner in model.named_modules():
            for key, value in list((getattr(owner, store) if store else vars(owner)).items()):
                if isinstance(value, Tensor):
                    yield role, (owner, key), f"{prefix}.{key}".lstrip("."), value


@contextmanager
def pristine(model: nn.Module, slots: list[Slot]) -> Iterator[None]:
    """Run the body on copies of buffers and attributes; afterwards the module is as before: tensors, and plain Python state too."""
    kept = [(owner, dict(vars(owner)), dict(owner._buffers)) for owner in model.modules()]
    for slot in slots:
        if slot.role is not Role.PARAMETER:
            slot.set(slot.get().clone())
    try:
        yield
    finally:
        for owner, attributes, buffers in kept:
            vars(owner).clear()
            vars(owner).update(attributes)
            owner._buffers.clear()
            owner._buffers.update(buffers)


@contextmanager
def bound(slots: list[Slot], weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Give the module other tensors for the body, of any dtype, and the old ones back."""
    kept = [(slot, slot.get()) for slot in slots if slot.name in weights]
    try:
        for slot, _ in kept:
            slot.set(weights[slot.name])
        yield
    finally:
        for slot, tensor in kept:
            slot.set(tensor)


def compact(tensor: Tensor) -> Tensor:
    """A copy on memory of its own that is exactly as long as the strides reach; values, shape and strides (0 too) are kept."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.numel() == 0:
        return torch.empty_strided(plain.shape, plain.stride(), dtype=plain.dtype)
    span = 1 + sum((d - 1) * s for d, s in zip(plain.shape, plain.stride(), strict=True))
    base = plain.as_strided((span,), (1,), plain.storage_offset()).clone()
    return base.as_strided(plain.shape, plain.stride(), 0)


def same_values(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same shape, dtype and values; a NaN equals a NaN."""
    return a.shape == b.shape and a.dtype == b.dtype and bool(((a == b) | (a.isnan() & b.isnan())).all())


def base(tensor: Tensor) -> Tensor:
    """The memory under a strided tensor as one run of elements, a view: (span,)."""
    span = 1 + sum((d - 1) * s for d, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    return tensor.as_strided((span,), (1,), tensor.storage_offset())


def like(tensor: Tensor, values: Tensor) -> Tensor:
    """`values` (span,) seen with the shape and strides of `tensor`."""
    if tensor.numel() == 0:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=values.dtype)
    return values.as_strided(tensor.shape, tensor.stride(), 0)
