"""The data one task is checked with for the life of a judge process: draws, weights, truth and budgets, made when first asked for.

    cases = Cases(loaded)
    for case in cases.correctness():
        rows, message = cases.check(case, outputs_of_the_kernel(case.draw, case.weights))
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from ..errors import TaskError
from ..records import MODES, ErrorRow, Precision, Signature
from ..task import Draw, LoadedTask, available_bytes
from .compare import Budget, Measured, Place, block_errors, budget_of, compare, measure, wrong_elements
from .inputs import OWN, InputPlan, redraw_weights, secret_seed
from .truth import Expected, Truth, evaluate, one_thread, rounded, truth_of

OWN_DRAWS = 3  # of the timed variant, which it is timed on; other variants get one
_UNSEEN, _UNSEEN_S = 12, 4.0  # for each mode; no more than the fewest when they take longer to make
FEWEST_UNSEEN = 6  # with fewer nothing can be said
_EXCHANGED = 10  # the number of the first own draw that takes the place of the known ones
_USUAL = 0.9
_LIKE, _UNLIKE_SHARE, _SAMPLE = 8.0, 0.1, 1 << 16  # what is off by so many budgets is not the reference's; the share that may be; of so many elements
MANTISSA_BITS = {Precision.TF32: 10, Precision.REDUCED: 7}
_NARROW = 8.0  # a failure by at most this factor may come from a scale that is too small by chance
_CACHE_SHARE = 4  # a quarter of the free memory

Placing = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]


@dataclass(frozen=True)
class Case:
    """One set of inputs and weights with a known answer. Equal cases hold equal data; the data itself comes from `source`."""

    variant: int
    regime: str
    version: int
    number: int
    source: Cases = field(repr=False, compare=False)

    @property
    def draw(self) -> Draw:
        return self.source.entry(self).draw

    @property
    def weights(self) -> dict[str, Tensor]:
        return self.source.weights[self.version]

    @property
    def placed_inputs(self) -> dict[str, Tensor]:
        """The draw's tensors where kernels run."""
        return self.source.entry(self).placed_inputs

    @property
    def placed_weights(self) -> dict[str, Tensor]:
        """The weights where kernels run."""
        return self.source.placed_weights[self.version]

    @property
    def truth(self) -> Truth:
        return self.source.entry(self).truth

    @property
    def budgets(self) -> dict[str, Budget]:
        return self.source.budgets(self)


@dataclass(frozen=True)
class Unseen:
    """Inputs of the first variant, and weights unless known ones stay bound, that no case holds; what the reference gives for them in the task's own
    dtypes. Both where kernels run."""

    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]


@dataclass(frozen=True)
class Entry:
    """The computed data of a case. `placed_*`: inputs and expected outputs where kernels run, which on a CPU are the same tensors."""

    draw: Draw
    truth: Truth
    placed_inputs: dict[str, Tensor]
    placed_outputs: dict[str, Expected]

    @property
    def size_bytes(self) -> int:
        return self.truth.size_bytes + sum(int(t.untyped_storage().nbytes()) for t in self.draw.tensors.values())


