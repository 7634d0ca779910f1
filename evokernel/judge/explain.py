"""From wrong elements to a sentence: what the pattern of a mismatch looks like, so that a person or a model knows where to look.

Guesses only: they change no verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..records import TensorSpec
from .truth import Expected

_SHOWN = 5
_LOOKED_AT = 1 << 22  # elements that guesses look at


def describe(spec: TensorSpec, output: Tensor, expected: Expected, wrong: Tensor, inputs: Sequence[TensorSpec]) -> list[str]:
    """Lines about one wrong output.

    Args:
        wrong: bool (n,), row-major, at least one True.
    """
    count = int(wrong.sum())
    lines = [f"{spec.path} ({spec.name}): {count} of {spec.numel} {spec.dtype} values differ"]
    if spec.floating and not bool(output.isfinite().all()) and bool(expected.value.isfinite().all()):
        lines[0] += f" ({int((~output.isfinite()).sum())} are NaN or Inf)"
    ours, truth = output.reshape(-1), expected.value.reshape(-1)
    for index in _worst(ours, truth, wrong):
        place = [int(i) for i in torch.unravel_index(torch.tensor(index), spec.shape)] if spec.shape else []
        lines.append(f"  at {place}: expected {_text(truth[index])}, got {_text(ours[index])}")
    lines.append(f"  looks like: {_guess(spec, ours, truth, wrong, inputs)}")
    return lines


def _text(value: Tensor) -> str:
    return f"{value.item():.9g}" if value.is_floating_point() else str(value.item())


def _worst(ours: Tensor, truth: Tensor, wrong: Tensor) -> list[int]:
    """Row-major places of the largest errors, the first wrong one among them."""
    places = wrong.nonzero()[:, 0]
    error = (ours[places].double() - truth[places].double()).abs_().nan_to_num_(torch.inf)
    order = error.topk(min(_SHOWN - 1, len(places))).indices
    return sorted({int(places[0]), *(int(p) for p in places[order])})


def _guess(spec: TensorSpec, ours: Tensor, truth: Tensor, wrong: Tensor, inputs: Sequence[TensorSpec]) -> str:
    dear = len(ours) > _LOOKED_AT
    if not dear:
        ours, truth = ours.double(), truth.double()
    guesses = (_unwritten, _constant, _tail) + (() if dear else (_transposed, _shifted, _affine))
    for guess in guesses:
        if text := guess(spec, ours, truth, wrong):
            return text
    strided = [t for t in inputs if not t.contiguous]
    if strided:
        names = ", ".join(f"`{t.name}` has shape {t.shape} and strides {t.stride}" for t in strided)
        return f"strides are ignored ({names}; index with them)"
    return _by_size(spec, ours, truth, wrong)


def _unwritten(spec: TensorSpec, ours: Tensor, truth: Tensor, wrong: Tensor) -> str:
    bad = ours[wrong]
    if spec.floating and bool(bad.isnan().all()) and bool(truth[wrong].isfinite().all()):
        if bool(wrong.all()):
            return "never written: outputs hold NaN before each call"
        return f"partly never written (NaN is what outputs hold before each call){_from(wrong, spec)}"
    return ""


def _constant(spec: TensorSpec, ours: Tensor, truth: Tensor, wrong: Tensor) -> str:
    if len(ours) > 1 and bool((ours == ours[0]).all()) and not bool((truth == truth[0]).all()):
        return f"constant: every element is {_text(ours[0])}" + ("" if spec.floating else ", or never written")
    return ""


def _from(wrong: Tensor, spec: TensorSpec) -> str:
    first, last = int(wrong.nonzero()[0]), int(wrong.nonzero()[-1])
    if first and bool(wrong[first:].all()):
        return f": everything from element {first} on, is the tail handled?"
    if last + 1 < len(wrong) and bool(wrong[: last + 1].all()):
        return f": everything before element {last + 1}"
    if spec.shape and spec.shape[-1] > 1 and spec.numel > spec.shape[-1]:
        columns = wrong.view(-1, spec.shape[-1]).any(dim=0).nonzero()[:, 0]
        low, high = int(columns[0]), int(columns[-1])
        if high - low + 1 < spec.shape[-1]:
            return f": only in columns {low} to {high} of {spec.shape[-1]}, is the end of each row handled?"
    return ""


def _tail(spec: TensorSpec, ours: Tensor, truth: Tensor, wrong: Tensor) -> str:
    where = _from(wrong, spec)
    return f"a part of the output{where}" if where else ""


def _close(ours: Tensor, truth: Tensor) -> bool:
    return bool(((ours - truth).abs() <= 1e-3 * truth.abs() + 1e-5 * float(truth.abs().max())).double().mean() > 0.98)


def _transposed(spec: TensorSpec, ours: Tensor, truth: Tensor, wrong: Tensor) -> str:
    if len(spec.shape) >= 2 and min(spec.shape[-2:]) > 1:
        rows, columns = spec.shape[-2:]
        turned = ours.view(-1, columns, rows).mT.reshape(-1)
        if _close(turned, truth):
            return f"transposed in its last two dimensions ({rows}, {columns})"
    return ""


def _shifted(spec: TensorSpec, ours: Tensor, truth: Tensor, wrong: Tensor) -> str:
    if len(ours) < 8 or bool((truth[1:] == truth[:-1]).double().mean() > 0.5):
        return ""
    step = next((s for s in (1, -1) if _close(ours.roll(s)[2:-2], truth[2:-2])), 0)
    if not spec.floating and bool(((ours - truth)[wrong].abs() == 1).all()):
        return "off by one: each wrong value differs by exactly 1"
    return f"off by one: element i holds what belongs to element i{step:+d}" if step else ""


def _affine(spec: TensorSpec, ours: Tensor, truth: Tensor, wrong: Tensor) -> str:
    """A missing or wrong addend or factor, for all elements or one a column or row."""
    if not spec.floating or len(ours) < 16 or not bool(ours.isfinite().all()):
        return ""
    relations: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
        ("an addend (bias)", lambda t: ours - t),
        ("a factor (scale)", lambda t: ours / t - 1.0),
    )
    for what, relate in relations:
        relation = relate(truth)
        if _steady(relation.view(1, -1)):
            return f"{what} is missing or wrong: the same for all elements"
        if len(spec.shape) >= 2:
            table = relation.view(-1, spec.shape[-1])
            if table.shape[0] > 3 and _steady(table.T):
                return f"{what} is missing or wrong: it depends on the last index only"
            if table.shape[1] > 3 and _steady(table):
                return f"{what} is missing or wrong: it is the same within each row"
    return ""


def _steady(table: Tensor) -> bool:
    """Rows of nearly equal values, not all negligible."""
    middle = table.median(dim=1, keepdim=True).values
    steady = ((table - middle).abs() <= 1e-3 * middle.abs() + 1e-7).double().mean() > 0.98
    return bool(steady) and bool(middle.abs().max() > 1e-6)


def _by_size(spec: TensorSpec, ours: Tensor, truth: Tensor, wrong: Tensor) -> str:
    if not spec.floating:
        return "wrong values; an exact result is expected"
    bad, good = ours[wrong].double(), truth[wrong].double()
    if not bool(bad.isfinite().all()):
        return "overflow, a division by zero, or memory read before it was written"
    relative = (bad - good).abs() / good.abs().clamp(min=float(truth.abs().max()) * 1e-3 + 1e-300)
    if float(relative.median()) < 1e-2:
        return "precision: close, but less exact than the task allows (operands or accumulator too narrow, or a rounded constant)"
    if float(wrong.double().mean()) < 0.1:
        return "a few elements only: a race, an edge case of the values, or memory read before it was written"
    return "a wrong formula or wrong indexing"
