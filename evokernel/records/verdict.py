"""What the judge says: of a kernel, of a configuration, of a task."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from .task import Config, Device, Task

PROTOCOL = 2  # version of the judging rules; verdicts of different protocols are never compared
MAX_RATIO = 1e6  # of times; no honest measurement comes near it: the judge would wait for seconds for each call of the baseline


class Status(StrEnum):
    """How the judging of one kernel ended."""

    NO_KERNEL = "no_kernel"
    INVALID = "invalid"
    BUILD_FAILED = "build_failed"
    LAUNCH_FAILED = "launch_failed"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    RESOURCES = "resources"
    MISMATCH = "mismatch"
    CHEATING = "cheating"
    VERIFIED = "verified"


@dataclass(frozen=True)
class Interval:
    """A ratio of times with its 99 % interval, which is open (0 to inf) after few blocks. Selection, records and exports use `low`."""

    low: float
    mid: float
    high: float

    def __post_init__(self) -> None:
        if not (0 <= self.low <= self.mid <= self.high and 0 < self.mid <= MAX_RATIO):
            raise ValueError(f"not the interval of a ratio of times: {self.low}, {self.mid}, {self.high}")


@dataclass(frozen=True)
class ErrorRow:
    """The error of one output in one regime, in units (see judge/compare.py), against its budget."""

    output: str
    regime: str
    variant: int
    max_units: float
    rms_units: float
    max_abs: float
    budget_units: float
    passed: bool


@dataclass(frozen=True)
class BaselineTime:
    """One baseline beside the candidate. `live`: interleaved with it in this very run; otherwise a cached time times the drift."""

    name: str
    median_us: float
    speedup: Interval
    live: bool


@dataclass(frozen=True)
class ModeTiming:
    """Times of one mode (`cold` or `warm`) over verified calls."""

    mode: str
    median_us: float
    p10_us: float
    p90_us: float
    calls: int
    baselines: tuple[BaselineTime, ...]

    def __post_init__(self) -> None:
        times = (self.median_us, self.p10_us, self.p90_us, *(b.median_us for b in self.baselines))
        if not self.baselines or not all(0 < t < math.inf for t in times):
            raise ValueError(f"a mode has baselines and times above 0, not {', '.join(map(str, times))} us")

    @property
    def fastest(self) -> BaselineTime:
        """The baseline that the candidate gains least on."""
        return min(self.baselines, key=lambda b: b.speedup.mid)


@dataclass(frozen=True)
class Timing:
    """All times of a verified kernel. `score` names the mode whose lower bound counts. `prepare_us`: weight preparation, off the clock.
    `void_blocks`: blocks of four turns thrown away because the clock moved or was throttled meanwhile; `clock_mhz`: the GPU's clock (0: not known).
    `verified_calls`: timed calls, of all modes, whose outputs were compared in full. `starts`: how often both sides were started anew for the times
    that count."""

    score: str
    modes: tuple[ModeTiming, ...]
    prepare_us: float = 0.0
    void_blocks: int = 0
    clock_mhz: int = 0
    verified_calls: int = 0
    starts: int = 1

    def __post_init__(self) -> None:
        if self.score not in [m.mode for m in self.modes]:
            raise ValueError(f"there are no times of the mode {self.score!r}, which counts")

    @property
    def scored(self) -> ModeTiming:
        return next(m for m in self.modes if m.mode == self.score)


@dataclass(frozen=True)
class Resources:
    """What the compiler made: sizes in bytes, instruction features ("avx2", "fma", "gather" ...). `occupancy`: the share of a multiprocessor's
    threads that can be resident, in the launch that has the fewest (0 on a CPU); `blocks`: of the largest launch (0 on a CPU)."""

    code_bytes: int = 0
    registers: int = 0
    spill_bytes: int = 0
    shared_bytes: int = 0
    features: tuple[str, ...] = ()
    occupancy: float = 0.0
    blocks: int = 0


@dataclass(frozen=True)
class Bounds:
    """What the task costs at least, and the fractions of it that a kernel reaches (0: not known).

    Traffic: bytes of the inputs that matter and of the outputs, against the device's peak bandwidth, in the cold mode; outputs that are still in the
    second-level cache when a call ends can make it pass 1. Work: the reference's multiply-adds in FLOP, against the measured rate of a matrix product
    (`evokernel doctor --measure`); algebra may save work, so it can pass 1.
    """

    traffic_bytes: int = 0
    traffic_fraction: float = 0.0
    work_flop: int = 0
    work_fraction: float = 0.0


@dataclass(frozen=True)
class Environment:
    """Where and how a verdict was made. `sandbox`: how the candidate was confined; `sanitizer`: what compute-sanitizer said of it ("": only finalists
    on a GPU are replayed under it); `forced`: on a task that admission refuses, where kernels that do none of its work may pass: no proof."""

    device: str
    architecture: str
    compiler: str
    sandbox: str
    versions: dict[str, str]
    protocol: int = PROTOCOL
    sanitizer: str = ""
    forced: bool = False

    @property
    def caveat(self) -> str:
        """What must be said beside a verdict by force, and "" of others."""
        return "judged by force: admission refuses this task (`evokernel task check` says why), so that a kernel passes proves nothing" * self.forced


@dataclass(frozen=True)
class Verdict:
    """The judge's whole answer about one kernel in one configuration.

    A time exists only if the kernel is verified. `milestone`: -1 wrong, 1 correct, 2 faster than eager, 3 faster than every
    baseline by 5 % (lower bounds). `stage` is the last stage reached: parse, build, load, correctness, settling (of the next runner), timing,
    sanitizer (finalists on a GPU), done; `stages_s` says how long each took.
    """

    status: Status
    stage: str
    message: str
    kernel_id: str
    config: Config
    environment: Environment
    code_hash: str = ""
    errors: tuple[ErrorRow, ...] = ()
    timing: Timing | None = None
    resources: Resources | None = None
    bounds: Bounds | None = None
    milestone: int = -1
    seconds: float = 0.0
    stages_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.timing is not None) != (self.status is Status.VERIFIED):
            raise ValueError(f"a verdict has a time exactly when it is verified, not with status {self.status}")
        if (self.milestone == -1) != (self.status is not Status.VERIFIED):
            raise ValueError(f"milestone {self.milestone} does not fit status {self.status}")

    @property
    def speedup(self) -> Interval | None:
        """Against the fastest baseline, in the scored mode."""
        return self.timing.scored.fastest.speedup if self.timing else None

    @property
    def time_us(self) -> float | None:
        return self.timing.scored.median_us if self.timing else None

    @property
    def fitness(self) -> float:
        """Lower bound of the log speedup against the fastest baseline; -inf when not verified."""
        speedup = self.speedup
        return math.log(speedup.low) if speedup and speedup.low > 0 else -math.inf


def unjudged(device: Device, status: Status, message: str) -> Verdict:
    """The verdict of a text that is no kernel file, or of none at all."""
    here = Environment(device.name, device.architecture, compiler="", sandbox="", versions={})
    return Verdict(status, "parse", message, kernel_id="", config={}, environment=here)


@dataclass(frozen=True)
class Screen:
    """The quick look at one configuration while tuning: correct on the task's own draws, and a rough time. Never stored as a verdict."""

    config: Config
    status: Status
    message: str = ""
    time_us: float | None = None
    code_hash: str = ""

    def __post_init__(self) -> None:
        if (self.time_us is not None) != (self.status is Status.VERIFIED):
            raise ValueError("a screened configuration has a time exactly when it is correct")


@dataclass(frozen=True)
class Admission:
    """What the judge says of a task before any search: it can be judged, on this device, against these baselines.

    `baselines_us`: median in the scored mode by name. `trivial`: trivial candidates that were tried and fail; `survived`: those that
    did not, on a task that is judged by force (`forced`). `notes`: things a user should know (a parameter that does not matter, an in-place
    reference). `left_out`: why each other regime is not valid.
    """

    task: Task
    device: Device
    baselines_us: dict[str, float]
    regimes: tuple[str, ...]
    trivial: tuple[str, ...]
    notes: tuple[str, ...] = ()
    forced: bool = False
    survived: tuple[str, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)
