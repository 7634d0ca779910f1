"""The rates a device really reaches, measured once by `evokernel doctor --measure` and kept in a file: the roofline that verdicts are set against."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from .. import codec
from ..records import Device, Precision, digest
from ..runner.gpu import timed
from ..runner.vendor import set_precision
from ..targets.workplace import put

_REPEATS = 15
_COPY_BYTES, _PRODUCT = {"cuda": 2 << 30, "cpp": 256 << 20}, {"cuda": 8192, "cpp": 2048}


@dataclass(frozen=True)
class Roofline:
    """`copy_gbs`: bytes read plus written by a large copy, in 1e9 a second. `product_tflops`: square matrix products by the task's precision
    (strict: float32, tf32, reduced: bfloat16), in 1e12 FLOP a second."""

    copy_gbs: float
    product_tflops: dict[str, float]


def measure(device: Device) -> Roofline:
    """Measure now, some seconds; medians. Needs up to 4 GiB of the device's memory."""
    where = "cuda" if device.target == "cuda" else "cpu"
    source = torch.ones(_COPY_BYTES[device.target], dtype=torch.uint8, device=where)
    target = torch.empty_like(source)
    copy_us = _median_us(lambda: target.copy_(source), where)
    n, rates = _PRODUCT[device.target], {}
    for precision in Precision:
        set_precision(precision)
        dtype = torch.bfloat16 if precision is Precision.REDUCED else torch.float32
        a, b = (torch.randn(n, n, device=where).to(dtype) for _ in range(2))
        rates[precision.value] = 2 * n**3 / _median_us(lambda a=a, b=b: torch.mm(a, b), where) / 1e6  # type: ignore[misc]
    set_precision(Precision.STRICT)
    return Roofline(2 * source.numel() / copy_us / 1e3, rates)


def _median_us(action: Callable[[], object], where: str) -> float:
    if where == "cuda":
        stream = torch.cuda.current_stream()
        return statistics.median([timed([(list, action)], stream)[0] for _ in range(_REPEATS)][1:])
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter_ns()
        action()
        times.append((time.perf_counter_ns() - start) / 1e3)
    return statistics.median(times[1:])


def read(cache: Path, device: Device) -> Roofline | None:
    """What was measured on such a device before, None when nothing was."""
    try:
        return codec.loads(Roofline, _file(cache, device).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def write(cache: Path, device: Device, roofline: Roofline) -> Path:
    """Keep it for the judges of this user; the file."""
    file = _file(cache, device)
    put(file, codec.dumps(roofline).encode())
    return file


def _file(cache: Path, device: Device) -> Path:
    return cache / "roofline" / f"{digest(device.name, device.architecture, str(device.sm_count))}.json"
