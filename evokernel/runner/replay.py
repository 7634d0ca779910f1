"""One call of a CUDA kernel in a process of its own, for tools that watch from outside: `python -P -m evokernel.runner.replay FOLDER LEVEL`.

Covers: every buffer is a cudaMalloc of its exact size, so that a watcher sees where it ends; inputs and weights come from files, all else is
left as allocated; preparation and steps run once, on one stream, without a graph. With LEVEL `confined` it gives up its rights as a runner
does, before the kernel is loaded. Does not cover: timing, checking. Must not know: the reference, expected values, tolerances.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from .. import codec
from ..kernelfile.steps import Plan
from ..records import Precision, TensorSpec
from ..targets import Artifact
from ..targets.cuda_program import CudaProgram
from . import vendor
from .gpu import GpuWindow, cuda_checked, gpu_bytes, ready_for_launches
from .main import LoadedPlan
from .sandbox import confine

JOB, CONFINED = "job.json", "confined"


@dataclass(frozen=True)
class Job:
    """What to call. `sizes_bytes`: every buffer by the name that a runner gives it (slot 0); `NAME.bin` beside the job holds what it begins with."""

    plan: Plan
    artifact: Artifact
    specs: tuple[TensorSpec, ...]
    sizes_bytes: dict[str, int]
    precision: Precision


class Buffers(GpuWindow):
    """GPU memory of this process, one allocation a buffer."""

    def __init__(self, sizes_bytes: Mapping[str, int]) -> None:
        from cuda.bindings import runtime

        self._sizes_bytes = dict(sizes_bytes)
        self._addresses: dict[str, int] = {name: cuda_checked(runtime.cudaMalloc(max(size, 1))) for name, size in sizes_bytes.items()}

    def address(self, name: str) -> int:
        return self._addresses[name]

    def ranges(self) -> dict[str, tuple[int, int]]:
        return {name: (low, low + self._sizes_bytes[name]) for name, low in self._addresses.items()}


def main() -> None:
    """Entry of the process; it says where its buffers are, for messages that name addresses."""
    folder = Path(sys.argv[1])
    job = codec.loads(Job, (folder / JOB).read_text(encoding="utf-8"))
    ready_for_launches()
    vendor.set_precision(job.precision)
    buffers = Buffers(job.sizes_bytes)
    for name, (low, high) in buffers.ranges().items():
        sys.stdout.write(f"buffer {name} {low:#x}\n")
        if (file := folder / f"{name}.bin").exists() and high > low:
            gpu_bytes(low, high - low).copy_(torch.from_file(str(file), size=high - low, dtype=torch.uint8))
    sys.stdout.flush()
    if sys.argv[2] == CONFINED:
        confine((folder, Path(job.artifact.path).parent))
    program = CudaProgram(job.artifact)
    stream = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(stream):
        loaded = LoadedPlan(job.plan, program, {s.name: s for s in job.specs}, [buffers])
        loaded.bind()  # on a stream of the plan's own, and waited for
        program.use_stream(stream.cuda_stream)
        loaded.call([0])
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
