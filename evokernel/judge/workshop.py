"""What all judging in one process shares: the task and its cases, the target, the zygote, buffers, caches, the environment's name."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import numpy
import torch

from .. import targets
from ..errors import JudgeError
from ..records import PROTOCOL, Device, Environment, digest
from ..task import LoadedTask
from .cases import Cases
from .machines import GpuMachine, HostMachine, Machine
from .memory import SLOTS, TaskMemory
from .zygotes import Zygote

_NATIVE_SOURCE = Path(__file__).parent.parent / "runner" / "native.cpp"


class Workshop:
    """Shared context of one judge process.

    Args:
        cache: folder for builds, baselines and the judge's own native helper.
        environ: the environment of baselines, which run the user's own code.
    """

    def __init__(
        self, loaded: LoadedTask, cases: Cases, target: targets.Target, zygote: Zygote, cache: Path, environ: Mapping[str, str]
    ) -> None:
        self.loaded = loaded
        self.cases = cases
        self.target = target
        self.zygote = zygote
        self.cache = cache
        self.environ = {**environ, "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor")}
        self.sandbox = ""
        self._memories: dict[int, TaskMemory] = {}

    @cached_property
    def device(self) -> Device:
        return self.target.device()

    @cached_property
    def native(self) -> Path:
        """The helper library, built on first use."""
        return build_native(self.cache)

    @cached_property
    def machine(self) -> Machine:
        """The memory of the device that is judged on."""
        return GpuMachine(self.device.l2_bytes) if self.device.target == "cuda" else HostMachine(self.native)

    def memory(self, variant: int) -> TaskMemory:
        """The candidate-side buffers of a variant, made once and used by one runner after another."""
        if variant not in self._memories:
            signature = self.loaded.task.variants[variant]
            self._memories[variant] = TaskMemory(self.machine, signature, sealed=True, slots=SLOTS)
        return self._memories[variant]

    @cached_property
    def versions(self) -> dict[str, str]:
        found = {"torch": torch.__version__, "numpy": numpy.__version__, "python": platform.python_version()}
        if self.device.target == "cuda":
            return {**found, "cuda": str(torch.version.cuda)}
        return {**found, "threads": str(self.device.sm_count)}

    def environment(self) -> Environment:
        """Where verdicts of this process are made."""
        return Environment(self.device.name, self.device.architecture, self.target.compiler(), self.sandbox, self.versions)

    @property
    def builds(self) -> Path:
        """The folder of all built kernels, content-addressed."""
        return self.cache / "builds"

    @property
    def baseline_cache(self) -> Path:
        """The file of baseline times for this task, device and versions."""
        versions = ",".join(f"{k}={v}" for k, v in sorted(self.versions.items()))
        key = digest(self.loaded.task.id, self.device.name, self.device.architecture, versions, str(PROTOCOL))
        return self.cache / "baselines" / f"{key}.json"


def build_native(cache: Path) -> Path:
    """Compile runner/native.cpp into the cache; at once when it is there already.

    Raises:
        JudgeError: no working g++.
    """
    path = cache / "native" / f"{digest(_NATIVE_SOURCE.read_text(), platform.machine())}.so"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    flags = ["-O2", "-std=c++17", "-shared", "-fPIC", "-fopenmp"] + (["-mclflushopt"] if platform.machine() == "x86_64" else [])
    try:
        subprocess.run(["g++", *flags, str(_NATIVE_SOURCE), "-o", str(temporary)], check=True, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        raise JudgeError("g++ is not installed; the judge needs it on the CPU (Debian, Ubuntu: apt-get install g++)") from None
    except subprocess.SubprocessError as error:
        raise JudgeError(f"the judge's helper library does not compile: {error}") from error
    temporary.replace(path)
    return path
