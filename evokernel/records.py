"""The records that travel between the rooms: frozen, with their invariants checked on creation.

Times are microseconds (`*_us`), sizes bytes (`*_bytes`), strides elements, dtypes torch names without the prefix
("float32"). Everything here is plain data and passes through `codec.encode` and `codec.decode` unchanged, NaN and Inf included.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from enum import StrEnum

PROTOCOL = 1  # version of the judging rules; verdicts of different protocols are never compared

Scalar = int | float | bool | str | None
Number = int | float | bool
Config = dict[str, Number]

ITEMSIZE_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
FLOATING = ("float64", "float32", "float16", "bfloat16")


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


class Placement(StrEnum):
    """What adding an attempt did to the run."""

    NEW_BEST = "new_best"
    KEPT = "kept"
    DUPLICATE = "duplicate"
    REJECTED = "rejected"


class Role(StrEnum):
    """Where a tensor of a task comes from. `STATE` is a module buffer that forward changes: an extra output."""

    INPUT = "input"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    ATTRIBUTE = "attribute"
    OUTPUT = "output"
    STATE = "state"


class Precision(StrEnum):
    """Which products a task allows: full precision, TF32, or 16-bit operands."""

    STRICT = "strict"
    TF32 = "tf32"
    REDUCED = "reduced"


@dataclass(frozen=True)
class TensorSpec:
    """One tensor a launch plan can name.

    `path` is a Python expression on forward's arguments for inputs (`batch["meta"]["scale"]`), the module path for
    parameters, buffers, attributes and state (`layers.0.weight`), and the leaf's place for outputs (`output[1]`).
    """

    name: str
    role: Role
    path: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.dtype not in ITEMSIZE_BYTES:
            raise ValueError(f"{self.path}: dtype {self.dtype} is not supported; supported are {', '.join(ITEMSIZE_BYTES)}")
        if len(self.shape) != len(self.stride):
            raise ValueError(f"{self.path}: shape {self.shape} and stride {self.stride} have different lengths")

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def span(self) -> int:
        """Elements from the first to one past the last that the strides can reach (0 for an empty tensor)."""
        return 1 + sum((d - 1) * s for d, s in zip(self.shape, self.stride, strict=True)) if self.numel else 0

    @property
    def itemsize(self) -> int:
        return ITEMSIZE_BYTES[self.dtype]

    @property
    def size_bytes(self) -> int:
        """Bytes a buffer for this tensor takes (gaps between strided rows included)."""
        return self.span * self.itemsize

    @property
    def contiguous(self) -> bool:
        return self.stride == contiguous_stride(self.shape) or self.numel <= 1

    @property
    def floating(self) -> bool:
        return self.dtype in FLOATING


def contiguous_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides in elements, as torch gives them to a fresh tensor."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


@dataclass(frozen=True)
class ScalarSpec:
    """One non-tensor leaf of forward's arguments. `varies`: get_inputs draws it anew, so no plan may bake it in."""

    name: str
    path: str
    value: Scalar
    varies: bool = False


@dataclass(frozen=True)
class Signature:
    """Everything a launch plan can name for one shape variant, in forward's order.

    `outputs_expr` rebuilds forward's return value from the outputs: `(out0, out1, {"positive": out2}, 8, None)`.
    `call` is how the module was constructed: `Model(in_features=24, bias=False, act='gelu')`.
    """

    tensors: tuple[TensorSpec, ...]
    scalars: tuple[ScalarSpec, ...] = ()
    outputs_expr: str = "out"
    call: str = "Model()"

    def __post_init__(self) -> None:
        names = [t.name for t in self.tensors] + [s.name for s in self.scalars]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise ValueError(f"two leaves of the task share the plan name(s) {', '.join(twice)}")

    def of_role(self, *roles: Role) -> tuple[TensorSpec, ...]:
        return tuple(t for t in self.tensors if t.role in roles)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self.of_role(Role.INPUT)

    @property
    def weights(self) -> tuple[TensorSpec, ...]:
        """Parameters, buffers and plain tensor attributes: what is bound once and read by every call."""
        return self.of_role(Role.PARAMETER, Role.BUFFER, Role.ATTRIBUTE)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """What a kernel must write: forward's tensors, then the buffers that forward changes."""
        return self.of_role(Role.OUTPUT, Role.STATE)

    def tensor(self, name: str) -> TensorSpec:
        for spec in self.tensors:
            if spec.name == name:
                return spec
        raise KeyError(name)


