"""Clocks of a GPU and what slows them, from NVIDIA's management library; nothing to install, nothing where it is missing."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

_SM_CLOCK = 1  # NVML_CLOCK_SM
# Event reasons that make a measurement worthless: hardware slowdown, software and hardware thermal limits, power brake. The power cap is
# no such reason: heavy products run under it all the time, on both sides of a race (nvml.h, nvmlClocksEventReason*).
_BAD_REASONS = 0x08 | 0x20 | 0x40 | 0x80


@dataclass(frozen=True)
class Clocks:
    """One look at a GPU: its clock in MHz, and whether heat or a brake holds it back."""

    mhz: int
    throttled: bool


class ClockWatch:
    """Looks at the clocks of one GPU.

    Args:
        bus_id: its PCI bus id, as the driver writes it (`0000:3b:00.0`).
    """

    def __init__(self, bus_id: str) -> None:
        self._gpu = ctypes.c_void_p()
        self._library: ctypes.CDLL | None = None
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        if not library.nvmlInit_v2() and not library.nvmlDeviceGetHandleByPciBusId_v2(bus_id.encode(), ctypes.byref(self._gpu)):
            self._library = library

    def look(self) -> Clocks | None:
        """None where the library is missing or does not say."""
        if self._library is None:
            return None
        mhz, reasons = ctypes.c_uint(), ctypes.c_ulonglong()
        if self._library.nvmlDeviceGetClockInfo(self._gpu, _SM_CLOCK, ctypes.byref(mhz)):
            return None
        if self._library.nvmlDeviceGetCurrentClocksThrottleReasons(self._gpu, ctypes.byref(reasons)):
            return None
        return Clocks(mhz.value, bool(reasons.value & _BAD_REASONS))
