"""Whether outputs are right: errors in units per element against a budget, exactness for whole numbers, and a message that helps.

A floating element may be off by `budget x scale`, or by twice the largest absolute error eager itself makes in the same block of 256 neighbours
(in the whole output it would let a kernel leave out rows that are small beside the largest). 16-bit outputs get no such allowance: twice eager's
largest and 1.5 times its rms units. NaN and Inf must stand where the truth has them; -0 equals 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..records import ErrorRow, TensorSpec
from .explain import describe
from .truth import BLOCK, Expected

SIXTEEN_BITS = ("float16", "bfloat16")
FEWEST_UNITS, FEWEST_UNITS_SMALL = 32.0, 64.0
SMALL_NUMEL = 1024
TRUSTED_FACTOR = 8.0
_ROUNDING_MAX, _ROUNDING_RMS = 1.0, 0.55  # units that one correct rounding to 16 bits may cost
_CHUNK = 1 << 18


@dataclass(frozen=True)
class Measured:
    """Errors of one output: largest and rms in units, largest absolute."""

    max_units: float = 0.0
    rms_units: float = 0.0
    max_abs: float = 0.0

    def worst(self, other: Measured) -> Measured:
        return Measured(*(max(a, b) for a, b in zip(_values(self), _values(other), strict=True)))


def _values(m: Measured) -> tuple[float, float, float]:
    return m.max_units, m.rms_units, m.max_abs


@dataclass(frozen=True)
class Budget:
    """What one output may be off by: units, rms units (16-bit outputs), or an absolute error that is always allowed in a block: (blocks,) float64."""

    max_units: float
    rms_units: float = torch.inf
    max_abs: Tensor | None = None


def budget_of(spec: TensorSpec, trusted: Measured, eager_abs: Tensor | None, tolerance_units: float | None) -> Budget:
    """The budget of an output.

    Args:
        trusted: the worst that trusted implementations measured in this regime.
        eager_abs: eager's largest absolute errors in this very case (see `block_errors`).
        tolerance_units: the task's own option, which replaces the units.
    """
    if not spec.floating:
        return Budget(0.0)
    if tolerance_units is not None:
        return Budget(tolerance_units)
    if spec.dtype in SIXTEEN_BITS:
        return Budget(max(2.0 * trusted.max_units, _ROUNDING_MAX), max(1.5 * trusted.rms_units, _ROUNDING_RMS))
    fewest = FEWEST_UNITS_SMALL if spec.numel < SMALL_NUMEL else FEWEST_UNITS
    return Budget(max(fewest, TRUSTED_FACTOR * trusted.max_units), max_abs=None if eager_abs is None else 2.0 * eager_abs)


def measure(output: Tensor, expected: Expected) -> Measured:
    """Errors of an output of any dtype and stride; NaN or Inf in the wrong place count as infinite."""
    output = output.to(expected.value.device)
    if expected.scale is None:
        return _measure_whole(output, expected)
    ours, truth, scale = output.reshape(-1), expected.value.reshape(-1), expected.scale.reshape(-1)
    most = most_abs = squares = 0.0
    for part in _chunks(ours):
        error = _error(ours[part], truth[part], scale[part])
        most_abs = max(most_abs, float(error.max()))
        units = error.div_(scale[part])
        most = max(most, float(units.max()))
        squares += float(torch.dot(units, units))
    return Measured(most, (squares / max(ours.numel(), 1)) ** 0.5, most_abs)


def block_errors(output: Tensor, expected: Expected) -> Tensor | None:
    """The largest absolute error of each block of 256 elements in row-major order, (blocks,) float64; None for whole numbers."""
    if expected.scale is None:
        return None
    error = _error(output.reshape(-1).to(expected.value.device), expected.value.reshape(-1), expected.scale.reshape(-1))
    return torch.nn.functional.pad(error, (0, -error.numel() % BLOCK)).view(-1, BLOCK).amax(dim=1)


def _chunks(flat: Tensor) -> list[slice]:
    """Parts that stay in a CPU's cache; on a GPU, where each one costs several launches, larger ones."""
    size = _CHUNK if flat.device.type == "cpu" else 256 * _CHUNK
    return [slice(start, start + size) for start in range(0, flat.numel(), size)]


