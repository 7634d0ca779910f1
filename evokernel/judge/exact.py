"""The reference in float64 throughout, whatever dtypes its module asks for: the modes below which the truth is computed.

They can also make the choices that rounding leaves open: move what is compared, rounded or chosen from, and choose another one of equal values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from ..errors import TaskError

_WIDER = {
    torch.float32: torch.float64, torch.float16: torch.float64, torch.bfloat16: torch.float64,
    torch.complex64: torch.complex128, torch.complex32: torch.complex128,
}  # fmt: skip
_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "addmv", "mv", "dot", "convolution", "_scaled_dot_product", "linear", "_trilinear")
# Operations that choose among equal values, and whose results can be indices that hang on the choice.
_PICKS = (
    "argm", "sort.", "topk", "kthvalue", "mode.", "median", "nanmedian", "max.dim", "min.dim", "cummax", "cummin", "max_pool",
    "adaptive_max_pool", "fractional_max_pool",
)  # fmt: skip
# Operations that make floats of floats and yet decide; all that make something else of floats do.
_ROUNDS = ("round.", "floor", "ceil.", "trunc.", "frac.", "fmod.", "remainder.", "div.Tensor_mode", "div.Scalar_mode")
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne", "bucketize", "searchsorted")
WHOLE_STEPS = 16  # units that what decides whole numbers is moved by, which floats may be off by at least
_SAME = WHOLE_STEPS * torch.finfo(torch.float32).eps


class Float64(TorchDispatchMode):  # type: ignore[misc]
    """Runs everything below it in float64: arguments, results, and dtypes asked for.

    Args:
        steps: units in the last place of float32 by which values that decide something are moved, up or down by what value it is and by `key`.
        last: choose the last (True) or first (False) of equal values; None: as torch does.

    Attributes:
        products: a matrix product or convolution ran.
        picks: something ran that chooses among equal values (argmax, topk, sort and the like).
    """

    def __init__(self, steps: int = 0, key: int = 1, *, last: bool | None = None) -> None:
        super().__init__()
        self.products = False
        self.picks = False
        self._steps, self._key, self._last = steps, key, last

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.partition(".")[0]
        self.products = self.products or name.startswith(_PRODUCTS)
        picks = func.__name__.startswith(_PICKS)
        self.picks = self.picks or picks
        if name == "view" and any(isinstance(a, torch.dtype) for a in args):
            raise TaskError("forward() reinterprets the bits of a float (view(dtype)), which has no meaning in exact arithmetic", refused=True)
        args, kwargs = tree_map(_widen, args), tree_map(_widen, kwargs or {})
        if self._steps and (picks or _decides(func, args, kwargs)):
            args = tree_map(self._pushed, args)
        found = tree_map(_widen, func(*args, **kwargs))
        return found if self._last is None or not picks else _chosen(func, args, kwargs, found, last=self._last)

    def _pushed(self, value: Any) -> Any:
        """A value that decides, moved; equal ones stay equal. Whole ones stay: they are exact, or were decided before."""
        if not isinstance(value, Tensor) or value.dtype is not torch.float64:
            return value
        sign = (value.contiguous().view(torch.int64) * self._key >> 63) | 1
        return torch.where(value == value.round(), value, value * (1.0 + sign * (self._steps * torch.finfo(torch.float32).eps)))


def _widen(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dtype in _WIDER:
        return value.to(_WIDER[value.dtype])
    return _WIDER.get(value, value) if isinstance(value, torch.dtype) else value


def _decides(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether an operation makes whole numbers of floats. Those that write into an argument are left as they are."""
    if func._schema.is_mutable or not any(isinstance(a, Tensor) and a.is_floating_point() for a in args):
        return False
    dtype = kwargs.get("dtype")
    whole = dtype is not None and not dtype.is_floating_point and not dtype.is_complex
    return whole or func.__name__.startswith(_ROUNDS) or func.__name__.partition(".")[0] in _COMPARISONS


def _chosen(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], found: Any, *, last: bool) -> Any:
    """What a choice gave, with each index replaced by the first or last one along its dimension whose value is the same up to rounding."""
    fields = func._schema.arguments
    named = {a.name: a.default_value for a in fields} | {a.name: v for a, v in zip(fields, args, strict=False)} | dict(kwargs)
    picked = found[-1] if isinstance(found, tuple | list) else found
    if "dim" not in named or named["self"].ndim == 0:
        return found  # pools: their indices count within an image, and their windows are no rows
    dim, values = (0, named["self"].double().reshape(-1)) if named["dim"] is None else (named["dim"], named["self"].double())
    kept = picked.reshape(-1) if named["dim"] is None else picked if picked.ndim == values.ndim else picked.unsqueeze(dim)
    ends = (_end_of_one if kept.shape[dim] == 1 else _ends)(values, kept, dim, last).reshape(picked.shape)
    return (*found[:-1], ends) if isinstance(found, tuple | list) else ends


def _end_of_one(values: Tensor, kept: Tensor, dim: int, last: bool) -> Tensor:
    """The first or last index in each row whose value is that at `kept` (one index a row) up to rounding."""
    picked = values.gather(dim, kept)
    same = ((values - picked).abs() <= picked.abs() * _SAME) | (values == picked)
    same = same.scatter(dim, kept, torch.ones_like(kept, dtype=torch.bool)).byte()
    return values.shape[dim] - 1 - same.flip(dim).argmax(dim, keepdim=True) if last else same.argmax(dim, keepdim=True)


def _ends(values: Tensor, kept: Tensor, dim: int, last: bool) -> Tensor:
    """For each index of `kept` the first or last one of those whose values, in order, are no further apart than rounding brings them."""
    ordered, order = values.sort(dim)
    lower, upper = ordered.narrow(dim, 0, values.shape[dim] - 1), ordered.narrow(dim, 1, values.shape[dim] - 1)
    apart = upper - lower > torch.minimum(lower.abs(), upper.abs()).mul_(_SAME)
    group = torch.cat([torch.zeros_like(order.narrow(dim, 0, 1)), apart.cumsum(dim)], dim)
    end = torch.zeros_like(order).scatter_reduce(dim, group, order, "amax" if last else "amin", include_self=False)
    return torch.empty_like(order).scatter(dim, order, end.gather(dim, group)).gather(dim, kept)


class _OwnDtype(TorchFunctionMode):  # type: ignore[misc]
    """Tensors in float64 say that they have the task's dtype: its code may ask for that of its limits (`torch.finfo(x.dtype).eps`)."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return self._dtype if found is torch.float64 and func == Tensor.dtype.__get__ else found


@contextmanager
def in_float64(mode: Float64 | None = None, own: torch.dtype = torch.float64) -> Iterator[Float64]:
    """Evaluate the body in float64, new constants included; `own`: the dtype that tensors say they have."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with mode or Float64() as running, _OwnDtype(own):
            yield running
    finally:
        torch.set_default_dtype(default)
