"""The data kernels are checked with: secret seeds, weights drawn anew, and the regimes of values that a task allows.

Threat model: a candidate may know the task file, and so every seed, range and initial value that stands in it. Whatever it could fold into
constants (weights that are one, biases that are zero, the mean of U[0,1), a value range) is therefore drawn from the system's entropy here.
Structure that the task itself always shows (a mask of 0 and 1, a triangular matrix, rows that sum to one) is part of the task and is kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from enum import StrEnum

import torch
from torch import Tensor, nn

from ..errors import TaskError
from ..records import Domain, Role, TensorSpec
from ..task import Draw, LoadedTask
from ..task.module import base, compact, like
from .truth import all_finite, evaluate, nudged

OWN = "own"
_TIES = ("ties", "integers", "mixture")  # regimes with equal values: useless where an output hangs on which of them comes first
_STRUCTURE_DRAWS = 8
_SAMPLE = 4096
_OTHER_STREAM = 0x5DEECE66D  # get_inputs has used the plain seed already
_WIDE = 1e9  # no regime's values come near it
_TINY = 1e-3  # smallest value given to an input that must be positive


class Kind(StrEnum):
    """What an input may become: anything, anything at or above zero, above zero, or only what get_inputs draws."""

    FREE = "free"
    NONNEGATIVE = "nonnegative"
    POSITIVE = "positive"
    KEPT = "kept"


def secret_seed() -> int:
    """A seed of 63 bits that nobody outside this process can know."""
    return int.from_bytes(os.urandom(8), "little") >> 1


# Most values are distinct and unround in all of them. A running sum in float32 rounds a value that comes again and again always the same way, so
# that its error grows with the number of values and not with its root: plain loops, which are honest, would fail on nothing else.
Fill = Callable[[int, int, torch.Generator], Tensor]  # (number of elements, those of a row, generator) -> float32 (n,)


def _normal(n: int, row: int, g: torch.Generator) -> Tensor:
    return torch.empty(n).normal_(generator=g)


def _uniform(n: int, row: int, g: torch.Generator) -> Tensor:
    return torch.empty(n).uniform_(-1.0, 1.0, generator=g)


def _heavy(n: int, row: int, g: torch.Generator) -> Tensor:
    """A normal divided by a uniform, cut at 1e4: most values near 1, some in the thousands."""
    return (_normal(n, row, g) / torch.empty(n).uniform_(1e-3, 1.0, generator=g)).clamp_(-1e4, 1e4)


def _some(n: int, one_in: int, g: torch.Generator) -> Tensor:
    """True for one in so many elements, bool (n,)."""
    return torch.empty(n).uniform_(generator=g) < 1 / one_in


def _ties(n: int, row: int, g: torch.Generator) -> Tensor:
    """A normal with ties: one element in four repeats one of the 32 before it, and one in 32 is zero. Of stretches of 32, three in four are what
    stands at the same place in a row before: half of these in the last one, the others in one of the last 64 or the first."""
    place, stretches = torch.arange(n, dtype=torch.int32), n // 32 + 1
    near = torch.randint(1, 33, (n,), generator=g, dtype=torch.int32).mul_(_some(n, 4, g))
    rows = torch.randint(1, 65, (stretches,), generator=g, dtype=torch.int32)
    rows.masked_fill_(_some(stretches, 2, g), 1).masked_fill_(_some(stretches, 4, g), 0)
    above = place - rows.repeat_interleave(32)[:n] * row
    above = torch.where(above < 0, place.remainder_(row), above)
    return _normal(n, row, g).masked_fill_(_some(n, 32, g), 0.0)[above.sub_(near[above]).clamp_(min=0)]


def _integers(n: int, row: int, g: torch.Generator) -> Tensor:
    """Values from -4.5 to 4.5, one in eight of them whole."""
    values = torch.empty(n).uniform_(-4.5, 4.5, generator=g)
    return torch.where(_some(n, 8, g), values.round(), values)


def _mixture(n: int, row: int, g: torch.Generator) -> Tensor:
    """Stretches of tiny, ordinary, large, shifted and zero values within one tensor: whole rows, beginning with any of these kinds."""
    part, first = row * max(1, n // 23 // row), int(torch.randint(5, (), generator=g))
    kind = (torch.arange(n).div_(part, rounding_mode="floor").add_(first)).remainder_(5)
    scale, shift = torch.tensor([1e-4, 1.0, 30.0, 0.0, 1.0])[kind], torch.tensor([0.0, 0.0, 0.0, 0.0, 10.0])[kind]
    return _normal(n, row, g).mul_(scale).add_(shift)


REGIMES: dict[str, Fill] = {
    "normal": _normal,
    "uniform": _uniform,
    "heavy": _heavy,
    "small": lambda n, row, g: _normal(n, row, g).mul_(1e-3),
    "large": lambda n, row, g: _normal(n, row, g).mul_(1e3),
    "huge": lambda n, row, g: _normal(n, row, g).mul_(1e7),  # beyond where a limit on values could hide
    "ties": _ties,
    "integers": _integers,
    "mixture": _mixture,
}


class InputPlan:
    """Which regimes one variant of a task allows, and how to draw them. Weights must be bound as they will be checked.

    The reference is run once a regime; the structure of inputs is read off eight own draws.

    Attributes:
        regimes: whether each valid regime is drawn cautiously.
        left_out: why each other one is not valid.
    """

    def __init__(self, loaded: LoadedTask, variant: int) -> None:
        self._loaded = loaded
        self._variant = variant
        signature = loaded.task.variants[variant]
        self._floating = [t for t in signature.inputs if t.floating]
        domains = loaded.task.options.domain
        self._domains = {t.name: domains[t.name] for t in self._floating if domains.get(t.name, Domain("any")).kind != "any"}
        self._kinds = self._find_kinds([t for t in self._floating if t.name not in domains])
        self.left_out: dict[str, str] = {}
        self.regimes = self._valid_regimes()

    def draw(self, regime: str, seed: int) -> Draw:
        """Inputs in a regime: the task's own draw under `seed` with its free floating tensors given other values."""
        return self._draw(regime, seed, self.regimes.get(regime, False))

    def _draw(self, regime: str, seed: int, cautious: bool) -> Draw:
        draw = self._loaded.draw(self._variant, seed)
        if regime == OWN:
            return draw
        generator = torch.Generator().manual_seed(seed ^ _OTHER_STREAM)
        new = {t.name: self._values(t, draw.tensors[t.name], regime, generator, cautious) for t in self._floating}
        return draw.replace({name: tensor for name, tensor in new.items() if tensor is not None})

    def _values(self, spec: TensorSpec, old: Tensor, regime: str, generator: torch.Generator, cautious: bool) -> Tensor | None:
        """New values for one input, or None where it keeps its own draw. `cautious`: inputs never seen below zero stay there."""
        kind, domain = self._kinds.get(spec.name, Kind.FREE), self._domains.get(spec.name)
        if self._keeps(spec):
            return None
        values = REGIMES[regime](spec.span, spec.shape[-1] if len(spec.shape) > 1 else 1, generator)
        if (limit := torch.finfo(old.dtype).max / 2) < _WIDE:
            values.mul_((limit / values.abs().max()).clamp_(max=1.0))  # down to what float16 holds
        if domain and domain.kind == "range":
            values = _into_range(values, domain)
        elif domain and domain.kind == "probability":
            values = torch.sigmoid(values)
        elif kind is Kind.POSITIVE or (domain and domain.kind == "positive"):
            values = values.abs_().clamp_(min=_TINY)
        elif (kind is Kind.NONNEGATIVE and cautious) or (domain and domain.kind == "nonnegative"):
            values = values.abs_()
        return like(old, values.to(old.dtype))

    def _keeps(self, spec: TensorSpec) -> bool:
        """Whether an input keeps its own draw in every regime."""
        domain = self._domains.get(spec.name)
        return self._kinds.get(spec.name) is Kind.KEPT or spec.numel == 0 or (domain is not None and domain.kind == "own")

    def _find_kinds(self, specs: list[TensorSpec]) -> dict[str, Kind]:
        """Structure that all of eight own draws show."""
        if not specs:
            return {}
        kinds: dict[str, set[Kind]] = {t.name: set() for t in specs}
        for _ in range(_STRUCTURE_DRAWS):
            draw = self._loaded.draw(self._variant, secret_seed())
            for spec in specs:
                if Kind.FREE not in kinds[spec.name]:
                    kinds[spec.name].add(kind_of(draw.tensors[spec.name]))
        return {name: next((k for k in Kind if k in found), Kind.FREE) for name, found in kinds.items()}

    def _valid_regimes(self) -> dict[str, bool]:
        """Regime -> whether it had to be drawn cautiously, for those in which the reference stays as sane as on its own draws."""
        outputs = self._loaded.task.variants[self._variant].outputs
        whole = [t.name for t in outputs if not t.floating and t.dtype != "bool" and t.role is Role.OUTPUT]
        own = _flaws(self._loaded.run(self._loaded.draw(self._variant, secret_seed())))
        valid = {OWN: False}
        if all(self._keeps(t) for t in self._floating):
            self.left_out = dict.fromkeys(REGIMES, "no input may take other values: integers, masks and other structure are the task's own")
            return valid
        for regime in REGIMES:
            for cautious in (False, True) if Kind.NONNEGATIVE in self._kinds.values() else (False,):
                reason = self._insane(regime, cautious, own)
                if not reason and whole and regime in (*_TIES, "huge"):
                    reason = self._left_open(whole, regime, cautious)
                if not reason:
                    valid[regime] = cautious
                    break
            else:
                self.left_out[regime] = reason
        return valid

    def _insane(self, regime: str, cautious: bool, own: set[tuple[str, str]]) -> str:
        """Why the reference cannot be judged by such inputs, "" when it can."""
        draw = self._draw(regime, secret_seed(), cautious)
        drawn = [draw.tensors[t.name] for t in self._floating if self._kinds.get(t.name) is not Kind.KEPT]
        if not all(all_finite(t) for t in drawn):
            return "the inputs' dtype is too narrow for its values"
        try:
            flaws = sorted(_flaws(self._loaded.run(draw)) - own)
        except TaskError as error:
            return f"the reference fails on it: {str(error).partition(';')[0][:200]}"
        return f"the reference gives {'NaN' if flaws[0][1] == 'nan' else 'Inf'} in `{flaws[0][0]}`" if flaws else ""

    def _left_open(self, whole: list[str], regime: str, cautious: bool) -> str:
        """Why outputs of whole numbers cannot be judged by such inputs, "" when they can.

        An index hangs on which of equal values comes first. A count does not: it stays the same when rounding noise tells them apart (zeros
        stay zeros). Huge values are moved by whole numbers.
        """
        draw, weights = self._draw(regime, secret_seed(), cautious), self._loaded.weights()
        values, ran = evaluate(self._loaded, draw, weights)
        if ran.picks and regime in _TIES:
            return "an output holds indices, which equal values leave open"
        generator = torch.Generator().manual_seed(secret_seed())
        moved = draw.replace({n: nudged(t, generator) for n, t in draw.tensors.items()})
        noisy, _ = evaluate(self._loaded, moved, {n: nudged(t, generator) for n, t in weights.items()})
        changed = [name for name in whole if not torch.equal(values[name], noisy[name])]
        return f"the last bits of the inputs decide `{changed[0]}`" if changed else ""


