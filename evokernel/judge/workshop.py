"""What all judging in one process shares: the task and its cases, the target, the zygote, buffers, caches, the environment's name."""

from __future__ import annotations

import copy
import platform
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import numpy
import torch

from .. import targets
from ..errors import JudgeError
from ..records import PROTOCOL, Device, Environment, digest
from ..task import LoadedTask
from .bounds import Costs, costs
from .cases import Cases
from .contestant import Contestant, Failure
from .machines import GpuMachine, HostMachine, Machine
from .memory import SLOTS, TaskMemory
from .own_code import build_native
from .roofline import Roofline
from .roofline import read as read_roofline
from .zygotes import Zygote

_SETUP_S = 30.0
_MEMORY_SPARE_BYTES = 16 << 30  # address space beyond what torch has mapped: buffers, thread stacks, vendor libraries' workspaces
_CPU_S = 3600


class Workshop:
    """Shared context of one judge process.

    Args:
        cache: folder for builds, baselines and the judge's own native helper.
        environ: the environment of baselines, which run the user's own code.
    """

    def __init__(self, loaded: LoadedTask, target: targets.Target, zygote: Zygote, cache: Path, environ: Mapping[str, str]) -> None:
        self.loaded = loaded
        self.target = target
        self.zygote = zygote
        self.cache = cache
        self.environ = {**environ, "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor")}
        self.sandbox = ""
        self.forced = False  # the task is one that admission refuses
        self.cases = Cases(loaded, self.machine.place, memory_bytes=self.machine.free_bytes())
        self._memories: dict[int, TaskMemory] = {}
        self._next_runner: Contestant | None = None
        self._settled = False

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
        return GpuMachine(self.device, self.builds) if self.device.target == "cuda" else HostMachine(self.native)

    def memory(self, variant: int) -> TaskMemory:
        """The candidate-side buffers of a variant, made once and used by one runner after another."""
        if variant not in self._memories:
            signature = self.loaded.task.variants[variant]
            self._memories[variant] = TaskMemory(self.machine, signature, sealed=True, slots=SLOTS)
        return self._memories[variant]

    def elsewhere(self) -> Workshop:
        """The same with runners and candidate-side buffers of its own; to be closed."""
        other = copy.copy(self)
        other._memories, other._next_runner = {}, None
        return other

    def close(self) -> None:
        """Let go of the buffers, and of a runner that was booted ahead."""
        for memory in self._memories.values():
            memory.close()
        if self._next_runner:
            self._next_runner.kill()

    def runner(self) -> Contestant:
        """A confined process that no kernel has been in yet.

        Raises:
            JudgeError: it does not start.
        """
        for _ in range(2):
            self.boot_runner()
            why = self.settle_runner()
            runner, self._next_runner = self._next_runner, None
            if runner is not None:
                if self.machine.slow_start:
                    self.boot_runner()
                return runner
        raise JudgeError(f"the process that a kernel runs in does not start: {why}")

    def boot_runner(self) -> None:
        """Have the next runner started, without waiting for it."""
        if self._next_runner is None:
            self._next_runner, self._settled = Contestant(self.zygote, "evokernel.runner.main"), False
            native = str(self.native) if self.machine.seals else ""
            self._next_runner.post({
                "op": "setup", "target": self.device.target, "readable": [str(self.builds)], "native": native,
                "memory_bytes": _MEMORY_SPARE_BYTES, "cpu_seconds": _CPU_S, "between": self.machine.between,
            })  # fmt: skip

    def settle_runner(self) -> str:
        """Wait until the next runner, if one was booted, has started and is quiet: nothing is timed while it does. Says why it failed."""
        if self._next_runner is not None and not self._settled:
            try:
                self.sandbox = str(self._next_runner.collect(_SETUP_S)["sandbox"])
                self._settled = True
            except Failure as failure:
                self._next_runner = None
                return failure.message
        return ""

    @cached_property
    def versions(self) -> dict[str, str]:
        found = {"torch": torch.__version__, "numpy": numpy.__version__, "python": platform.python_version()}
        if self.device.target == "cuda":
            return {**found, "cuda": str(torch.version.cuda)}
        return {**found, "threads": str(self.device.sm_count)}

    def environment(self) -> Environment:
        """Where verdicts of this process are made."""
        return Environment(self.device.name, self.device.architecture, self.target.compiler(), self.sandbox, self.versions, forced=self.forced)

    @cached_property
    def costs(self) -> Costs:
        """What the task costs at least."""
        return costs(self.cases)

    @cached_property
    def roofline(self) -> Roofline | None:
        """The device's measured rates, if `evokernel doctor --measure` was run here."""
        return read_roofline(self.cache, self.device)

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