class Cases:
    """All cases of a task. Binds weight version 0 to the task's module.

    Args:
        place: copies tensors to where kernels run, so that comparing costs no transfer.
        memory_bytes: a quarter of it is what computed cases may keep; older ones are dropped and made again when needed. Default: what is free.
        master_seed: everything is drawn from it; default: the system's entropy.
    """

    def __init__(
        self, loaded: LoadedTask, place: Placing = dict, *, memory_bytes: int | None = None, master_seed: int | None = None
    ) -> None:
        self.loaded = loaded
        self._place = place
        self.notes: list[str] = []
        self._master = secret_seed() if master_seed is None else master_seed
        self._limit = (available_bytes() if memory_bytes is None else memory_bytes) // _CACHE_SHARE
        self._entries: OrderedDict[Case, Entry] = OrderedDict()
        self._sharp: set[Case] = set()
        self._eager_abs: dict[tuple[Case, str], Tensor | None] = {}
        self._trusted: dict[tuple[int, str, str], Measured] = {}  # (variant, regime, output)
        self._plans: dict[int, InputPlan] = {}
        self._unseen: dict[bool, dict[str, list[Unseen]]] = {}  # by whether they have weights of their own
        self._counters: bool | None = None  # how weights can be drawn anew, if they can
        self.weights = self._weight_versions()
        self.placed_weights = {version: place(weights) for version, weights in self.weights.items()}
        loaded.bind(self.weights[0])

    @cached_property
    def repeatable(self) -> bool:
        """Whether the task's own draws can be made again from their seeds."""
        return self.loaded.draw(0, 1).equal(self.loaded.draw(0, 1))

    def correctness(self) -> list[Case]:
        """Every case a kernel must pass: all variants, own draws first, then all valid regimes, and own draws with other weights last."""
        found: list[Case] = []
        for variant in range(len(self.loaded.task.variants)):
            found += self._group(variant, OWN, version=0)
            found += [c for regime in self.plan(variant).regimes if regime != OWN for c in self._group(variant, regime, version=0)]
            found += self._group(variant, OWN, version=1)
        return found

    def prepare(self) -> None:
        """Compute everything that `correctness`, `timed` and `unseen` will need, as far as the memory allows."""
        for case in self.correctness():
            self.budgets(case)
        self.unseen(prepares=False)

    def timed(self) -> list[Case]:
        """The cases timed calls run on: three own draws of the first variant."""
        return self._group(0, OWN, version=0)

    def screening(self) -> list[Case]:
        """A cheap first look: two own draws of the first variant."""
        return self.timed()[:2]

    def unseen(self, *, prepares: bool) -> dict[str, list[Unseen]]:
        """For timed calls, by mode: what a call on them takes says whether a kernel computes its answers or remembers them. A mode is missing where
        scalars vary from call to call (a slot is captured anew for those, on its data) or the memory is short.

        Args:
            prepares: the kernel prepares something from the weights, which then stay those of the known cases.
        """
        own = self._draws_weights(prepares)
        if own not in self._unseen:
            found, signature = self._unseen.setdefault(own, {}), self.loaded.task.variants[0]
            fit = self._limit // _CACHE_SHARE // max(1, sum(s.size_bytes for s in signature.tensors))
            for mode in sorted(MODES, key=lambda m: m != self.loaded.task.options.score):  # that which counts first: the memory may do for one
                if fit >= FEWEST_UNSEEN and not any(s.varies for s in signature.scalars):
                    found[mode] = self._drawn(mode, min(_UNSEEN, fit), own_weights=own)
                    fit -= len(found[mode])
        return self._unseen[own]

    def _drawn(self, mode: str, most: int, *, own_weights: bool) -> list[Unseen]:
        start, found = time.monotonic(), list[Unseen]()
        while len(found) < FEWEST_UNSEEN or (len(found) < most and time.monotonic() - start < _UNSEEN_S):
            key = ("unseen", mode, len(found))
            found.append(self._with_outputs(self.loaded.draw(0, self._seed(*key)), key, own_weights=own_weights))
        return found

    def _draws_weights(self, prepares: bool) -> bool:
        """Whether unseen inputs come with weights of their own."""
        return not prepares and self._counters is not None

    def _with_outputs(self, draw: Draw, key: tuple[object, ...], *, own_weights: bool) -> Unseen:
        weights = redraw_weights(self.loaded, self._seed("weights", *key), counters=bool(self._counters)) if own_weights else {}
        return Unseen(self._place({**draw.tensors, **weights}), self._place(self.loaded.run(draw, weights or self.weights[0])))

    def exchanged(self, mode: str, *, prepares: bool) -> tuple[list[Case], list[Unseen]]:
        """Other known cases, and as unseen inputs for this mode those that were known until now (with other weights) and some of the others."""
        own = self._draws_weights(prepares)
        before = [self._with_outputs(c.draw, ("exchanged", mode, c.number), own_weights=own) for c in self.timed()]
        rest = self.unseen(prepares=prepares).get(mode, [])
        return [Case(0, OWN, 0, _EXCHANGED + n, self) for n in range(OWN_DRAWS)], before + rest[: FEWEST_UNSEEN - len(before)]

    def alike(self, unseen: Unseen, outputs: Mapping[str, Tensor]) -> bool:
        """Whether a kernel's outputs on unseen inputs are like the reference's: of elements chosen at random a tenth at most is off by more than
        several budgets, with the scales of the first known case, or in proportion to its. Truth for each would take a dozen evaluations; this is
        enough to tell an answer from a guess."""
        known = self.timed()[0]
        budgets, truth = self.budgets(known), self.entry(known).placed_outputs
        for name, reference in unseen.outputs.items():
            some = torch.randint(max(1, reference.numel()), (min(reference.numel(), _SAMPLE),), device=reference.device)
            expected = Expected(reference.reshape(-1)[some], _scale_like(truth[name], some, reference))
            wrong = wrong_elements(outputs[name].reshape(-1)[some], expected, Budget(_LIKE * budgets[name].max_units))
            if int(wrong.sum()) > _UNLIKE_SHARE * wrong.numel():
                return False
        return True

    def regimes(self) -> tuple[str, ...]:
        """Names of the regimes that are valid for the timed variant."""
        return tuple(self.plan(0).regimes)

    def plan(self, variant: int) -> InputPlan:
        if variant not in self._plans:
            self._plans[variant] = InputPlan(self.loaded, variant)
        return self._plans[variant]

    def check(self, case: Case, outputs: Mapping[str, Tensor]) -> tuple[list[ErrorRow], str | None]:
        """One row an output, and None or what is wrong, for the outputs of a kernel by plan name.

        What fails narrowly is compared again with scales from more noise draws, which the case keeps from then on.
        """
        rows, message = self._compared(case, outputs)
        narrow = all(r.passed or 0 < r.max_units <= _NARROW * r.budget_units for r in rows)
        if message is None or case in self._sharp or not narrow or not self.repeatable:
            return rows, message
        self._sharp.add(case)
        self._entries.pop(case, None)
        return self._compared(case, outputs)

    def _compared(self, case: Case, outputs: Mapping[str, Tensor]) -> tuple[list[ErrorRow], str | None]:
        signature = self.signature(case)
        budgets = self.budgets(case)
        return compare(signature.outputs, outputs, self.entry(case).placed_outputs, budgets, Place(case.regime, case.variant, signature.inputs))

    def trust(self, case: Case, outputs: Mapping[str, Tensor]) -> dict[str, Measured]:
        """Count an implementation that is known to be right (torch.compile, say) into the budgets of the case's regime."""
        truth = self.entry(case).truth.outputs
        found = {name: measure(output, truth[name]) for name, output in outputs.items()}
        for name, measured in found.items():
            key = (case.variant, case.regime, name)
            self._trusted[key] = self._trusted.get(key, Measured()).worst(measured)
        return found

    def budgets(self, case: Case) -> dict[str, Budget]:
        """The budget of each output: pooled over every case of the regime in this variant, so it does not depend on what ran before."""
        for other in (*self._group(case.variant, case.regime, 0), *self._group(case.variant, case.regime, 1), case):
            if (other, self.signature(case).outputs[0].name) not in self._eager_abs:
                self.entry(other)
        units = self.loaded.task.options.tolerance_units
        return {
            spec.name: budget_of(spec, self._trusted[case.variant, case.regime, spec.name], self._eager_abs[case, spec.name], units)
            for spec in self.signature(case).outputs
        }

    def entry(self, case: Case) -> Entry:
        """The data of a case, from the cache or made now."""
        if case in self._entries:
            self._entries.move_to_end(case)
            return self._entries[case]
        entry = self._make(case)
        self._entries[case] = entry
        while len(self._entries) > 1 and sum(e.size_bytes for e in self._entries.values()) > self._limit and self.repeatable:
            self._entries.popitem(last=False)
        return entry

    def eager(self, case: Case) -> dict[str, Tensor]:
        """The reference's outputs in the task's own dtypes."""
        return self.loaded.run(self.entry(case).draw, case.weights)

    def narrowed(self, case: Case, mantissa_bits: int) -> dict[str, Tensor]:
        """What the reference gives when its float inputs and weights keep so few bits of their mantissa (exact otherwise)."""
        draw = case.draw.replace({n: rounded(t, mantissa_bits) for n, t in case.draw.tensors.items()})
        values, _ = evaluate(self.loaded, draw, {n: rounded(t, mantissa_bits) for n, t in case.weights.items()})
        return {spec.name: values[spec.name].to(getattr(torch, spec.dtype)) for spec in self.signature(case).outputs}

    def signature(self, case: Case) -> Signature:
        return self.loaded.task.variants[case.variant]

    def _group(self, variant: int, regime: str, version: int) -> list[Case]:
        """The cases of one regime with one version of the weights. The second version is checked on one own draw."""
        count = OWN_DRAWS if regime == OWN and variant == 0 else 1
        if version == 0:
            return [Case(variant, regime, 0, n, self) for n in range(count)]
        return [Case(variant, OWN, 1, count, self)] if regime == OWN and len(self.weights) > 1 else []

    def _seed(self, *key: object) -> int:
        digest = hashlib.blake2b(f"{self._master}:{key}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1

    def _weight_versions(self) -> dict[int, dict[str, Tensor]]:
        """Two sets of weights (one for a module without any), or those of the constructor where the reference cannot take others."""
        original = self.loaded.weights()
        if not original:
            return {0: {}}
        draw = self.loaded.draw(0, self._seed("sanity"))
        before = self.loaded.run(draw)
        for counters in (True, False):
            versions = {n: redraw_weights(self.loaded, self._seed("weights", n), counters=counters) for n in (0, 1)}
            with suppress(TaskError):
                if all(_as_finite(self.loaded.run(draw, w), before) for w in versions.values()):
                    self._counters = counters
                    return versions
        self.notes.append("parameters keep their values from the constructor: with others the reference fails or gives NaN or Inf")
        return {0: {name: tensor.clone() for name, tensor in original.items()}}

    def _make(self, case: Case) -> Entry:
        seed = self._seed(case.variant, case.regime, case.version, case.number)
        draw = self.loaded.draw(case.variant, seed) if case.regime == OWN else self.plan(case.variant).draw(case.regime, seed)
        outputs = self.loaded.run(draw, case.weights)
        truth = truth_of(self.loaded, draw, case.weights, outputs, self._seed("noise", seed), sharp=case in self._sharp)
        eager = {name: block_errors(output, truth.outputs[name]) for name, output in outputs.items()}
        entry = Entry(draw, truth, self._place(draw.tensors), {n: e.placed(self._place) for n, e in truth.outputs.items()})
        self._entries[case] = entry
        self._eager_abs |= {(case, name): errors for name, errors in eager.items()}
        self.trust(case, outputs)
        with one_thread():
            self.trust(case, self.loaded.run(draw, case.weights))
        bits = MANTISSA_BITS.get(self.loaded.task.options.precision)
        if bits is not None and truth.products:
            self.trust(case, self.narrowed(case, bits))
        return entry


def _scale_like(known: Expected, some: Tensor, reference: Tensor) -> Tensor | None:
    """Scales (n,) for some elements of a reference of which only the known case's are there: where that one is zero or small, others count."""
    if known.scale is None:
        return None
    scale, value = known.scale.reshape(-1)[some], known.value.reshape(-1)[some].abs()
    share = (scale / value)[value > 0]
    usual = share.quantile(_USUAL) if share.numel() else 0.0
    return torch.maximum(scale, (usual * reference.reshape(-1)[some].abs()).to(scale.dtype))


def _as_finite(outputs: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> bool:
    """No NaN or Inf in outputs that had none before."""
    return all(bool(t.isfinite().all()) or not bool(before[n].isfinite().all()) for n, t in outputs.items() if t.is_floating_point())
