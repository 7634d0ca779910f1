"""The buffers of one task variant on the judge's side: filling, poisoning, flushing, reading back.

A slot is one full set of inputs and outputs. Timed calls rotate over `SLOTS` of them, so that no call finds in memory or cache what
the call before it left.
"""

from __future__ import annotations

import ctypes
import secrets
from collections.abc import Callable, Iterable, Mapping

import torch

from ..kernelfile.steps import Plan
from ..records import Role, Signature, TensorSpec, contiguous_stride
from ..runner.buffers import Arena
from ..runner.main import SLOT_MARK

SLOTS = 3
Flush = Callable[[int, int], None]
POISON_FLOAT = 0xFF  # a NaN in every floating dtype


def slotted(name: str, slot: int) -> str:
    """The name of a tensor's buffer in one slot."""
    return f"{name}{SLOT_MARK}{slot}"


def flat(tensor: torch.Tensor, span: int) -> torch.Tensor:
    """The memory under a strided tensor as one run of `span` elements (a view)."""
    return tensor.as_strided((span,), (1,), tensor.storage_offset())


class TaskMemory:
    """Inputs, weights and outputs of one variant, shared with one process at a time.

    Args:
        signature: the variant.
        sealed: inputs and weights can only be read by the other side (candidates); baselines may write theirs, as eager code does.
        slots: how many sets of inputs and outputs.
        flush: evicts `bytes` from `address` on from all caches.
    """

    def __init__(self, signature: Signature, *, sealed: bool, slots: int, flush: Flush) -> None:
        self.signature = signature
        self.slots = slots
        self._flush = flush
        reads = [(w.name, w.size_bytes) for w in signature.weights]
        reads += [(slotted(t.name, s), t.size_bytes) for s in range(slots) for t in signature.inputs]
        writes = [(slotted(t.name, s), t.size_bytes) for s in range(slots) for t in signature.outputs]
        self.reads = Arena(reads, sealed=sealed)
        self.writes = Arena(writes, sealed=False)
        self._flats = {name: _typed(self.reads, name, spec) for name, spec in self._specs(signature.inputs, signature.weights)}
        self._outputs = {name: _typed(self.writes, name, spec) for name, spec in self._specs(signature.outputs, ())}

    def _specs(self, slotted_specs: Iterable[TensorSpec], shared: Iterable[TensorSpec]) -> list[tuple[str, TensorSpec]]:
        named = [(slotted(t.name, s), t) for s in range(self.slots) for t in slotted_specs]
        return named + [(w.name, w) for w in shared]

    def fill_inputs(self, slot: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy a draw into a slot, gaps between strided rows included."""
        for spec in self.signature.inputs:
            self._flats[slotted(spec.name, slot)].copy_(flat(tensors[spec.name], spec.span))

    def inputs_intact(self, slot: int, tensors: Mapping[str, torch.Tensor]) -> bool:
        """Whether a slot's inputs are still bit for bit what was filled in."""
        pairs = ((self._flats[slotted(s.name, slot)], flat(tensors[s.name], s.span)) for s in self.signature.inputs)
        return all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in pairs)

    def fill_weights(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy one set of parameters, buffers and attributes in; the other side must bind again."""
        for spec in self.signature.weights:
            self._flats[spec.name].copy_(flat(tensors[spec.name], spec.span))

    def poison(self, slot: int) -> None:
        """Make every output of a slot wrong: NaN where it floats, a random byte elsewhere."""
        for spec in self.signature.outputs:
            byte = POISON_FLOAT if spec.floating else secrets.randbelow(255)
            name = slotted(spec.name, slot)
            ctypes.memset(self.writes.address_of(name), byte, spec.size_bytes)

    def outputs(self, slot: int) -> dict[str, torch.Tensor]:
        """Copies of a slot's outputs, in their shapes and strides."""
        return {
            spec.name: self._outputs[slotted(spec.name, slot)].clone().as_strided(spec.shape, spec.stride)
            for spec in self.signature.outputs
        }

    def same_outputs(self, slot: int, expected: Mapping[str, torch.Tensor]) -> bool:
        """Whether a slot's outputs equal earlier copies bit for bit."""
        pairs = ((self._outputs[slotted(s.name, slot)], flat(expected[s.name], s.span)) for s in self.signature.outputs)
        return all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in pairs)

    def flush(self, slot: int) -> None:
        """Evict a slot's inputs and outputs and all weights from the caches."""
        for arena, specs in ((self.reads, self.signature.inputs), (self.writes, self.signature.outputs)):
            for spec in specs:
                self._flush(arena.address_of(slotted(spec.name, slot)), spec.size_bytes)
        for spec in self.signature.weights:
            self._flush(self.reads.address_of(spec.name), spec.size_bytes)

    def damaged(self) -> list[str]:
        """Buffers written before their start or after their end."""
        return self.reads.damaged() + self.writes.damaged()

    def close(self) -> None:
        self.reads.close()
        self.writes.close()


class PlanMemory:
    """Scratch (one set a slot) and persisted buffers of one plan."""

    def __init__(self, plan: Plan, slots: int, flush: Flush) -> None:
        self.specs = tuple(plan_spec(b.name, b.dtype, b.shape) for b in plan.buffers)
        self._scratch = {b.name for b in plan.buffers if b.kind == "scratch"}
        self._slots = slots
        self._flush = flush
        sizes = [(n, s.size_bytes) for s in self.specs for n in self._names(s.name)]
        self.arena = Arena(sizes, sealed=False)

    def _names(self, name: str) -> list[str]:
        return [slotted(name, s) for s in range(self._slots)] if name in self._scratch else [name]

    def poison(self, slot: int) -> None:
        """Fill a slot's scratch with NaN patterns, so that nothing of an earlier call can be read back."""
        for spec in self.specs:
            if spec.name in self._scratch:
                name = slotted(spec.name, slot)
                ctypes.memset(self.arena.address_of(name), POISON_FLOAT, spec.size_bytes)

    def poison_persisted(self) -> None:
        """Fill what the last binding prepared, before the weights are bound anew."""
        for spec in self.specs:
            if spec.name not in self._scratch:
                ctypes.memset(self.arena.address_of(spec.name), POISON_FLOAT, spec.size_bytes)

    def flush(self, slot: int) -> None:
        for spec in self.specs:
            name = slotted(spec.name, slot) if spec.name in self._scratch else spec.name
            self._flush(self.arena.address_of(name), spec.size_bytes)

    def close(self) -> None:
        self.arena.close()


def plan_spec(name: str, dtype: str, shape: tuple[int, ...]) -> TensorSpec:
    """A plan's own buffer as a tensor that steps can name."""
    return TensorSpec(name, Role.OUTPUT, name, dtype, shape, contiguous_stride(shape))


def _typed(arena: Arena, name: str, spec: TensorSpec) -> torch.Tensor:
    kind: torch.dtype = getattr(torch, spec.dtype)
    if spec.span == 0:
        return torch.empty(0, dtype=kind)
    return torch.frombuffer(arena.view(name), dtype=kind, count=spec.span)
