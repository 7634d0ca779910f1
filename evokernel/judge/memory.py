"""The buffers of one task variant on the judge's side: filling, poisoning, flushing, reading back.

A slot is one full set of inputs and outputs. Timed calls rotate over `SLOTS` of them, so that no call finds in memory or cache what
the call before it left.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping

import torch

from ..kernelfile.steps import Plan
from ..records import Role, Signature, TensorSpec, contiguous_stride
from ..runner.main import SLOT_MARK
from .machines import Machine, SharedArena

SLOTS = 3
_NAN_BYTE = 0xFF  # a NaN in every floating dtype, also in scratch


def _odd_byte() -> int:
    """A byte that nobody can foresee: finite and not small in every floating dtype, and no bool."""
    return 0x41 + secrets.randbelow(0x3A)


def unforeseen() -> tuple[int, int]:
    """Bytes for outputs and for scratch before a call: nothing there can be relied on, nor foreseen."""
    return _odd_byte(), secrets.choice((0, _odd_byte()))


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
    """

    def __init__(self, machine: Machine, signature: Signature, *, sealed: bool, slots: int) -> None:
        self.signature = signature
        self.slots = slots
        self.machine = machine
        self._foreign = sealed
        reads = [(w.name, w.size_bytes) for w in signature.weights]
        reads += [(slotted(t.name, s), t.size_bytes) for s in range(slots) for t in signature.inputs]
        writes = [(slotted(t.name, s), t.size_bytes) for s in range(slots) for t in signature.outputs]
        self.reads = machine.arena(reads, sealed=sealed)
        self.writes = machine.arena(writes, sealed=False)
        self._inputs = {name: _typed(self.reads, name, spec) for name, spec in self._specs(signature.inputs, signature.weights)}
        self._outputs = {name: _typed(self.writes, name, spec) for name, spec in self._specs(signature.outputs, ())}

    def _specs(self, slotted_specs: Iterable[TensorSpec], shared: Iterable[TensorSpec]) -> list[tuple[str, TensorSpec]]:
        named = [(slotted(t.name, s), t) for s in range(self.slots) for t in slotted_specs]
        return named + [(w.name, w) for w in shared]

    def fill_inputs(self, slot: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy a draw into a slot, gaps between strided rows included."""
        for spec in self.signature.inputs:
            self._inputs[slotted(spec.name, slot)].copy_(flat(tensors[spec.name], spec.span))

    def fill_weights(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy one set of parameters, buffers and attributes in; the other side must bind again, and a candidate that prepares something from them
        finds nothing of what it will be timed on in any slot."""
        for slot in range(self.slots) if self._foreign else ():
            self.poison(slot, nan=False)
            for spec in self.signature.inputs:
                self._inputs[slotted(spec.name, slot)].zero_()
        self.put_weights(tensors)

    def put_weights(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy those weights in that are among these, for calls that prepare nothing from them."""
        for spec in self.signature.weights:
            if spec.name in tensors:
                self._inputs[spec.name].copy_(flat(tensors[spec.name], spec.span))

    def changed(self, slot: int, tensors: Mapping[str, torch.Tensor], weights: Mapping[str, torch.Tensor]) -> list[str]:
        """Inputs and weights that are not what was filled in any more."""
        given = [(slotted(s.name, slot), s, tensors[s.name]) for s in self.signature.inputs]
        given += [(w.name, w, weights[w.name]) for w in self.signature.weights if w.name in weights]
        return [spec.name for name, spec, value in given if not _same_bits(self._inputs[name], flat(value, spec.span))]

    def poison(self, slot: int, *, nan: bool) -> None:
        """Make every output of a slot wrong: with `nan` NaN where it floats, otherwise finite values that no kernel can foresee."""
        for spec in self.signature.outputs:
            self.writes.raw(slotted(spec.name, slot)).fill_(_NAN_BYTE if nan and spec.floating else _odd_byte())

    def not_bools(self, slot: int) -> list[str]:
        """Bool outputs that hold bytes other than 0 and 1."""
        bools = [s.name for s in self.signature.outputs if s.dtype == "bool" and s.numel == s.span]
        return [name for name in bools if bool((self.writes.raw(slotted(name, slot)) > 1).any())]

    def outputs(self, slot: int) -> dict[str, torch.Tensor]:
        """Copies of a slot's outputs where they are, in their shapes and strides."""
        return {
            spec.name: self._outputs[slotted(spec.name, slot)].clone().as_strided(spec.shape, spec.stride)
            for spec in self.signature.outputs
        }

    def same_outputs(self, slot: int, expected: Mapping[str, torch.Tensor]) -> bool:
        """Whether a slot's outputs equal earlier copies bit for bit."""
        return all(_same_bits(self._outputs[slotted(s.name, slot)], flat(expected[s.name], s.span)) for s in self.signature.outputs)

    def flush(self, slot: int, beside: Iterable[torch.Tensor] = ()) -> None:
        """Evict a slot's inputs and outputs, all weights, and `beside` from the caches."""
        names = [slotted(s.name, slot) for s in self.signature.inputs] + [w.name for w in self.signature.weights]
        outs = [slotted(s.name, slot) for s in self.signature.outputs]
        self.machine.flush([*map(self.reads.raw, names), *map(self.writes.raw, outs), *beside])

    def damaged(self) -> list[str]:
        """Buffers written before their start or after their end."""
        return self.reads.damaged() + self.writes.damaged()

    def mend(self) -> None:
        """Forget the damage of earlier candidates."""
        self.reads.mend()
        self.writes.mend()

    def close(self) -> None:
        self.reads.close()
        self.writes.close()


class PlanMemory:
    """Scratch (one set a slot) and persisted buffers of one plan."""

    def __init__(self, machine: Machine, plan: Plan, slots: int) -> None:
        self.specs = plan_specs(plan)
        self._scratch = {b.name for b in plan.buffers if b.kind == "scratch"}
        self._slots = slots
        self._persisted: dict[str, torch.Tensor] = {}
        self._called = False
        sizes = [(n, s.size_bytes) for s in self.specs for n in self._names(s.name)]
        self.arena = machine.arena(sizes, sealed=False)

    def _names(self, name: str) -> list[str]:
        return [slotted(name, s) for s in range(self._slots)] if name in self._scratch else [name]

    def poison(self, slot: int) -> None:
        """Fill a slot's scratch, so that nothing of an earlier call can be read back: for the first call with NaN patterns, which explain best, then
        with zeros or something else at random, so that nothing there can be relied on."""
        for name in self._scratch:
            self.arena.raw(slotted(name, slot)).fill_(unforeseen()[1] if self._called else _NAN_BYTE)
        self._called = True

    def poison_persisted(self) -> None:
        """Fill what the last binding prepared, and all scratch with what calls left there, before the weights are bound anew."""
        for name in self.arena.places:
            self.arena.raw(name).fill_(_odd_byte() if self._called else _NAN_BYTE)

    def remember_persisted(self) -> None:
        """Keep copies of what a binding prepared, where nothing stops a kernel from writing it."""
        self._persisted = {s.name: self.arena.raw(s.name).clone() for s in self.specs if s.name not in self._scratch}

    def changed_persisted(self) -> list[str]:
        """Persisted buffers that are not what was prepared any more."""
        return [name for name, kept in self._persisted.items() if not torch.equal(self.arena.raw(name), kept)]

    def raws(self, slot: int) -> list[torch.Tensor]:
        """The memory a call on this slot may touch."""
        return [self.arena.raw(slotted(s.name, slot) if s.name in self._scratch else s.name) for s in self.specs]

    def close(self) -> None:
        self.arena.close()


def plan_specs(plan: Plan) -> tuple[TensorSpec, ...]:
    """A plan's own buffers as tensors that steps can name."""
    return tuple(TensorSpec(b.name, Role.OUTPUT, b.name, b.dtype, b.shape, contiguous_stride(b.shape)) for b in plan.buffers)


def _typed(arena: SharedArena, name: str, spec: TensorSpec) -> torch.Tensor:
    return arena.raw(name).view(getattr(torch, spec.dtype))


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(torch.equal(a.view(torch.uint8), b.to(a.device).view(torch.uint8)))