def _into_range(values: Tensor, domain: Domain) -> Tensor:
    assert domain.low is not None and domain.high is not None
    middle, half = (domain.low + domain.high) / 2, (domain.high - domain.low) / 2
    return torch.tanh_(values).mul_(half).add_(middle).clamp_(domain.low, domain.high)


def _flaws(outputs: Mapping[str, Tensor]) -> set[tuple[str, str]]:
    """(output, "nan" or "inf") pairs that occur."""
    found = set()
    for name, tensor in outputs.items():
        if tensor.is_floating_point() and not all_finite(tensor):
            if bool(tensor.isnan().any()):
                found.add((name, "nan"))
            if bool(tensor.isinf().any()):
                found.add((name, "inf"))
    return found


def kind_of(tensor: Tensor) -> Kind:
    """The structure that the values of one draw show. A plain U[0,1) is NONNEGATIVE: it is kept only where the reference needs it."""
    if not tensor.numel():
        return Kind.KEPT
    values = base(tensor)
    head = values[:_SAMPLE].double()
    if _discrete(head) and _discrete(values.double()):
        return Kind.KEPT
    if tensor.ndim >= 2 and (_triangular(tensor) or _stochastic(tensor)):
        return Kind.KEPT
    if tensor.numel() > 2 and _sorted(head) and _sorted(values):
        return Kind.KEPT
    lowest = float(head.min()) if float(head.min()) < 0 else float(values.min())
    if lowest < 0 or tensor.numel() <= 2:
        return Kind.FREE
    unit = lowest < 0.2 and float(values.max()) <= 1.0
    return Kind.POSITIVE if lowest > 0 and not unit else Kind.NONNEGATIVE


