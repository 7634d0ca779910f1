"""What the NVIDIA driver says of the first GPU, through its own library and without a CUDA context."""

from __future__ import annotations

import ctypes
import uuid

from ..errors import UsageError
from ..records import Device

_SM_COUNT, _THREADS_PER_SM, _REGS_PER_SM, _SMEM_OPTIN, _L2_BYTES, _MAJOR, _MINOR = 16, 39, 82, 97, 38, 75, 76
_MEMORY_KHZ, _BUS_BITS = 36, 37


def unavailable() -> str | None:
    """None when a GPU can be used, otherwise one sentence: what is missing and how to get it."""
    try:
        count, status = _count()
    except OSError:
        return "there is no NVIDIA driver (libcuda.so.1) on this machine; the cuda target needs an NVIDIA GPU with driver 580 or newer"
    return None if count else f"the NVIDIA driver finds no usable GPU (CUDA error {status}); check nvidia-smi and CUDA_VISIBLE_DEVICES"


def _count() -> tuple[int, int]:
    """How many GPUs are visible (0 when there is an error), and the CUDA error; OSError: there is no driver."""
    driver = ctypes.CDLL("libcuda.so.1")
    count = ctypes.c_int()
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    return 0 if status else count.value, status


def one_gpu(device: str | None, visible: str | None) -> str:
    """The value of CUDA_VISIBLE_DEVICES that leaves one GPU to a process.

    Args:
        device: its number among the GPUs that are visible now (None: the first), or its UUID (GPU-..., or MIG-... of a part).
        visible: CUDA_VISIBLE_DEVICES as it is now.

    Raises:
        UsageError: no such GPU.
    """
    device = device or "0"
    if device.startswith(("GPU-", "MIG-")) and "," not in device:
        return device
    if reason := unavailable():
        raise UsageError(reason)
    count, _ = _count()
    if not device.isdecimal() or int(device) >= count:
        raise UsageError(f"{device!r} is none of the {count} visible GPUs: give a number from 0, or one UUID (`nvidia-smi -L` lists them)")
    return visible.split(",")[int(device)].strip() if visible else device


def gpu_uuid() -> str:
    """The UUID of the GPU that kernels run on, or of the part of it where it is partitioned (MIG): the same for every process and user.

    Raises:
        UsageError: there is none.
    """
    if reason := unavailable():
        raise UsageError(reason)
    raw = ctypes.create_string_buffer(16)
    if status := ctypes.CDLL("libcuda.so.1").cuDeviceGetUuid_v2(raw, 0):
        raise UsageError(f"the NVIDIA driver does not name its GPU (CUDA error {status}); update the driver")
    return str(uuid.UUID(bytes=raw.raw))


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
        2 * attribute(_MEMORY_KHZ) * (attribute(_BUS_BITS) // 8) / 1e6,  # two transfers a clock: the peak that no kernel can pass
    )  # fmt: skip


def architecture_name(major: int, minor: int) -> str:
    """`sm_90a`: with the instructions of this very GPU where it has some of its own (wgmma, tcgen05)."""
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"
