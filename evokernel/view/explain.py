"""`evokernel judge --explain`: what was checked, with which data and budgets, in words and tables that a sceptic can follow."""

from __future__ import annotations

from collections.abc import Mapping

from ..judge.timing import CONFIDENCE
from ..records import Admission, ErrorRow, Timing, Verdict
from ..records.profile import profile
from .tables import table
from .terminal import shown


def explanation(verdict: Verdict, admission: Admission) -> dict[str, str]:
    """Topic -> what holds for this verdict, in the order of judging."""
    gpu, task, left, here, timing = admission.device.target == "cuda", admission.task, admission.left_out, verdict.environment, verdict.timing
    cases = len(verdict.errors) // max(len({e.output for e in verdict.errors}), 1)  # each has a row for every output
    weights = "; weights drawn anew, twice, and bound twice" if task.signature.weights else ""
    own_units = "" if task.options.tolerance_units is None else f", here replaced by the task's own {task.options.tolerance_units:g}"
    not_failing = f"; did NOT fail: {', '.join(admission.survived)}" * bool(admission.survived)
    return {
        "kernel": f"{verdict.kernel_id}, configuration {_pairs(verdict.config) or 'without tunables'}, compiled code {verdict.code_hash or '-'}",
        "task": f"{task.name} ({task.id}), {len(task.variants)} shape(s), precision {task.options.precision.value}{', by force' * admission.forced}",
        "inputs": f"{cases} case(s) compared in full: your get_inputs under secret seeds, then the regimes "
        f"{', '.join(r for r in admission.regimes if r != 'own') or '(none)'}{weights}",
        "regimes left out": "; ".join(f"{', '.join(r for r in left if left[r] == why)}: {why}" for why in dict.fromkeys(left.values())) or "none",
        "trivial candidates": f"{', '.join(admission.trivial) or 'none'}: each failed this very check when the task was admitted{not_failing}",
        "truth": "your module in float64 throughout, on the same inputs and weights",
        "error unit": "by element: what noise of one unit in the last place on inputs and weights does (rms), plus one unit in the last place",
        "budget": f"8 times what trusted implementations need, at least 32 units (64 for small outputs){own_units}; up to twice eager's own largest "
        "absolute error in a block of 256 elements passes there, unless the task sets the units; 16-bit outputs: instead of all that twice the "
        "largest and 1.5 times the rms of the trusted; whole numbers exact",
        "buffers": "outputs and scratch hold NaN or secret values before each call; guard patterns around each buffer, looked at after it; inputs "
        f"and weights {'compared afterwards' if gpu else 'in memory sealed against writing'}; the same inputs must give the same bits again, unless "
        "the plan says @nondeterministic",
        "confinement": f"sandbox {here.sandbox or 'not started'}, one process a kernel",
        "compute-sanitizer": here.sanitizer or ("not run: no finalist, or failed before" if gpu else "for GPUs only"),
        **(_timed(timing, gpu=gpu) if timing else {"times": f"none: the kernel is not verified (stage {verdict.stage})"}),
        "bounds": _bounds(verdict, admission.device.bandwidth_gbs),
        "stages": ", ".join(f"{stage} {seconds:.3f} s" for stage, seconds in verdict.stages_s.items()),
        "versions": f"{here.device}, {here.architecture}, {here.compiler}, {_pairs(here.versions)}, protocol {here.protocol}",
        "notes": "; ".join(admission.notes) or "none",
    }  # fmt: skip


def explain_text(verdict: Verdict, admission: Admission) -> str:
    """All of it, with the errors, baselines and profile in tables."""
    parts = [table(("what", "how"), list(explanation(verdict, admission).items()))]
    if verdict.errors:
        head = ("output", "regime", "shape", "cases", "largest error", "rms", "budget (units)", "largest absolute", "passed")
        parts.append(table(head, _error_rows(verdict.errors)))
    for mode in verdict.timing.modes if verdict.timing else ():
        rows = [(b.name, f"{b.median_us:.1f} us", shown(b.speedup), "in this race" if b.live else "cached, times drift") for b in mode.baselines]
        parts.append(table((f"baseline ({mode.mode})", "median", f"speedup ({CONFIDENCE:.0%} interval)", "measured"), rows))
    return "\n\n".join([*parts, profile(verdict, admission.device).text])


def _pairs(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _timed(timing: Timing, *, gpu: bool) -> dict[str, str]:
    calls = ", ".join(f"{m.calls} {m.mode}" for m in timing.modes)
    several = f"of each of {timing.starts} starts of both sides in fresh processes on fresh buffers the median; of these the"
    over = several if timing.starts > 1 else "of one start of both sides (where buffers lie is not in it) the" if not gpu else "the"
    clock = "time between two events around one captured graph, checked against the judge's clock" if gpu else "the judge's clock alone"
    return {
        "calls": f"{calls}; {timing.verified_calls} timed calls compared in full: chosen in secret, and each new fastest one that is still there",
        "memory": "up to twelve calls in each mode came secretly on inputs new to the process: not slower than others, and like eager",
        "clock": f"{clock}; rotating over three sets of buffers and of inputs; cold: evicted from the caches before each call; {timing.score} counts",
        "speedup": f"blocks of kernel, baseline, baseline, kernel, two ratios each; {over} median, with the {CONFIDENCE:.0%} interval of order "
        "statistics, which assumes nothing about the noise; only its lower end counts",
        "disturbed": f"{timing.void_blocks} block(s) void: the clock moved or was throttled; clock in MHz: {timing.clock_mhz or 'not known'}",
    }


def _bounds(verdict: Verdict, bandwidth_gbs: float) -> str:
    found, unknown = verdict.bounds, "not known (`evokernel doctor --measure`)"
    if found is None:
        return "not computed: the kernel has no time"
    peak = f"the driver's {bandwidth_gbs:.0f} GB/s; a cold time under this bound is rejected" if bandwidth_gbs else "the measured copy rate"
    traffic = f"{found.traffic_fraction:.4f} of {peak}" if found.traffic_fraction else unknown
    work = f"{found.work_fraction:.4f} of the measured product rate" if found.work_fraction else unknown if found.work_flop else "no products"
    return (
        f"traffic {found.traffic_bytes} bytes (inputs with a gradient whose redraw fails the check, and outputs): {traffic}; "
        f"work {found.work_flop} FLOP of the reference: {work}"
    )


def _error_rows(errors: tuple[ErrorRow, ...]) -> list[tuple[object, ...]]:
    """One row an output, regime and shape: the worst over its cases."""
    found: list[tuple[object, ...]] = []
    for key in dict.fromkeys((e.output, e.regime, e.variant) for e in errors):
        rows = [e for e in errors if (e.output, e.regime, e.variant) == key]
        units, budget = max(r.max_units for r in rows), min(r.budget_units for r in rows)
        rms, absolute = max(r.rms_units for r in rows), max(r.max_abs for r in rows)
        passed = ("yes" if units <= budget else "yes, by eager's own error") if all(r.passed for r in rows) else "NO"
        found.append((*key, len(rows), f"{units:.4g}", f"{rms:.4g}", f"{budget:.4g}", f"{absolute:.4g}", passed))
    return found
