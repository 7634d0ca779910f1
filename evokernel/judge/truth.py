"""What a kernel is compared with: the reference evaluated in float64 throughout, and how far rounding alone may move each element.

`.float()` or `.to(bfloat16)` inside a module would undo float64 inputs, so a dispatch mode rewrites every lower floating dtype below it (exact.py).
The scale of an element is the rms change of its truth when floating inputs and parameters move by one unit in the last place of their own
dtype, plus the unit in the last place of the truth in the output's dtype, and never under a quarter of the mean of its block of 256: an
element that happens to cancel (the tail of a GELU) is held to the accuracy of its neighbours, not to its own last bit. Errors are
measured in that scale (see compare.py).

Whole numbers get bounds instead: what they become when inputs, and values that something is decided by (a comparison, a rounding, a choice),
move by as many units as floats may be off by; and, for indices, when another one of equal values is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from ..errors import TaskError
from ..records import Role, Signature, TensorSpec
from ..task import Draw, LoadedTask
from ..task.module import base, compact, like
from .exact import WHOLE_STEPS, Float64, in_float64

_INPUT_PAIRS, _DECIDING_PAIRS = 2, 1  # draws that move inputs and weights, and the values that decide, by WHOLE_STEPS
_BITS = {torch.float64: torch.int64, torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}
_MANY = 1 << 20  # outputs with more elements get four noise draws instead of eight: their blocks smooth the scale
# Where neighbours share their noise (cumulative sums, whole rows), blocks smooth nothing, and among many blocks some have scales that are several
# times too small by chance: with 32 draws the chance of less than a third is under 1e-8 (chi-square with 32 degrees of freedom).
SHARP_DRAWS = 32
_CHUNK = 1 << 18
BLOCK = 256  # neighbours that share a floor of their scale


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch works with one thread in the body."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)


@dataclass(frozen=True)
class Expected:
    """What one output must be. Floating: `value` is the truth (float64) and `scale` its unit of error (float32; inf where anything
    goes). Otherwise `value` and `high` are the smallest and largest value that rounding can lead to, the same tensor where it cannot."""

    value: Tensor
    scale: Tensor | None = None
    high: Tensor | None = None

    def placed(self, place: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]) -> Expected:
        """The same with its tensors copied by `place`; `value` and `high` stay one tensor where they are one."""
        kept = {name: t for name, t in vars(self).items() if t is not None and not (name == "high" and t is self.value)}
        moved = place(kept)
        return Expected(moved["value"], moved.get("scale"), moved["value"] if self.high is self.value else moved.get("high"))

    @property
    def size_bytes(self) -> int:
        kept = {id(t): t for t in (self.value, self.scale, self.high) if t is not None}
        return sum(t.numel() * t.element_size() for t in kept.values())


@dataclass(frozen=True)
class Truth:
    """All outputs of one case, and whether a product ran to make them."""

    outputs: dict[str, Expected]
    products: bool

    @property
    def size_bytes(self) -> int:
        return sum(e.size_bytes for e in self.outputs.values())


def evaluate(loaded: LoadedTask, draw: Draw, weights: Mapping[str, Tensor], mode: Float64 | None = None) -> tuple[dict[str, Tensor], Float64]:
    """The reference in float64 on these inputs and weights (any floating dtype), and what ran in it.

    Raises:
        TaskError: it does not run in float64.
    """
    exact = draw.replace({n: _exact(t) for n, t in draw.tensors.items()})
    return _evaluate(loaded, exact, {n: _exact(t) for n, t in weights.items()}, mode or Float64())


def _evaluate(loaded: LoadedTask, exact: Draw, weights: Mapping[str, Tensor], mode: Float64) -> tuple[dict[str, Tensor], Float64]:
    """The reference in float64 on throwaway float64 tensors."""
    signature = loaded.task.signature
    own = {getattr(torch, t.dtype) for t in (*signature.inputs, *signature.weights) if t.floating}  # of several dtypes the one they are promoted to
    try:
        with loaded.bound(weights), in_float64(mode, reduce(torch.promote_types, own) if own else torch.get_default_dtype()):
            return loaded.run(exact, consume=True), mode
    except TaskError as error:
        if error.refused:
            raise
        raise TaskError(f"the reference cannot be evaluated in float64, which its error is measured against: {error}", refused=True) from error


def _exact(tensor: Tensor) -> Tensor:
    return like(tensor, base(tensor).to(torch.float64, copy=True)) if tensor.is_floating_point() else compact(tensor)


def nudged(tensor: Tensor, generator: torch.Generator, steps: int = 1) -> Tensor:
    """A float64 copy with each value moved up or down by one unit in the last place of its own dtype; zeros, NaN, Inf and integers stay.

    Args:
        steps: move 32- and 64-bit values by so many units (16-bit ones by one); the negative number moves them the other way.
    """
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return compact(tensor)
    values = base(tensor)
    size = 64 if values.dtype is torch.float64 else 32
    words = torch.empty(-(-values.numel() // size), dtype=torch.int64 if size == 64 else torch.int32)
    words.random_(-(1 << (size - 1)), (1 << (size - 1)) - 1, generator=generator)
    moved = torch.empty(values.numel(), dtype=torch.float64)
    with one_thread():  # most of a lane's start is spent here, and for passes this short other threads cost more than they save
        for start in range(0, values.numel(), _CHUNK):
            part = slice(start, start + _CHUNK)
            moved[part] = _moved(values[part], words[start // size : (start + _CHUNK) // size], steps)
    return like(tensor, moved)


def _moved(values: Tensor, words: Tensor, steps: int) -> Tensor:
    """Each value (n,) plus or minus units in its last place, by a bit of the words each: exact in float32, or in float64 for such values.

    The bits of the exponent alone are the power of two below a value.
    """
    work, exponent = (torch.float64, 0x7FF0_0000_0000_0000) if values.dtype is torch.float64 else (torch.float32, 0x7F80_0000)
    old, size = values.to(work), torch.finfo(work).bits
    signs = (words[:, None] << torch.arange(size, dtype=words.dtype)).bitwise_and_(-(1 << (size - 1))).view(-1)[: len(values)]
    units = steps if values.itemsize > 2 else max(-1, min(steps, 1))
    step = (old.view(words.dtype) & exponent).bitwise_or_(signs).view(work).mul_(units * torch.finfo(values.dtype).eps)
    if values.dtype is torch.float16:  # its subnormal numbers are ordinary ones here
        step = torch.where(old == 0, 0.0, step.abs().clamp_(min=torch.finfo(torch.float16).smallest_normal * 2**-10).copysign_(step))
    return step.clamp_(torch.finfo(work).min, torch.finfo(work).max).add_(old)  # an infinite value has an infinite step


def all_finite(tensor: Tensor) -> bool:
    """Whether a floating tensor holds neither NaN nor Inf: one pass, no temporary, unlike `isfinite().all()`."""
    return tensor.numel() == 0 or all(bool(t.isfinite()) for t in tensor.aminmax())


def ulp(value: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance to the next larger magnitude in `dtype` (float32), never below the smallest normal number of wide exponents.

    Hardware may flush subnormal numbers to zero; in float16, whose normal range is short, it does not.
    """
    near = value.to(dtype).abs()
    above = near.view(_BITS[dtype]).add(1).view(dtype)
    info = torch.finfo(dtype)
    floor = float(info.tiny) if dtype is not torch.float16 else float(info.smallest_normal * info.eps)
    step = above - near if near.dtype in (torch.float32, torch.float64) else above.float() - near.float()
    return step.nan_to_num_(0.0, 0.0, 0.0).float().clamp_(min=max(floor, 1.2e-38))


