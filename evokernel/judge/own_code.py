"""The judge's own code in other processes, built once into the cache: what a runner on the CPU calls, and the kernel that empties shared memory."""

from __future__ import annotations

import platform
from pathlib import Path

from .. import codec
from ..errors import JudgeError
from ..kernelfile.steps import Grid
from ..records import Device, Resources, digest
from ..targets import Artifact, nvrtc
from ..targets.compiler import gxx, run_limited
from ..targets.cuda_program import CudaLaunch
from ..targets.workplace import put, workplace

_RUNNER = Path(__file__).parent.parent / "runner"


def build_native(cache: Path) -> Path:
    """Compile runner/native.cpp into the cache; at once when it is there already.

    Raises:
        JudgeError: no working g++.
    """
    source = _RUNNER / "native.cpp"
    path = cache / "native" / f"{digest(source.read_text(), platform.machine())}.so"
    if path.exists():
        return path
    flags = ["-O2", "-std=c++17", "-shared", "-fPIC", "-fopenmp"] + (["-mclflushopt"] if platform.machine() == "x86_64" else [])
    with workplace(path.parent) as work:
        outcome = run_limited([gxx(), *flags, str(source), "-o", path.name], work)
        if outcome.code != 0:
            raise JudgeError(f"the judge's helper library does not compile: {outcome.output.strip()[:500] or outcome}")
        (work / path.name).replace(path)
    return path


def build_wipe(directory: Path, device: Device) -> Artifact:
    """The kernel that writes over the shared memory of a whole device (runner/wipe.cu): launch 0 takes a word to fill it with, and the cycles that
    each block stays.

    Raises:
        JudgeError: it does not compile.
    """
    source, options = (_RUNNER / "wipe.cu").read_text(encoding="utf-8"), (f"-arch={device.architecture}",)
    cubin = directory.resolve() / f"{digest(source, *options, nvrtc.version())}.cubin"
    if not cubin.exists():
        made = nvrtc.compile_source(source, [], options)
        if not made.ok:
            raise JudgeError(f"the judge's own kernel does not compile: {made.log.strip()[:500]}")
        put(cubin, made.cubin)
    grid = Grid((device.sm_count, 1, 1), (1024, 1, 1), device.smem_per_block)
    return Artifact(str(cubin), "", Resources(), (codec.dumps(CudaLaunch("wipe", "II", grid, device.smem_per_block)),))
