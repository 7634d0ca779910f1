"""The vendor-library steps of a plan (`@call`), run through torch on the runner's own buffers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..kernelfile.steps import Call, View
from ..records import Number, Precision
from .gpu import gpu_bytes

_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "mm": torch.mm,
    "bmm": torch.bmm,
    "addmm": torch.addmm,
    "baddbmm": torch.baddbmm,
    "linear": torch.nn.functional.linear,
    "conv1d": torch.conv1d,
    "conv2d": torch.conv2d,
    "conv3d": torch.conv3d,
    "conv_transpose1d": torch.conv_transpose1d,
    "conv_transpose2d": torch.conv_transpose2d,
    "conv_transpose3d": torch.conv_transpose3d,
}
_TAKES_OUT = {"mm", "bmm", "addmm", "baddbmm"}


def set_precision(precision: Precision) -> None:
    """Whether matrix products and convolutions may use TF32 on a GPU, for this process, on both sides of a race alike."""
    allowed = precision is not Precision.STRICT
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


def tensor_at(address: int, dtype: str, shape: tuple[int, ...], stride: tuple[int, ...], device: str = "cpu") -> torch.Tensor:
    """A torch tensor over foreign memory of the host ("cpu") or the GPU ("cuda"); the caller keeps it alive. `stride` in elements."""
    kind: torch.dtype = getattr(torch, dtype)
    span = 1 + sum((d - 1) * s for d, s in zip(shape, stride, strict=True)) if 0 not in shape else 0
    if span == 0:
        return torch.empty(shape, dtype=kind, device=device)
    if device == "cuda":
        return gpu_bytes(address, span * kind.itemsize).view(kind).as_strided(shape, stride)
    raw = (ctypes.c_char * (span * kind.itemsize)).from_address(address)
    return torch.frombuffer(raw, dtype=kind, count=span).as_strided(shape, stride)


def run(call: Call, tensors: dict[str, torch.Tensor]) -> None:
    """Run one step; its result is written into `tensors[call.result]` in place."""

    def value(item: View | Number | tuple[int, ...] | None) -> torch.Tensor | Number | tuple[int, ...] | None:
        if not isinstance(item, View):
            return item
        viewed = tensors[item.tensor]
        for name, *numbers in item.views:
            viewed = viewed.view(*numbers) if name == "view" else getattr(viewed, str(name))
        return viewed

    args = [value(a) for a in call.args]
    kwargs = {k.name: value(k.value) for k in call.kwargs}
    result = tensors[call.result]
    if call.precision == "tf32":
        with _tf32():
            _run(call.op, args, kwargs, result)
    else:
        _run(call.op, args, kwargs, result)


@contextmanager
def _tf32() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def _run(op: str, args: list[Any], kwargs: dict[str, Any], result: torch.Tensor) -> None:
    if op in _TAKES_OUT:
        _FUNCTIONS[op](*args, out=result, **kwargs)
    else:
        result.copy_(_FUNCTIONS[op](*args, **kwargs))
