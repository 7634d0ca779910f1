"""What a launch plan resolves to for one task signature, device and configuration: plain data, no expression left.

The judge allocates `buffers`, a target builds `code` with the functions of `launches`, the runner walks `prepare` once a
binding of weights and `steps` once a call. Nothing here knows a file's text any more, only lines for messages.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..records import Config, Number, Signature, contiguous_stride


@dataclass(frozen=True)
class Buffer:
    """Memory the plan asks for beside the task's own tensors. `kind`: scratch (one a slot) or persist (made by `prepare`)."""

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    zero: bool = False

    @property
    def stride(self) -> tuple[int, ...]:
        return contiguous_stride(self.shape)


@dataclass(frozen=True)
class Arg:
    """One argument of a launch: a tensor by name, or a number. `writes`: the plan may write the tensor (outputs, scratch, persist in prepare)."""

    tensor: str | None = None
    value: Number | None = None
    writes: bool = False

    def __post_init__(self) -> None:
        if (self.tensor is None) == (self.value is None):
            raise ValueError("an argument is either a tensor or a number")


@dataclass(frozen=True)
class Grid:
    """The `cuda` launch shape: blocks, threads, dynamic shared memory in bytes, and the launch keys."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    smem_bytes: int = 0
    cluster: tuple[int, int, int] | None = None
    cooperative: bool = False
    pdl: bool = False


@dataclass(frozen=True)
class Launch:
    """One kernel launch (`cuda`, with a grid) or one function call (`cpp`). `function` is the instance as C++ text: `softmax_rows<4>`."""

    function: str
    args: tuple[Arg, ...]
    line: int
    grid: Grid | None = None
    enabled: bool = True


@dataclass(frozen=True)
class View:
    """A tensor as an argument of `@call`, with the views applied in order: ("T",), ("mT",), ("view", 4, -1)."""

    tensor: str
    views: tuple[tuple[str | int, ...], ...] = ()


@dataclass(frozen=True)
class Keyword:
    """A keyword argument of `@call`: a tensor view, a number, a tuple of integers, or None."""

    name: str
    value: View | Number | tuple[int, ...] | None


@dataclass(frozen=True)
class Call:
    """One vendor-library step, `result = op(args, **kwargs)`; `result` is an output, a scratch buffer or a persisted one."""

    op: str
    result: str
    args: tuple[View | Number | tuple[int, ...] | None, ...]
    kwargs: tuple[Keyword, ...]
    line: int
    precision: str = ""
    enabled: bool = True


@dataclass(frozen=True)
class Fill:
    """A timed fill of an output or scratch buffer."""

    buffer: str
    value: float
    line: int


Step = Launch | Call | Fill


@dataclass(frozen=True)
class Plan:
    """A resolved kernel file. `code` has each @tune and @const line replaced by a constexpr definition, line numbers unchanged."""

    target: str
    config: Config
    code: str
    buffers: tuple[Buffer, ...]
    prepare: tuple[Step, ...]
    steps: tuple[Step, ...]
    flags: tuple[str, ...] = ()
    nondeterministic: bool = False

    @property
    def launches(self) -> tuple[Launch, ...]:
        """All launches, prepare's first: the order in which a target numbers them."""
        return tuple(s for s in (*self.prepare, *self.steps) if isinstance(s, Launch))

    def dtypes(self, signature: Signature) -> dict[str, str]:
        """The torch dtype of every tensor that a step can name."""
        return {t.name: t.dtype for t in signature.tensors} | {b.name: b.dtype for b in self.buffers}

    @property
    def persists(self) -> bool:
        return bool(self.prepare)
