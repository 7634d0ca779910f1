"""What a task is: its tensors and scalars under the names that plans use, its options, and the device it is judged on."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from enum import StrEnum

Scalar = int | float | bool | str | None
Number = int | float | bool
Config = dict[str, Number]

ITEMSIZE_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
FLOATING = ("float64", "float32", "float16", "bfloat16")
MODES = ("cold", "warm")  # what a call is timed on: caches that hold nothing of it, or what the same call left there


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
        if self.score not in MODES:
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
    """What plans may ask of a device, and its peak memory bandwidth in 1e9 bytes a second (0: not known). On the CPU `sm_count` is the number of
    cores judged on and `smem_per_block` is 0."""

    name: str
    target: str
    architecture: str
    sm_count: int
    max_threads_per_sm: int = 0
    regs_per_sm: int = 0
    smem_per_block: int = 0
    l2_bytes: int = 0
    bandwidth_gbs: float = 0.0


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
