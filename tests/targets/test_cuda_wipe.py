"""The kernel that empties shared memory between timed calls: it builds for every GPU that is described, without one. It runs in tests/gpu."""

from pathlib import Path

import pytest

from evokernel import codec
from evokernel.judge.own_code import build_wipe
from evokernel.kernelfile import shipped_gpus
from evokernel.records import Device
from evokernel.targets.cuda_program import CudaLaunch

from .cuda_offline import needs_compiler

pytestmark = needs_compiler


@pytest.mark.parametrize("device", {d.architecture: d for d in shipped_gpus()}.values(), ids=lambda d: d.architecture)
def test_it_builds_once_and_takes_all_shared_memory(device: Device, tmp_path: Path) -> None:
    artifact = build_wipe(tmp_path, device)
    cubin = Path(artifact.path)
    assert cubin.read_bytes()[:4] == b"\x7fELF"
    launch = codec.loads(CudaLaunch, artifact.functions[0])
    assert launch.grid and launch.grid.grid == (device.sm_count, 1, 1) and launch.grid.smem_bytes == launch.opt_in_bytes == device.smem_per_block
    built = cubin.stat().st_mtime_ns
    assert build_wipe(tmp_path, device) == artifact and cubin.stat().st_mtime_ns == built