@dataclass(frozen=True)
class Domain:
    """Values an input may take: `kind` is one of any, positive, nonnegative, probability, own (only the task's own draws),
    or range with low and high."""

    kind: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Options:
    """The task file's own `EVOKERNEL = {...}`: see docs/tasks.md for every key. `shapes` holds keyword arguments for get_inputs,
    one entry a further variant; the first variant (get_inputs()) is the one that is timed."""

    name: str = ""
    precision: Precision = Precision.STRICT
    shapes: tuple[dict[str, Scalar], ...] = ()
    domain: dict[str, Domain] = field(default_factory=dict)
    score: str = "cold"
    tolerance_units: float | None = None

    def __post_init__(self) -> None:
        if self.score not in ("cold", "warm"):
            raise ValueError(f"score must be 'cold' or 'warm', not {self.score!r}")


@dataclass(frozen=True)
class Task:
    """A module to speed up. `id` is the hash of source, options and signatures; `variants` holds one Signature a shape, the timed one first."""

    id: str
    name: str
    path: str
    source: str
    options: Options
    variants: tuple[Signature, ...]

    @property
    def signature(self) -> Signature:
        return self.variants[0]


@dataclass(frozen=True)
class Device:
    """What plans may ask of a device. On the CPU `sm_count` is the number of cores judged on and `smem_per_block` is 0."""

    name: str
    target: str
    architecture: str
    sm_count: int
    max_threads_per_sm: int = 0
    regs_per_sm: int = 0
    smem_per_block: int = 0
    l2_bytes: int = 0


@dataclass(frozen=True)
class Kernel:
    """One kernel file. `id` is the hash of the target and the normalised text: make it with `kernelfile.make_kernel`."""

    id: str
    target: str
    text: str


@dataclass(frozen=True)
class Interval:
    """A ratio with its 99 % interval. Selection, records and exports use `low`."""

    low: float
    mid: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.mid <= self.high:
            raise ValueError(f"not an interval: {self.low}, {self.mid}, {self.high}")


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

    @property
    def fastest(self) -> BaselineTime:
        return min(self.baselines, key=lambda b: b.median_us)


@dataclass(frozen=True)
class Timing:
    """All times of a verified kernel. `score` names the mode whose lower bound counts. `prepare_us`: weight preparation, off the clock."""

    score: str
    modes: tuple[ModeTiming, ...]
    prepare_us: float = 0.0

    @property
    def scored(self) -> ModeTiming:
        return next(m for m in self.modes if m.mode == self.score)


@dataclass(frozen=True)
class Resources:
    """What the compiler made: sizes in bytes, instruction features ("avx2", "fma", "gather" ...)."""

    code_bytes: int = 0
    registers: int = 0
    spill_bytes: int = 0
    shared_bytes: int = 0
    features: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bounds:
    """Compulsory traffic of the task (inputs that matter and outputs, bytes) and the reference's work, as fractions reached (0 = unknown)."""

    traffic_bytes: int = 0
    traffic_fraction: float = 0.0
    work_flop: int = 0
    work_fraction: float = 0.0


@dataclass(frozen=True)
class Environment:
    """Where a verdict was made."""

    device: str
    architecture: str
    compiler: str
    sandbox: str
    versions: dict[str, str]
    protocol: int = PROTOCOL


@dataclass(frozen=True)
class Verdict:
    """The judge's whole answer about one kernel in one configuration.

    A time exists only if the kernel is verified. `milestone`: -1 wrong, 1 correct, 2 faster than eager, 3 faster than every
    baseline by 5 % (lower bounds). `stage` is the last stage reached: parse, build, load, correctness, timing, done.
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

    `baselines_us`: median in the scored mode by name. `trivial`: trivial candidates that were tried (all failed).
    `notes`: things a user should know (a parameter that does not matter, an in-place reference, regimes left out).
    """

    task: Task
    device: Device
    baselines_us: dict[str, float]
    regimes: tuple[str, ...]
    trivial: tuple[str, ...]
    notes: tuple[str, ...] = ()
    sandbox: str = ""
    forced: bool = False


@dataclass(frozen=True)
class Proposal:
    """A decision of the policy: which operator is applied to which parents. `number` counts within the run and seeds its randomness."""

    number: int
    operator: str
    parents: tuple[str, ...] = ()
    model: str | None = None
    prompt_hash: str = ""


@dataclass(frozen=True)
class Reply:
    """What an operator made of a proposal: one kernel text, or none with the reason, and what it cost."""

    text: str | None
    note: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0


@dataclass(frozen=True)
class Attempt:
    """A proposal that has been answered and judged."""

    proposal: Proposal
    reply: Reply
    kernel: Kernel | None
    verdict: Verdict


def digest(*parts: str) -> str:
    """Hash of several texts, 16 hex digits; parts cannot run into each other."""
    sha = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        sha.update(len(data).to_bytes(8, "little") + data)
    return sha.hexdigest()[:16]


def config_key(config: Config) -> str:
    """One text per configuration, whatever the order of its names."""
    return ",".join(f"{name}={config[name]!r}" for name in sorted(config))