def truth_of(loaded: LoadedTask, draw: Draw, weights: Mapping[str, Tensor], eager: Mapping[str, Tensor], seed: int, *, sharp: bool = False) -> Truth:
    """Truth and scales of one case.

    Args:
        eager: the reference's outputs in the task's own dtypes: whole-number outputs may equal these or what float64 gives.
        seed: of the rounding noise.
        sharp: with `SHARP_DRAWS` draws of it.
    """
    signature = loaded.task.variants[draw.variant]
    values, ran = evaluate(loaded, draw, weights)
    floating = {t.name: torch.zeros(t.shape, dtype=torch.float32) for t in signature.outputs if t.floating}
    lows = {t.name: values[t.name].to(eager[t.name].dtype) for t in signature.outputs if not t.floating}
    bounds = {name: _bounds(low, low, eager[name]) for name, low in lows.items()}
    generator = torch.Generator().manual_seed(seed)
    draws = SHARP_DRAWS if sharp else 4 if max(t.numel for t in signature.outputs) > _MANY else 8
    for _ in range(draws if floating else 0):
        noisy = _moved_by(loaded, draw, weights, generator)
        for name, total in floating.items():
            _add_difference(total, noisy[name], values[name])
        bounds = {name: _bounds(low, high, noisy[name].to(low.dtype)) for name, (low, high) in bounds.items()}
    if any(not t.floating and t.role is Role.OUTPUT for t in signature.outputs):
        for other in _others(loaded, draw, weights, ran.picks, seed):
            bounds = {name: _bounds(low, high, other[name].to(low.dtype)) for name, (low, high) in bounds.items()}
    return Truth(_expected(signature, values, floating, bounds, eager, draws), ran.products)


