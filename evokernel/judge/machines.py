"""The memory and caches of what is judged on: host memory shared as sealed memfds, or GPU memory shared through CUDA IPC."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

import torch

from ..codec import Json, encode
from ..records import Device
from ..runner.buffers import GUARD_BYTE, Arena, Place, lay_out
from ..runner.gpu import Between, cuda_checked, gpu_bytes
from ..targets.nvml import ClockWatch
from ..task import available_bytes
from .own_code import build_wipe

Sizes = Iterable[tuple[str, int]]
_GPU_UNIT_BYTES = 2 << 20  # smaller CUDA allocations can share a block, and exporting one would show its neighbours
_L2_TIMES = 4
_CLOCK_DRIFT = 0.05


class SharedArena(Protocol):
    """Buffers in one block of memory that another process can map."""

    places: dict[str, Place]

    def raw(self, name: str) -> torch.Tensor:
        """The bytes of a buffer, (size_bytes,) uint8, writable here."""

    def damaged(self) -> list[str]:
        """Names of the buffers whose guard pattern has been written over."""

    def mend(self) -> None:
        """Write all guard patterns anew: one candidate's damage is not the next one's."""

    def exported(self, *, writable: bool) -> tuple[Json, tuple[int, ...]]:
        """What the other process needs to map it, and descriptors to send along."""

    def close(self) -> None:
        """Let go of the memory."""


class Machine(Protocol):
    """Where tasks are judged.

    Attributes:
        seals: the other side cannot write what it may only read; otherwise the judge compares afterwards.
        race_s: wall time of a race in the scored mode, in seconds: quiet machines need less.
        placement: how far the places of two processes' buffers in memory move the ratio of their times, as a share (experiments/timing_quality.py). A
            race whose interval is wider by it than the width it may stop at takes all of its time. None: that depends on the machine and the hour, so
            times to be announced come from many starts of both (see timing.race_anew).
        slow_start: a runner takes so long to start that the next one is started ahead of its kernel.
        between: what contestants have to do between timed calls (an encoded `runner.gpu.Between`), several of which come at a request there; None
            where the judge does it, call by call.
    """

    seals: bool
    race_s: float
    placement: float | None
    slow_start: bool
    between: Json

    def free_bytes(self) -> int:
        """Memory that is free for buffers and data."""

    def steady(self) -> bool:
        """Whether the clock has stayed what it was, and unthrottled, since the last look. True where nothing tells."""

    def clock_mhz(self) -> int:
        """The clock at the last look; 0 where nothing tells."""

    def arena(self, sizes: Sizes, *, sealed: bool) -> SharedArena:
        """Memory for buffers of the given names and sizes in bytes."""

    def flush(self, raws: Iterable[torch.Tensor]) -> None:
        """Evict these buffers from all caches."""

    def settle(self) -> None:
        """Wait until everything filled, poisoned or flushed so far is in place."""

    def place(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The same tensors on the device, to be copied from and compared with again and again."""


class HostArena:
    """A memfd arena as tensors."""

    def __init__(self, sizes: Sizes, *, sealed: bool) -> None:
        self._arena = Arena(sizes, sealed=sealed)
        self.places = self._arena.places
        self._raw = {n: _over(self._arena.view(n)) for n in self.places}

    def raw(self, name: str) -> torch.Tensor:
        return self._raw[name]

    def damaged(self) -> list[str]:
        return self._arena.damaged()

    def mend(self) -> None:
        self._arena.mend()

    def exported(self, *, writable: bool) -> tuple[Json, tuple[int, ...]]:
        return {"places": encode(tuple(self.places.values())), "writable": writable}, (self._arena.fd,)

    def close(self) -> None:
        self._arena.close()


def _over(view: memoryview) -> torch.Tensor:
    return torch.frombuffer(view, dtype=torch.uint8) if len(view) else torch.empty(0, dtype=torch.uint8)


