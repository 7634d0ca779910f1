"""A cubin in the runner: its kernels, launched on one stream through cuda.core."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import codec
from ..kernelfile.steps import Grid
from ..records import Number
from . import Artifact

STATIC_SMEM_BYTES = 48 << 10  # what a block has at most, static and dynamic, without opting in to more dynamic memory
_CTYPES: dict[str, Any] = {
    "?": ctypes.c_bool, "b": ctypes.c_int8, "B": ctypes.c_uint8, "h": ctypes.c_int16, "H": ctypes.c_uint16, "i": ctypes.c_int32,
    "I": ctypes.c_uint32, "q": ctypes.c_int64, "Q": ctypes.c_uint64, "f": ctypes.c_float, "d": ctypes.c_double,
}  # fmt: skip


@dataclass(frozen=True)
class CudaLaunch:
    """One launch as an artifact carries it. `kinds`: a letter a parameter, P for a pointer, else as in `struct`. `grid` is None for
    a launch that the plan left disabled. `opt_in_bytes`: the dynamic shared memory to ask for once, where a block has more than 48 KiB in all."""

    symbol: str
    kinds: str
    grid: Grid | None
    opt_in_bytes: int = 0


class CudaProgram:
    """A loaded cubin. Launches go to the stream that `use_stream` was given last, which must be before the first.

    Raises:
        OSError: the cubin cannot be read or loaded on this machine.
    """

    def __init__(self, artifact: Artifact) -> None:
        data = Path(artifact.path).read_bytes()
        try:
            from cuda.core import Device, ObjectCode, Stream, launch
        except ImportError as error:
            raise OSError(f"cuda-core is missing ({error}): pip install 'evokernel-search[cuda]'") from error
        try:
            Device(0).set_current()
            module = ObjectCode.from_cubin(data)
            self._launch, self._stream_of = launch, Stream.from_handle
            self._launches = [_bound(module, codec.loads(CudaLaunch, text)) for text in artifact.functions]
        except Exception as error:
            raise OSError(f"the cubin cannot be loaded: {error}") from error
        self._stream: Any = None

    def use_stream(self, handle: int) -> None:
        """Send later launches to this stream (a `cudaStream_t` as a number)."""
        self._stream = self._stream_of(handle)

    def launch(self, index: int, pointers: Sequence[int], numbers: Sequence[Number]) -> None:
        """Raises:
            struct.error: the arguments are not of the number and kind that the launch was built for.
            RuntimeError: the driver refuses it, or says that an earlier launch failed.
        """
        kernel, config, kinds = self._launches[index]
        if len(pointers) != kinds.count("P") or len(pointers) + len(numbers) != len(kinds) or config is None:
            raise struct.error(f"launch {index} takes {kinds!r}, and {len(pointers)} tensors and {len(numbers)} numbers are passed")
        addresses, values = iter(pointers), iter(numbers)
        arguments = [next(addresses) if kind == "P" else _number(kind, next(values)) for kind in kinds]
        try:
            self._launch(self._stream, config, kernel, *arguments)
        except Exception as error:  # cuda.core's class for what the driver refuses has no public name
            raise RuntimeError(str(error)) from error


def _number(kind: str, value: Number) -> Any:
    struct.pack(kind, value)  # ctypes would wrap an integer that does not fit
    return _CTYPES[kind](value)


def _bound(module: Any, launch: CudaLaunch) -> tuple[Any, Any, str]:
    """The kernel, its launch configuration and the kinds of its parameters."""
    from cuda.bindings import driver
    from cuda.core import LaunchConfig

    kernel, grid = module.get_kernel(launch.symbol), launch.grid
    if grid is None:
        return kernel, None, launch.kinds
    if launch.opt_in_bytes:
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        (status,) = driver.cuKernelSetAttribute(attribute, launch.opt_in_bytes, kernel.handle, 0)
        if int(status):
            raise RuntimeError(f"{launch.opt_in_bytes} bytes of dynamic shared memory are refused ({status.name})")
    shape = grid.grid
    if grid.cluster:  # cuda.core counts clusters then, not blocks
        shape = (shape[0] // grid.cluster[0], shape[1] // grid.cluster[1], shape[2] // grid.cluster[2])
    config = LaunchConfig(
        grid=shape, block=grid.block, cluster=grid.cluster, shmem_size=grid.smem_bytes, is_cooperative=grid.cooperative,
        programmatic_stream_serialization=grid.pdl,
    )  # fmt: skip
    return kernel, config, launch.kinds
