"""The part of a drop-in's runtime for `cpp` kernels: g++ at the first call, and calls through ctypes. Its text below the mark follows
dropin.py's in exported files."""

# --- runtime ---
import ctypes
import hashlib
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch

from .dropin import _cache_folder, _Kernel


def _build(unit: str, compile_flags: list[str], link_flags: list[str]) -> ctypes.CDLL:
    """Compile once into the user's cache and load; the process's own OpenMP runtime (torch's) serves the kernel too."""
    # -march=native: a library made on one machine may crash on another that shares the cache
    cpu = next((line for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if line.startswith("flags")), "")
    key = hashlib.sha256("\0".join([unit, *compile_flags, *link_flags, cpu]).encode()).hexdigest()[:24]
    folder = _cache_folder()
    library = folder / f"{key}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as work:
            (Path(work) / "kernel.cpp").write_text(unit, encoding="utf-8")
            subprocess.run(["g++", *compile_flags, "-c", "kernel.cpp", "-o", "kernel.o"], cwd=work, check=True, capture_output=True, text=True)
            subprocess.run(["g++", "kernel.o", "-o", "kernel.so", *link_flags], cwd=work, check=True, capture_output=True, text=True)
            (Path(work) / "kernel.so").replace(library)
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    mapped = (fields[5] for fields in (line.split(maxsplit=5) for line in lines) if len(fields) == 6)
    ctypes.CDLL(next((path for path in mapped if "libgomp" in Path(path).name), "libgomp.so.1"), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(library))


class _CppKernel(_Kernel):
    device_type, alignment_bytes = "cpu", 64

    def _load(self, device: torch.device) -> list[Any]:
        try:
            library = _build(*self._code)
        except subprocess.CalledProcessError as error:
            raise RuntimeError(error.stderr.strip()[-500:] or error) from None
        return [library[symbol] for symbol in self.plan["launches"]]

    def _launch(self, function: Any, tensors: list[int], numbers: list[Any]) -> None:
        slots = (ctypes.c_uint64 * max(len(tensors) + len(numbers), 1))()
        for i, value in enumerate([*tensors, *numbers]):
            slots[i] = ctypes.c_uint64.from_buffer_copy(ctypes.c_double(value) if isinstance(value, float) else ctypes.c_int64(value)).value
        function(slots)