def _moved_by(loaded: LoadedTask, draw: Draw, weights: Mapping[str, Tensor], generator: torch.Generator, steps: int = 1) -> dict[str, Tensor]:
    """The reference on inputs and weights that are all off by so many units in the last place."""
    moved = draw.replace({n: nudged(t, generator, steps) for n, t in draw.tensors.items()})
    return _evaluate(loaded, moved, {n: nudged(t, generator, steps) for n, t in weights.items()}, Float64())[0]


def _others(loaded: LoadedTask, draw: Draw, weights: Mapping[str, Tensor], picks: bool, seed: int) -> Iterator[dict[str, Tensor]]:
    """Outputs that are as right where they are whole numbers: other ones of equal values chosen, and inputs or what decides moved by what floats
    may be off by. Each move is made in both directions: what lies near an edge crosses it in one of them. Moves that the reference does not take
    (an index that leaves its table) say nothing."""
    for last in (False, True) if picks else ():
        yield evaluate(loaded, draw, weights, Float64(last=last))[0]
    for pair in range(_INPUT_PAIRS + _DECIDING_PAIRS):
        key = 2 * int(torch.randint(1 << 62, (), generator=torch.Generator().manual_seed(seed ^ pair))) + 1
        for steps in (WHOLE_STEPS, -WHOLE_STEPS):
            with suppress(TaskError):
                if pair < _INPUT_PAIRS:
                    yield _moved_by(loaded, draw, weights, torch.Generator().manual_seed(key), steps)
                else:
                    yield evaluate(loaded, draw, weights, Float64(steps, key))[0]


def _expected(
    signature: Signature,
    values: Mapping[str, Tensor],
    totals: Mapping[str, Tensor],
    bounds: Mapping[str, tuple[Tensor, Tensor]],
    eager: Mapping[str, Tensor],
    draws: int,
) -> dict[str, Expected]:
    found: dict[str, Expected] = {}
    for spec in signature.outputs:
        if spec.floating:
            value = values[spec.name].double()
            found[spec.name] = Expected(value, _scale(spec, value, totals[spec.name], eager[spec.name], draws))
        else:
            low, high = bounds[spec.name]
            found[spec.name] = Expected(low, high=low if torch.equal(low, high) else high)
    return found


def _scale(spec: TensorSpec, value: Tensor, total: Tensor, eager: Tensor, draws: int) -> Tensor:
    """rms of the noise plus one ulp, smoothed; inf where truth and eager do not agree on what is finite, or noise decides it."""
    dtype: torch.dtype = getattr(torch, spec.dtype)
    scale = total.mul_(draws**-0.5).add_(ulp(value, dtype))
    _raise_to_neighbours(scale.view(-1))
    near = value.to(dtype)
    if not (all_finite(near) and all_finite(eager)):
        scale.masked_fill_(near.isfinite() != eager.isfinite(), torch.inf)
    return scale


def _raise_to_neighbours(scale: Tensor) -> None:
    """In place: no element (n,) below a quarter of the mean of its block."""
    whole = scale.numel() // BLOCK * BLOCK
    for part in (scale[:whole].view(-1, BLOCK), scale[whole:].view(1, -1)):
        if part.numel():
            finite = part if all_finite(part) else torch.where(part.isfinite(), part, 0.0)
            torch.maximum(part, finite.mean(dim=1, keepdim=True).mul_(0.25), out=part)


def _add_difference(total: Tensor, noisy: Tensor, value: Tensor) -> None:
    """total = sqrt(total^2 + (noisy - value)^2) in place, chunk by chunk; equal infinities count as no difference."""
    sums, ours, theirs = total.view(-1), value.reshape(-1), noisy.reshape(-1)
    for start in range(0, sums.numel(), _CHUNK):
        part = slice(start, start + _CHUNK)
        change = (theirs[part] - ours[part]).float()
        if not all_finite(change):
            both = theirs[part].isfinite() == ours[part].isfinite()
            change = torch.where(both, change.nan_to_num(0.0, 0.0, 0.0), torch.inf)
        torch.hypot(sums[part], change, out=sums[part])


def _bounds(low: Tensor, high: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """The bounds widened to hold `other`; the same tensors where they already do."""
    if low is high and torch.equal(low, other):
        return low, high
    return torch.minimum(low, other), torch.maximum(high, other)


def rounded(tensor: Tensor, mantissa_bits: int) -> Tensor:
    """A floating tensor with its mantissa rounded to so many stored bits (10: TF32 and float16, 7: bfloat16), in its own dtype."""
    if tensor.dtype not in (torch.float32, torch.float64) or tensor.numel() == 0:
        return tensor
    drop = (23 if tensor.dtype is torch.float32 else 52) - mantissa_bits
    bits = base(compact(tensor)).view(_BITS[tensor.dtype])
    kept = bits.add_(1 << (drop - 1)).bitwise_and_(-(1 << drop)).view(tensor.dtype)
    return like(tensor, torch.where(kept.isfinite(), kept, base(tensor)))
