"""Whether a task can be judged honestly: candidates that do none of its work must fail its own check, and eager must pass it.

A task on which zeros, a copy of an input or the last answer pass would let any kernel win; it is refused by name before any search.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import TaskError
from ..records import Precision, Role, TensorSpec
from .cases import Case, Cases
from .compare import Budget, measure, wrong_elements
from .truth import Expected

_HEAD = 1 << 16  # elements looked at first
_IDLE_SECONDS = 4.0  # spent on finding parameters and inputs that do not matter
_LAX_UNITS = 1e4  # a budget above this deserves a note

Outputs = dict[str, Tensor]
Trivial = Callable[[Case], Outputs]  # a candidate: the outputs it would give (those it can)


@dataclass(frozen=True)
class Findings:
    """What admission found. `trivial`: the candidates that were tried and fail; `survived`: those that do not, on a task that is refused."""

    trivial: tuple[str, ...]
    survived: tuple[str, ...]
    notes: tuple[str, ...]
    forced: bool = False


def admit(cases: Cases, *, force: bool = False) -> Findings:
    """Try all trivial candidates on the task's own check.

    Args:
        force: note a refusal and mark the findings instead of raising.

    Raises:
        TaskError: refused, with what would help.
    """
    candidates = _candidates(cases)
    refusal, survived = _refusal(cases, candidates)
    if refusal and not force:
        raise TaskError(f"{refusal} (--force judges it all the same and marks every result)", refused=True)
    notes = [*cases.loaded.notes, *cases.notes, *_draws(cases), *_idle_notes(cases, _idle(cases)), *_lax(cases)]
    if refusal:
        notes.append(f"judged by force: {refusal}")
    return Findings(tuple(c for c in candidates if c not in survived), survived, tuple(notes), forced=bool(refusal))


def _candidates(cases: Cases) -> dict[str, Trivial]:
    signature = cases.loaded.task.signature
    found: dict[str, Trivial] = {
        "zeros": lambda case: _filled(cases, case, 0),
        "ones": lambda case: _filled(cases, case, 1),
        "mean of the output": lambda case: _means(cases, case),
        "output for other inputs": lambda case: _other(cases, case),
        "previous output": lambda case: _previous(cases, case),
        "last rows skipped": lambda case: _tail_skipped(cases, case),
    }
    for spec in signature.inputs:
        found[f"input {spec.name}"] = _copy_of(cases, spec.name)
    for spec in signature.of_role(Role.PARAMETER):
        found[f"parameter {spec.name}"] = _copy_of(cases, spec.name)
    narrow = [t.dtype for t in signature.outputs if t.floating and t.itemsize < 4]
    if cases.loaded.task.options.precision is Precision.STRICT and not narrow and cases.timed()[0].truth.products:
        found["tf32 copy"] = lambda case: cases.narrowed(case, 10)
        found["16-bit copy"] = lambda case: cases.narrowed(case, 7)
    return found


def _draws(cases: Cases) -> list[str]:
    if not cases.repeatable:
        return ["get_inputs() gives other values for the same seed; draw from torch, numpy.random or random, so that a judging can be repeated"]
    first, other = cases.timed()[0].draw, cases.loaded.draw(0, 1)
    same = "get_inputs() gives the same values each time: kernels are checked on others, too, but timed on these alone"
    return [same] if first.tensors and first.equal(other) else []


def _filled(cases: Cases, case: Case, value: int) -> Outputs:
    return {t.name: torch.full(t.shape, value, dtype=getattr(torch, t.dtype)) for t in cases.signature(case).outputs}


def _means(cases: Cases, case: Case) -> Outputs:
    """The mean of eager's answer to other inputs, everywhere (of these inputs it would be right where an output has one element)."""
    return {name: torch.full_like(t, t.double().nanmean().to(t.dtype).item()) for name, t in _other(cases, case).items()}


def _other(cases: Cases, case: Case) -> Outputs:
    """Eager's answer to the task's next own draw, with the same weights."""
    draw = cases.loaded.draw(case.variant, case.number + 1)
    return cases.loaded.run(draw, case.weights)


def _previous(cases: Cases, case: Case) -> Outputs:
    """Eager's answer to the case before this one (the last one, for the first)."""
    same = [c for c in cases.correctness() if c.variant == case.variant]
    return cases.eager(same[same.index(case) - 1]) if len(same) > 1 else {}


