"""What a verdict says about where a kernel's time goes: a dozen figures and one bottleneck, for prompts and for people. Measures nothing.

Pure, and imports no torch. What it goes by: the fractions of the two bounds (bounds.py), what the compiler made, and the times. Hardware counters
(stall reasons) are not read: they need a profiler with rights that most machines do not give.
"""

from __future__ import annotations

from dataclasses import dataclass

from .task import Device
from .verdict import Bounds, Resources, Timing, Verdict

_NEAR = 0.5  # of a bound: from here on little but less work helps
_SHORT_US = {True: 10.0, False: 30.0}  # GPU, CPU: what starting alone takes a good part of
_FEW_RESIDENT = 0.25  # occupancy below which latency can hardly be hidden


@dataclass(frozen=True)
class Figure:
    """One figure with its unit, unrounded."""

    name: str
    value: float | int | str
    unit: str = ""

    @property
    def text(self) -> str:
        """The value to six digits, and its unit."""
        return f"{f'{self.value:.6g}' if isinstance(self.value, float) else self.value} {self.unit}".strip()


@dataclass(frozen=True)
class Profile:
    """`bottleneck`: memory, compute, latency, or unknown; `why`: from which figures, and what would help."""

    bottleneck: str
    why: str
    figures: tuple[Figure, ...]

    @property
    def text(self) -> str:
        """Line by line, the bottleneck first."""
        return "\n".join([f"bottleneck {self.bottleneck}: {self.why}", *(f"{f.name}: {f.text}" for f in self.figures)])


def profile(verdict: Verdict, device: Device | None = None) -> Profile:
    """The profile of a kernel, as far as its verdict goes: one that failed has what the compiler said, or nothing.

    Args:
        device: where it was judged; without it few blocks and idle cores are not seen.
    """
    timing, made, bounds = verdict.timing, verdict.resources or Resources(), verdict.bounds or Bounds()
    figures = (_measured(timing, bounds) if timing else []) + (_compiled(made) if verdict.resources else [])
    bottleneck, why = _bottleneck(timing, bounds, made, device) if timing else ("unknown", f"it has no time ({verdict.status.value})")
    return Profile(bottleneck, why, tuple(figures))


def _measured(timing: Timing, bounds: Bounds) -> list[Figure]:
    """What is not known is left out."""
    fastest = timing.scored.fastest
    found = (
        *(Figure(f"time, {mode.mode}", mode.median_us, "us") for mode in timing.modes),
        Figure(f"speedup against {fastest.name} (lower bound)", fastest.speedup.low, "x"),
        Figure("traffic that must be", bounds.traffic_bytes, "bytes"),
        Figure("bandwidth by that traffic, cold", bounds.traffic_bytes / _cold_us(timing) / 1e3, "GB/s"),
        Figure("share of the peak bandwidth", bounds.traffic_fraction),
        Figure("work of the reference", bounds.work_flop, "FLOP"),
        Figure("rate by that work", bounds.work_flop / timing.scored.median_us / 1e6, "TFLOP/s"),
        Figure("share of a matrix product's rate", bounds.work_fraction),
    )
    return [f for f in found if f.value]


def _compiled(made: Resources) -> list[Figure]:
    gpu = (
        Figure("registers", made.registers, "a thread"), Figure("spills and stack", made.spill_bytes, "bytes a thread"),
        Figure("static shared memory", made.shared_bytes, "bytes a block"), Figure("occupancy", made.occupancy),
        Figure("blocks of the largest launch", made.blocks),
    )  # fmt: skip
    return [Figure("instruction features", ", ".join(made.features) or "none"), *(gpu if made.registers else ())]


def _cold_us(timing: Timing) -> float:
    return next((m.median_us for m in timing.modes if m.mode == "cold"), timing.scored.median_us)


def _bottleneck(timing: Timing, bounds: Bounds, made: Resources, device: Device | None) -> tuple[str, str]:
    """The larger fraction where it is near its bound; otherwise what keeps the device from being busy; otherwise the larger one, far from it."""
    traffic, work = bounds.traffic_fraction, bounds.work_fraction
    near = max(traffic, work) >= _NEAR
    causes = [] if near else _starved(_cold_us(timing), made, device)
    if causes:
        return "latency", f"{_reached(traffic, work)}; {'; '.join(causes)}"
    if not max(traffic, work):
        return "unknown", "neither bandwidth nor product rate of this device is known: `evokernel doctor --measure` measures them"
    kind = "memory" if traffic >= work else "compute"
    return kind, f"{_reached(traffic, work)}; {_advice(kind, near, made)}"


def _reached(traffic: float, work: float) -> str:
    shares = ((traffic, "of the peak bandwidth"), (work, "of a matrix product's rate"))
    return " and ".join(f"{share:.1%} {what}" for share, what in shares if share) or "no bound is known"


def _starved(cold_us: float, made: Resources, device: Device | None) -> list[str]:
    """Why most of the device may be idle, each with what would help."""
    gpu, cores = made.registers > 0, device.sm_count if device else 0
    found = []
    if cold_us < _SHORT_US[gpu]:
        found.append(f"{cold_us:.3g} us is little more than {'a launch' if gpu else 'starting threads'} takes: do all in one step, start less")
    if gpu and 0 < made.blocks < cores:
        found.append(f"the largest launch has {made.blocks} blocks for {cores} multiprocessors: split rows or the inner dimension over more blocks")
    if gpu and 0 < made.occupancy < _FEW_RESIDENT:
        found.append(f"occupancy {made.occupancy:.2f}: fewer registers or less shared memory a block, or more independent loads a thread")
    if gpu and made.spill_bytes:
        found.append(f"{made.spill_bytes} bytes a thread in local memory: keep fewer values alive, index arrays by constants only")
    if not gpu and cores > 1 and made.features and "openmp" not in made.features:
        found.append(f"one of {cores} cores works: #pragma omp parallel for")
    return found


def _advice(kind: str, near: bool, made: Resources) -> str:
    gpu, has = made.registers > 0, made.features
    if kind == "memory" and near:
        return "only fewer bytes help much: read each input once, keep what is needed again on chip, write nothing in between"
    if kind == "memory":
        wide = "load 16 bytes a thread" if gpu and "vector_loads" not in has else "have more loads in flight" if gpu else "stream in order"
        return f"inputs are read more than once, or accesses are narrow or scattered: keep a row on chip between passes, {wide}"
    if near:
        return "only less work helps much: simplify the algebra, or products of split precision if the error budget allows"
    if gpu:
        unit = "keep the tensor cores fed by asynchronous copies" if "tensor_cores" in has else "use tensor cores (split precision)"
        return f"the arithmetic units wait: larger tiles in registers, {unit}"
    return f"the arithmetic units wait: block for the caches, {'use several accumulators' if 'fma' in has else 'let the inner loop vectorise'}"
