"""What the NVIDIA driver says of the first GPU, through its own library and without a CUDA context."""

from __future__ import annotations

import ctypes

from ..errors import UsageError
from ..records import Device

_SM_COUNT, _THREADS_PER_SM, _REGS_PER_SM, _SMEM_OPTIN, _L2_BYTES, _MAJOR, _MINOR = 16, 39, 82, 97, 38, 75, 76


def unavailable() -> str | None:
    """None when a GPU can be used, otherwise one sentence: what is missing and how to get it."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no NVIDIA driver (libcuda.so.1) on this machine; the cuda target needs an NVIDIA GPU with driver 580 or newer"
    count = ctypes.c_int()
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if status or not count.value:
        return f"the NVIDIA driver finds no usable GPU (CUDA error {status}); check nvidia-smi and CUDA_VISIBLE_DEVICES"
    return None


def first_gpu() -> Device:
    """The description of the GPU that kernels run on.

    Raises:
        UsageError: there is none.
    """
    if reason := unavailable():
        raise UsageError(reason)
    driver = ctypes.CDLL("libcuda.so.1")
    name = ctypes.create_string_buffer(256)
    driver.cuDeviceGetName(name, len(name), 0)

    def attribute(number: int) -> int:
        value = ctypes.c_int()
        if status := driver.cuDeviceGetAttribute(ctypes.byref(value), number, 0):
            raise UsageError(f"the NVIDIA driver does not describe its GPU (attribute {number}: CUDA error {status}); update the driver")
        return value.value

    return Device(
        name.value.decode("utf-8", "replace"), "cuda", architecture_name(attribute(_MAJOR), attribute(_MINOR)), attribute(_SM_COUNT),
        attribute(_THREADS_PER_SM), attribute(_REGS_PER_SM), attribute(_SMEM_OPTIN), attribute(_L2_BYTES),
    )  # fmt: skip


def architecture_name(major: int, minor: int) -> str:
    """`sm_90a`: with the instructions of this very GPU where it has some of its own (wgmma, tcgen05)."""
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"