def _tail_skipped(cases: Cases, case: Case) -> Outputs:
    """Eager's answer with zeros in its last sixteenth of rows; empty where no output has rows."""
    if not any(t.shape and t.shape[0] > 1 for t in cases.signature(case).outputs):
        return {}
    outputs = cases.eager(case)
    for output in outputs.values():
        if output.ndim and output.shape[0] > 1:
            output[-max(1, output.shape[0] // 16) :] = 0
    return outputs


def _copy_of(cases: Cases, name: str) -> Trivial:
    def give(case: Case) -> Outputs:
        source = case.draw.tensors[name] if name in case.draw.tensors else case.weights[name]
        fitted = {t.name: _fit(source, t) for t in cases.signature(case).outputs}
        return {output: tensor for output, tensor in fitted.items() if tensor is not None}

    return give


def _fit(source: Tensor, spec: TensorSpec) -> Tensor | None:
    """`source` reshaped or broadcast to an output's shape and dtype; None where neither works."""
    if source.numel() == spec.numel:
        return source.reshape(spec.shape).to(getattr(torch, spec.dtype))
    aligned = len(source.shape) <= len(spec.shape) and all(a in (1, b) for a, b in zip(source.shape[::-1], spec.shape[::-1], strict=False))
    return source.broadcast_to(spec.shape).to(getattr(torch, spec.dtype)) if aligned else None


def _refusal(cases: Cases, candidates: Mapping[str, Trivial]) -> tuple[str | None, tuple[str, ...]]:
    """Why the task cannot be judged, or None, and the candidates that did not fail. Cases are made only as long as some candidate still passes."""
    outputs = [t.name for t in cases.loaded.task.signature.outputs]
    alive = {(candidate, output) for candidate in candidates for output in outputs}
    refusal: str | None = None
    for case in cases.correctness():
        tried = [c for c in candidates if any((c, o) in alive for o in outputs)]
        if not tried:
            break
        wrong = [o for o, ok in _passes(cases, case, cases.eager(case)).items() if not ok]
        if wrong:
            refusal = f"the task cannot be judged: its own reference fails the check on `{wrong[0]}` with '{case.regime}' inputs"
            break
        for candidate in tried:
            passed = _passes(cases, case, candidates[candidate](case))
            alive -= {(candidate, o) for o in outputs if not passed.get(o, False)}
    survived = tuple(c for c in candidates if all((c, o) in alive for o in outputs))
    return refusal or (_reason(survived[0]) if survived else _named(cases, candidates, outputs, alive)), survived


def _named(cases: Cases, candidates: Mapping[str, Trivial], outputs: list[str], alive: set[tuple[str, str]]) -> str | None:
    """The refusal for outputs each of which some candidate gives, or None. Those that one gives are noted."""
    partial = ("tf32 copy", "16-bit copy", "last rows skipped")
    given = {o: next((c for c in candidates if (c, o) in alive and c not in partial), None) for o in outputs}
    if all(given.values()):
        return f"no output needs any work: {', '.join(f'`{o}` is the {c}' for o, c in given.items())}; let forward() compute something"
    roles = {t.name: t.role for t in cases.loaded.task.signature.outputs}
    cases.notes += [f"output `{o}` is always the {c}: it checks nothing" for o, c in given.items() if c and roles[o] is Role.OUTPUT]
    return None


def _reason(candidate: str) -> str:
    if candidate.startswith("input "):
        return f"the task is identity-like: a copy of {candidate} passes its check; let forward() change its inputs by more than rounding does"
    if candidate in ("zeros", "ones", "mean of the output") or candidate.startswith("parameter "):
        return f"the task is input-independent: {candidate} pass its check on every input; let the output depend on the inputs"
    if candidate in ("output for other inputs", "previous output"):
        return "the task is input-independent: its output for other inputs passes its check; let get_inputs() draw values that matter"
    if candidate == "last rows skipped":
        return "the task cannot tell whether the last rows were computed: they are zero on every input; use inputs without such padding"
    return (
        f"the task cannot tell full precision from reduced: a {candidate} passes its check; set EVOKERNEL = {{'precision': 'tf32'}} or 'reduced' "
        "in the task file if that is meant, or return what depends on the product more directly"
    )


def _passes(cases: Cases, case: Case, outputs: Mapping[str, Tensor]) -> dict[str, bool]:
    """Which of the given outputs are within their budget on a case."""
    budgets, truth = cases.budgets(case), case.truth.outputs
    return {name: _within(output, truth[name], budgets[name]) for name, output in outputs.items()}


def _within(output: Tensor, expected: Expected, budget: Budget) -> bool:
    if bool(wrong_elements(output.reshape(-1)[:_HEAD], _head(expected), budget).any()):
        return False
    return measure(output, expected).rms_units <= budget.rms_units and not bool(wrong_elements(output, expected, budget).any())


def _head(expected: Expected) -> Expected:
    parts = (None if t is None else t.reshape(-1)[:_HEAD] for t in (expected.value, expected.scale, expected.high))
    return Expected(*parts)


def _idle(cases: Cases) -> list[str]:
    """Names of inputs and parameters whose values change no output, as far as the time allows to look."""
    case = cases.timed()[0]
    loaded, start = cases.loaded, time.monotonic()
    before = cases.eager(case)
    other_draw = loaded.draw(0, 1)
    other_weights = cases.weights.get(1, {})
    found: list[str] = []
    for spec in (*loaded.task.signature.inputs, *loaded.task.signature.of_role(Role.PARAMETER)):
        if time.monotonic() - start > _IDLE_SECONDS:
            break
        draw, weights = case.draw, case.weights
        if spec.role is Role.INPUT:
            if torch.equal(other_draw.tensors[spec.name], draw.tensors[spec.name]):
                continue
            draw = draw.replace({spec.name: other_draw.tensors[spec.name]})
        elif spec.name in other_weights:
            weights = {**weights, spec.name: other_weights[spec.name]}
        after = loaded.run(draw, weights)
        if all(torch.equal(after[name], value) for name, value in before.items()):
            found.append(spec.name)
    return found


def _idle_notes(cases: Cases, idle: list[str]) -> list[str]:
    return [f"{cases.loaded.task.signature.tensor(name).role} `{name}` does not change the output" for name in idle]


def _lax(cases: Cases) -> list[str]:
    budgets = cases.timed()[0].budgets
    return [
        f"output `{name}` has a budget of {budget.max_units:.0f} units: eager itself loses most of its digits there"
        for name, budget in budgets.items()
        if budget.max_units > _LAX_UNITS
    ]
