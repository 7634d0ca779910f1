"""GPU memory of the judge, mapped into a runner or baseline through CUDA IPC, and calls as captured graphs timed by events."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from ..targets import Artifact
from ..targets.cuda_program import CudaProgram
from .buffers import Place

_LAZY_PEER_ACCESS = 1
_WIPE_CYCLES, _HOLD_CYCLES = 8_000, 40_000  # 4 us: all blocks have begun; 20 us: the host has enqueued the next call


def ready_for_launches() -> None:
    """Everything on the host that needs rights which the sandbox takes: driver, context, libraries, a folder for temporary files."""
    import cuda.core

    tempfile.gettempdir()
    torch.cuda.synchronize()
    cuda.core.Device(0).set_current()
    with suppress(Exception):  # the words for errors are imported with the first one
        cuda.core.ObjectCode.from_cubin(b"no cubin").get_kernel("nothing")


class GpuWindow:
    """The runner's side of a GPU arena. Nothing is read-only here: the judge compares inputs and weights afterwards."""

    def __init__(self, handle: bytes, places: Iterable[Place]) -> None:
        from cuda.bindings import runtime

        torch.cuda.init()
        torch.cuda.current_stream()
        wrapped = runtime.cudaIpcMemHandle_t()
        wrapped.reserved = handle
        self._places = {p.name: p for p in places}
        self._base: int = cuda_checked(runtime.cudaIpcOpenMemHandle(wrapped, _LAZY_PEER_ACCESS))

    def address(self, name: str) -> int:
        place = self._places[name]
        return self._base + place.offset + place.lead_bytes

    def ranges(self) -> dict[str, tuple[int, int]]:
        return {n: (self.address(n), self.address(n) + p.size_bytes) for n, p in self._places.items()}

    def protect(self, name: str, *, writable: bool) -> None:
        """GPU pages cannot be made read-only for one process."""

    def show(self, name: str, *, visible: bool) -> None:
        """Nor inaccessible."""


@dataclass(frozen=True)
class Between:
    """What a process has to do between timed calls: `wipe` is the built kernel that empties shared memory, `sweep_bytes` several times the size of
    the second-level cache."""

    sweep_bytes: int
    wipe: Artifact


class Cleaner:
    """Leaves nothing of earlier calls in the shared memory that kernels are given and, for a cold call, in the second-level cache. Takes longer than
    to enqueue a call.

    The cache is emptied by reading. What it held is written back then, and what it holds is clean: after writing, the next kernel would pay for that.
    """

    def __init__(self, between: Between) -> None:
        self._program = CudaProgram(between.wipe)
        self._cells = torch.zeros(between.sweep_bytes // 8, dtype=torch.int64, device="cuda")
        self._sum = torch.zeros((), dtype=torch.int64, device="cuda")
        self.before("cold", list)  # the first loads its kernels
        torch.cuda.synchronize()

    def before(self, mode: str, call: Callable[[], object], fill: Callable[[], object] = list) -> None:
        """All that comes before a timed call, `cold` or `warm`: for a warm one the same call (not where it is `warmed`), `fill`, the cleaning.
        With "" nothing comes before a call."""
        if not mode:
            return
        cold = mode == "cold"
        if mode == "warm":
            call()
        fill()
        self._program.use_stream(torch.cuda.current_stream().cuda_stream)
        self._program.launch(0, [], [secrets.randbits(32), _WIPE_CYCLES if cold else _HOLD_CYCLES])
        if cold:
            torch.sum(self._cells, 0, out=self._sum)


class GraphedCall:
    """One call captured as a CUDA graph; calling it enqueues a replay.

    Args:
        steps: enqueues everything on the current stream.
        stream: where.
    """

    def __init__(self, steps: Callable[[], object], stream: torch.cuda.Stream) -> None:
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            steps()  # once outside: libraries and modules load on first use, which cannot be captured
            stream.synchronize()
            self._graph.capture_begin()  # torch.cuda.graph would collect garbage first, which takes longer than all the rest
            try:
                self._kept = steps()
            finally:
                self._graph.capture_end()

    def __call__(self) -> None:
        self._graph.replay()


Calls = Iterable[tuple[Callable[[], object], Callable[[], object]]]


def timed(calls: Calls, stream: torch.cuda.Stream) -> list[float]:
    """Microseconds between two events around what each call enqueues on `stream`, one after another; waits for all. What stands before a call is
    enqueued first, off the clock; where it keeps the GPU busy until the call is enqueued, too, the wait for a launch is in no time."""
    spans, took_us = [], []
    with torch.cuda.stream(stream):
        for before, call in calls:
            before()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record(stream)
            call()
            end.record(stream)
            spans.append((begin, end))
    for begin, end in spans:  # the first are read while the others run
        end.synchronize()
        took_us.append(float(begin.elapsed_time(end)) * 1e3)
    return took_us


class _Interface:
    """Foreign GPU memory in the form that torch takes (CUDA array interface, version 3)."""

    def __init__(self, address: int, size_bytes: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size_bytes,), "typestr": "|u1", "data": (address, False), "version": 3}


def gpu_bytes(address: int, size_bytes: int) -> torch.Tensor:
    """A (size_bytes,) uint8 tensor over foreign GPU memory; the caller keeps the memory alive."""
    return torch.as_tensor(_Interface(address, size_bytes), device="cuda")


def cuda_checked(result: tuple[Any, ...]) -> Any:
    """The value of a CUDA runtime call.

    Raises:
        RuntimeError: the call failed.
    """
    status, *values = result
    if int(status):
        raise RuntimeError(f"CUDA: {status.name}")
    return values[0] if values else None