def _moved(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the GPU with the same strides, gaps between rows included."""
    span = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    return tensor.as_strided((span,), (1,), tensor.storage_offset()).cuda().as_strided(tensor.shape, tensor.stride())


class HostMachine:
    """The CPU. `native`: the helper library with the flush."""

    seals = True
    race_s = 1.0
    placement: float | None = None
    slow_start = False
    between: Json = None

    def __init__(self, native: Path) -> None:
        self._flush = ctypes.CDLL(str(native)).evokernel_flush
        self._flush.argtypes, self._flush.restype = [ctypes.c_void_p, ctypes.c_uint64], None

    def free_bytes(self) -> int:
        return available_bytes()

    def steady(self) -> bool:
        return True

    def clock_mhz(self) -> int:
        return 0

    def arena(self, sizes: Sizes, *, sealed: bool) -> SharedArena:
        return HostArena(sizes, sealed=sealed)

    def flush(self, raws: Iterable[torch.Tensor]) -> None:
        for raw in raws:
            self._flush(raw.data_ptr(), raw.numel())

    def settle(self) -> None:
        return None

    def place(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return dict(tensors)


class GpuArena:
    """One cudaMalloc block of whole 2 MiB units, exported by an IPC handle."""

    def __init__(self, sizes: Sizes) -> None:
        from cuda.bindings import runtime

        places, size = lay_out(sizes)
        self.places = {p.name: p for p in places}
        self._size_bytes = -(-size // _GPU_UNIT_BYTES) * _GPU_UNIT_BYTES
        self._address: int = cuda_checked(runtime.cudaMalloc(self._size_bytes))
        self._handle = bytes(cuda_checked(runtime.cudaIpcGetMemHandle(self._address)).reserved)
        self._block = gpu_bytes(self._address, self._size_bytes)
        self._block.fill_(GUARD_BYTE)
        self._guards: dict[str, tuple[torch.Tensor, ...]] = {p.name: self._around(p) for p in places}
        end = max((p.offset + p.region_bytes for p in places), default=0)
        self._guards["all buffers"] = (self._block[end:],)  # what is left of the last unit is nobody's either

    def raw(self, name: str) -> torch.Tensor:
        place = self.places[name]
        start = place.offset + place.lead_bytes
        return self._block[start : start + place.size_bytes]

    def damaged(self) -> list[str]:
        if bool((torch.cat([g for guards in self._guards.values() for g in guards]) == GUARD_BYTE).all()):  # each look waits for the GPU: one at all
            return []
        return [name for name, guards in self._guards.items() if not bool((torch.cat(guards) == GUARD_BYTE).all())]

    def mend(self) -> None:
        for guards in self._guards.values():
            for guard in guards:
                guard.fill_(GUARD_BYTE)

    def _around(self, place: Place) -> tuple[torch.Tensor, torch.Tensor]:
        start = place.offset + place.lead_bytes
        return self._block[place.offset : start], self._block[start + place.size_bytes : place.offset + place.region_bytes]

    def exported(self, *, writable: bool) -> tuple[Json, tuple[int, ...]]:
        return {"places": encode(tuple(self.places.values())), "writable": writable, "handle": self._handle.hex()}, ()

    def close(self) -> None:
        from cuda.bindings import runtime

        if self._address:
            cuda_checked(runtime.cudaFree(self._address))
            self._address = 0


class GpuMachine:
    """One NVIDIA GPU, the current device. What contestants need is built into the folder `builds`."""

    seals = False
    race_s = 0.6
    placement: float | None = 0.006  # between starts of two processes: 0.25 to 0.5 % (standard deviation), and nothing where they share their buffers
    slow_start = True

    def __init__(self, device: Device, builds: Path) -> None:
        from cuda.bindings import runtime

        sweep_bytes = max(_L2_TIMES * device.l2_bytes, 64 << 20)
        self.between: Json = encode(Between(sweep_bytes, build_wipe(builds, device)))
        self._watch = ClockWatch(cuda_checked(runtime.cudaDeviceGetPCIBusId(32, 0)).decode().strip("\0"))
        self._clocks = self._watch.look()

    def free_bytes(self) -> int:
        return min(available_bytes(), int(torch.cuda.mem_get_info()[0]))

    def steady(self) -> bool:
        before, self._clocks = self._clocks, self._watch.look()
        if before is None or self._clocks is None:
            return True
        return not self._clocks.throttled and abs(self._clocks.mhz - before.mhz) <= _CLOCK_DRIFT * before.mhz

    def clock_mhz(self) -> int:
        return self._clocks.mhz if self._clocks else 0

    def arena(self, sizes: Sizes, *, sealed: bool) -> SharedArena:
        return GpuArena(sizes)

    def flush(self, raws: Iterable[torch.Tensor]) -> None:
        """Never asked for: contestants do it themselves (`between`)."""

    def settle(self) -> None:
        torch.cuda.synchronize()

    def place(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: _moved(tensor) for name, tensor in tensors.items()}