def _error(ours: Tensor, truth: Tensor, scale: Tensor) -> Tensor:
    """|ours - truth| (float64); 0 where both are the same Inf or NaN or anything goes, Inf where only one is finite."""
    error = (ours - truth).abs_()
    if bool(error.max() < torch.inf):
        return error
    truth = truth.to(ours.dtype).double()
    same = (ours == truth) | (ours.isnan() & truth.isnan()) | scale.isinf()
    return torch.where(same, 0.0, error.nan_to_num_(torch.inf))


def _measure_whole(output: Tensor, expected: Expected) -> Measured:
    wrong = wrong_elements(output, expected, Budget(0.0))
    if not bool(wrong.any()):
        return Measured()
    low, high = _range(expected)
    off = torch.maximum(low.double() - output.double(), output.double() - high.double()).reshape(-1)
    off = torch.where(wrong, off.clamp_(min=1.0), 0.0)  # beyond 2^53 doubles hide a difference
    return Measured(float(off.max()), float(off.square().mean().sqrt()), float(off.max()))


def _range(expected: Expected) -> tuple[Tensor, Tensor]:
    return expected.value, expected.value if expected.high is None else expected.high


def wrong_elements(output: Tensor, expected: Expected, budget: Budget) -> Tensor:
    """Which elements are out of the budget: bool (n,), row-major."""
    if expected.scale is None:
        low, high = _range(expected)
        return (output != low if low is high else (output < low) | (output > high)).reshape(-1)
    ours, truth, scale = output.reshape(-1), expected.value.reshape(-1), expected.scale.reshape(-1)
    wrong = torch.empty(ours.shape, dtype=torch.bool, device=ours.device)
    for part in _chunks(ours):
        error = _error(ours[part], truth[part], scale[part])
        wrong[part] = error > scale[part].double() * budget.max_units
        if budget.max_abs is not None and bool(wrong[part].any()):
            blocks = budget.max_abs.to(error.device)[part.start // BLOCK : -(-part.stop // BLOCK)]
            wrong[part] &= error > blocks.repeat_interleave(BLOCK)[: error.numel()]
    return wrong


@dataclass(frozen=True)
class Place:
    """Where a comparison stands, for the message. `inputs`: the specs of the case's inputs."""

    regime: str
    variant: int
    inputs: tuple[TensorSpec, ...] = ()


def compare(
    specs: Sequence[TensorSpec], outputs: Mapping[str, Tensor], truth: Mapping[str, Expected], budgets: Mapping[str, Budget], place: Place
) -> tuple[list[ErrorRow], str | None]:
    """One row an output, and None or a message of at most 30 lines about the first outputs that are wrong.

    Raises:
        ValueError: an output has not the shape and dtype of its spec (buffers make that so).
    """
    rows: list[ErrorRow] = []
    messages: list[str] = []
    for spec in specs:
        output, expected, budget = outputs[spec.name], truth[spec.name], budgets[spec.name]
        if tuple(output.shape) != spec.shape or str(output.dtype) != f"torch.{spec.dtype}":
            raise ValueError(f"{spec.path}: got {tuple(output.shape)} {output.dtype}, the task has {spec.shape} {spec.dtype}")
        found = measure(output, expected)
        passed = found.rms_units <= budget.rms_units
        if found.max_units > budget.max_units:
            wrong = wrong_elements(output.to(expected.value.device), expected, budget)
            if bool(wrong.any()):
                passed = False
                here = expected.placed(lambda tensors: {name: t.cpu() for name, t in tensors.items()})
                messages += describe(spec, output.cpu(), here, wrong.cpu(), place.inputs)
        if not passed and not messages:
            messages.append(
                f"{spec.path} ({spec.name}): rms error {found.rms_units:.3g} units, allowed {budget.rms_units:.3g}: "
                f"accumulate in float32 and round to {spec.dtype} once"
            )
        rows.append(ErrorRow(spec.name, place.regime, place.variant, *_values(found), budget.max_units, passed))
    if not messages:
        return rows, None
    head = f"wrong results with '{place.regime}' inputs" + (f", shape variant {place.variant}" if place.variant else "")
    worst = ", ".join(f"{r.output} {r.max_units:.3g} of {r.budget_units:.3g} units allowed" for r in rows if not r.passed)
    return rows, "\n".join([head, f"largest error: {worst}", *messages][:30])
