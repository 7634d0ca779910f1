"""The part of a drop-in's runtime for `cuda` kernels: a cubin that the file carries, launched through cuda-core on torch's current stream.
Its text below the mark follows dropin.py's in exported files."""

# --- runtime ---
import base64
import contextlib
import ctypes
import struct
import threading
import zlib
from collections.abc import Iterator
from typing import Any

import torch

from .dropin import _Fit, _Kernel

_CTYPES = {
    "?": ctypes.c_bool, "b": ctypes.c_int8, "B": ctypes.c_uint8, "h": ctypes.c_int16, "H": ctypes.c_uint16, "i": ctypes.c_int32,
    "I": ctypes.c_uint32, "q": ctypes.c_int64, "Q": ctypes.c_uint64, "f": ctypes.c_float, "d": ctypes.c_double,
}  # fmt: skip
_LEGACY_STREAM = 1
_PRECISION = threading.Lock()  # torch's TF32 switches are the process's


class _Stream:
    """torch's current stream in the form that cuda-core takes."""

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, torch.cuda.current_stream().cuda_stream or _LEGACY_STREAM


class _CudaKernel(_Kernel):
    device_type, alignment_bytes = "cuda", 256  # what the judge's buffers have

    def _load(self, device: torch.device) -> list[Any]:
        cubin, architecture, sm_count = self._code
        self._refuse_capture("the kernel is not loaded yet")
        properties = torch.cuda.get_device_properties(device)
        here = f"sm_{properties.major}{properties.minor}"
        if here != architecture.rstrip("a"):
            raise RuntimeError(f"it is made and verified for {architecture}, and {properties.name} is {here}; export one that is verified there")
        if properties.multi_processor_count < sm_count and any(launch["cooperative"] for launch in self.plan["launches"]):
            raise RuntimeError(f"its blocks wait for each other on {sm_count} multiprocessors, {properties.name} has fewer")
        try:
            from cuda.core import Device, LaunchConfig, ObjectCode, launch
        except ImportError as error:
            raise RuntimeError(f"{error}; pip install 'cuda-core[cu13]'") from error
        with torch.cuda.device(device):
            self._device, self._enqueue = Device, launch
            Device(device.index).set_current()
            module = ObjectCode.from_cubin(zlib.decompress(base64.b64decode(cubin)))
            return [self._bound(module, found, device, LaunchConfig) for found in self.plan["launches"]]

    def _bound(self, module: Any, found: dict[str, Any], device: torch.device, config: Any) -> tuple[Any, Any, str]:
        from cuda.bindings import driver

        kernel, grid, cluster = module.get_kernel(found["symbol"]), found["grid"], found["cluster"]
        if found["opt_in_bytes"]:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            (status,) = driver.cuKernelSetAttribute(attribute, found["opt_in_bytes"], kernel.handle, device.index)
            if int(status):
                raise RuntimeError(f"{found['opt_in_bytes']} bytes of shared memory are refused ({status.name})")
        shape = [g // c for g, c in zip(grid, cluster, strict=True)] if cluster else grid  # cuda-core counts clusters then, not blocks
        made = config(
            grid=tuple(shape), block=tuple(found["block"]), cluster=cluster and tuple(cluster), shmem_size=found["smem_bytes"],
            is_cooperative=found["cooperative"], programmatic_stream_serialization=found["pdl"],
        )  # fmt: skip
        return kernel, made, found["kinds"]

    def _launch(self, function: tuple[Any, Any, str], tensors: list[int], numbers: list[Any]) -> None:
        kernel, config, kinds = function
        addresses, values = iter(tensors), iter(numbers)
        self._enqueue(_Stream(), config, kernel, *(next(addresses) if kind == "P" else _number(kind, next(values)) for kind in kinds))

    @contextlib.contextmanager
    def on(self, device: torch.device) -> Iterator[None]:
        with torch.cuda.device(device):
            self._device(torch.cuda.current_device()).set_current()  # a fresh thread has no CUDA context
            yield

    @contextlib.contextmanager
    def precision(self, tf32: bool) -> Iterator[None]:
        """TF32 as the judge had it for this step. Another thread's products that start meanwhile get it too."""
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        with _PRECISION:
            try:
                before = matmul.allow_tf32, cudnn.allow_tf32
            except RuntimeError:
                raise _Fit("TF32 is set through `fp32_precision`; set it through torch.backends.*.allow_tf32 alone to use the kernel") from None
            try:
                matmul.allow_tf32 = cudnn.allow_tf32 = tf32
                yield
            finally:
                matmul.allow_tf32, cudnn.allow_tf32 = before

    def before_prepare(self) -> None:
        self._refuse_capture("the weights are not prepared, or have changed since")

    def settle(self) -> None:
        torch.cuda.synchronize()

    def _refuse_capture(self, reason: str) -> None:
        if torch.cuda.is_current_stream_capturing():
            raise _Fit(f"{reason}, and a CUDA graph is being captured: call the model once before the capture")


def _number(kind: str, value: Any) -> Any:
    try:
        struct.pack(kind, value)  # ctypes would wrap an integer that does not fit
    except (struct.error, OverflowError):
        raise _Fit(f"{value!r} does not fit the kernel's parameter") from None
    return _CTYPES[kind](value)
