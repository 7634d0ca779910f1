"""Compiling CUDA kernels in tests, for one architecture, whether or not there is a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from evokernel import targets
from evokernel.kernelfile import make_kernel, parse, resolve
from evokernel.records import Device, Signature
from evokernel.targets import nvrtc
from evokernel.targets.cuda import CudaTarget, described
from tests.contracts.target_contract import SIGNATURE

ARCHITECTURE = "sm_90a"
needs_compiler = pytest.mark.skipif(nvrtc.missing() is not None, reason=str(nvrtc.missing()))


class CompileOnly(CudaTarget):
    """The target as it is on a machine with an H100 for compiling, and without a GPU for running."""

    def available(self) -> str | None:
        return nvrtc.missing()

    def device(self) -> Device:
        return described(ARCHITECTURE)

    def load(self, artifact: targets.Artifact):  # type: ignore[no-untyped-def]
        if Path(artifact.path).exists() and (reason := CudaTarget().available()):
            pytest.skip(reason)
        return super().load(artifact)


def build(text: str, directory: Path, signature: Signature = SIGNATURE, architecture: str = ARCHITECTURE) -> targets.Artifact:
    device = described(architecture)
    plan = resolve(parse(make_kernel(text, "cuda")), signature, device)
    return CudaTarget().build(plan, plan.dtypes(signature), directory, device)