def _discrete(values: Tensor) -> bool:
    """All values whole (0/1, +-1, one-hot, ids), or all the same, or not finite somewhere (a mask of -inf)."""
    if values.numel() < 2:
        return False
    finite = values.isfinite()
    if not bool(finite.all()):
        return True
    return bool((values == values.round()).all()) or bool((values == values[0]).all())


def _sorted(values: Tensor) -> bool:
    steps = values.diff()
    return bool((steps >= 0).all()) or bool((steps <= 0).all())


def _triangular(tensor: Tensor) -> bool:
    corner = tensor[(0,) * (tensor.ndim - 2)]
    if min(corner.shape) < 3 or float(corner[0, -1]) * float(corner[-1, 0]) != 0:
        return False
    return any(bool((part(tensor) == tensor).all()) for part in (torch.tril, torch.triu))


def _stochastic(tensor: Tensor) -> bool:
    """Rows (or columns) of values at or above zero that sum to one."""
    if tensor.shape[-1] < 2 or abs(float(tensor.reshape(-1, tensor.shape[-1])[0].double().sum()) - 1) > 1e-2:
        return False
    sums = tensor.double().sum(dim=-1)
    return bool((tensor >= 0).all()) and bool(((sums - 1).abs() < 1e-2).all())


def redraw_weights(loaded: LoadedTask, seed: int, *, counters: bool = True) -> dict[str, Tensor]:
    """A set of weights, each on memory of its own: floating parameters and norm statistics drawn anew, everything else as constructed.

    Values keep their scale (so fan-in scaling stays), their sign where it is always positive, and structure such as masks. With `counters` integer
    buffers that forward updates have counted on a little: zero is only where they begin.
    """
    generator = torch.Generator().manual_seed(seed)
    statistics = _norm_statistics(loaded.model)
    counting = {t.path for t in loaded.task.signature.of_role(Role.STATE) if t.dtype in ("int32", "int64")} if counters else set()
    new: dict[str, Tensor] = {}
    for spec in loaded.task.signature.weights:
        old = compact(loaded.weights()[spec.name])
        new[spec.name] = old
        if spec.path in counting:
            base(old).add_(torch.randint(1, 9, (spec.span,), generator=generator))
        if not spec.floating or spec.numel == 0:
            continue
        values = base(old).double()
        if spec.path in statistics:
            drawn = torch.empty_like(values).uniform_(*statistics[spec.path], generator=generator)
        elif spec.role is Role.PARAMETER:
            drawn = _redrawn(values, old, generator)
        else:
            continue
        new[spec.name] = like(old, drawn.to(old.dtype))
    return new


def _norm_statistics(model: nn.Module) -> dict[str, tuple[float, float]]:
    """Paths of running means and variances with the range to draw them from."""
    ranges = {"running_mean": (-0.5, 0.5), "running_var": (0.5, 2.0)}
    return {path: ranges[path.rpartition(".")[2]] for path, _ in model.named_buffers() if path.rpartition(".")[2] in ranges}


def _redrawn(values: Tensor, old: Tensor, generator: torch.Generator) -> Tensor:
    """New values (float64, 1-D) for one parameter."""
    wide = torch.empty_like(values).uniform_(0.5, 1.5, generator=generator)
    if not bool(values.isfinite().all()):
        return values
    if bool((values == values[0]).all()):
        return values * wide if float(values[0]) != 0 else (wide - 1.0) * 0.4
    if (bool((values == values.round()).all()) and values.numel() > 2) or (old.ndim == 2 and _triangular(old)):
        return values
    if bool((values > 0).all()):
        return values * wide
    spread = float(values.std())
    return torch.empty_like(values).normal_(generator=generator).clamp_(-3.0, 3.0).mul_(spread).add_(float(values.mean()))
