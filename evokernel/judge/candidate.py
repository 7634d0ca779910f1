"""One candidate kernel in the judge's hands: parsed, built a variant and configuration at a time, loaded into one runner, run on cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch

from .. import targets
from ..codec import encode
from ..kernelfile import KernelFile, KernelFileError, parse, resolve
from ..kernelfile.steps import Plan
from ..records import Config, ErrorRow, Kernel, Status
from ..targets import Artifact, BuildError
from .cases import Case
from .contestant import Contestant, Failure, Seat
from .memory import SLOTS, PlanMemory, plan_specs
from .workshop import Workshop

_LOAD_S = 30.0
_SCRATCH_SHARE = 0.5

T = TypeVar("T")


@dataclass(frozen=True)
class Build:
    """A kernel compiled for one variant in one configuration."""

    variant: int
    config: Config
    plan: Plan
    artifact: Artifact


@dataclass
class Loaded:
    """A build with its seat in the runner. `weights_version`: which weights are bound (-1: none yet). `primed`: slots with a captured graph."""

    build: Build
    seat: Seat
    weights_version: int = -1
    prepare_us: float = 0.0
    primed: set[int] = field(default_factory=set)


class Candidate:
    """Raises `Failure` with the verdict's status wherever the candidate is to blame.

    Args:
        call_limit_s: how long one call may take.
    """

    def __init__(self, shop: Workshop, kernel: Kernel, call_limit_s: float) -> None:
        self.shop = shop
        self.kernel = kernel
        self.call_limit_s = call_limit_s
        self.parsed: KernelFile = _valid(lambda: parse(kernel))
        self._runner: Contestant | None = None
        self._scratch: list[PlanMemory] = []

    def build(self, variant: int, config: Config | None) -> Build:
        """Resolve and compile. Thread-safe: touches neither the runner nor any shared state."""
        shop, signature = self.shop, self.shop.loaded.task.variants[variant]
        try:
            plan, artifact = _valid(lambda: targets.built(shop.target, self.parsed, signature, shop.device, shop.builds, config))
        except BuildError as error:
            raise Failure(Status.BUILD_FAILED, str(error)) from None
        return Build(variant, plan.config, plan, artifact)

    def load(self, build: Build) -> Loaded:
        """Load a build into the runner, which is started first if there is none."""
        if self._runner is None:
            self._runner = self.shop.runner()
        runner = self._runner
        memory = self.shop.memory(build.variant)
        wanted = SLOTS * sum(spec.size_bytes for spec in plan_specs(build.plan))
        if wanted > _SCRATCH_SHARE * self.shop.machine.free_bytes():
            raise Failure(Status.RESOURCES, f"scratch and persisted buffers take {wanted / 2**30:.1f} GiB for {SLOTS} slots; use smaller ones")
        memory.mend()
        scratch = PlanMemory(self.shop.machine, build.plan, SLOTS)
        self._scratch.append(scratch)
        key = f"{build.variant}:{build.artifact.path}:{id(build)}"
        specs = (*memory.signature.tensors, *scratch.specs)
        exported = [memory.reads.exported(writable=False), memory.writes.exported(writable=True), scratch.arena.exported(writable=True)]
        runner.request(
            {
                "op": "load", "plan": key, "resolved": encode(without_code(build.plan)), "artifact": encode(build.artifact),
                "specs": [encode(s) for s in specs],
                "precision": self.shop.loaded.task.options.precision.value, "windows": [window for window, _ in exported],
            },
            _LOAD_S, tuple(fd for _, fds in exported for fd in fds),
        )  # fmt: skip
        return Loaded(build, Seat(runner, key, memory, scratch))

    def plan_for(self, build: Build, case: Case) -> Plan:
        """The build's plan, with the numbers of this case's scalars where they vary from call to call."""
        signature = self.shop.loaded.task.variants[build.variant]
        if not any(s.varies for s in signature.scalars):
            return build.plan
        return _valid(lambda: resolve(self.parsed, signature, self.shop.device, build.config, case.draw.scalars))

    def fill(self, loaded: Loaded, slot: int, case: Case) -> None:
        """Put a case's weights (if they are not bound) and inputs in place."""
        if loaded.weights_version != case.version:
            loaded.prepare_us = loaded.seat.bind(case.placed_weights, self.call_limit_s)
            loaded.weights_version = case.version
        loaded.seat.memory.fill_inputs(slot, case.placed_inputs)
        plan = self.plan_for(loaded.build, case)
        if plan is not loaded.build.plan:
            loaded.seat.renumber(slot, encode(without_code(plan)), self.call_limit_s)
            loaded.primed.discard(slot)
        if not self.shop.machine.seals and slot not in loaded.primed:
            loaded.seat.prime(slot, self.call_limit_s)
            loaded.primed.add(slot)

    def check(self, loaded: Loaded, slot: int, case: Case, *, nan: bool = False) -> tuple[list[ErrorRow], dict[str, torch.Tensor]]:
        """Run a case once on a slot and compare everything with the truth; the rows and the outputs. `nan`: see memory.TaskMemory.poison.

        Raises:
            Failure: wrong anywhere, or written where it may not.
        """
        self.fill(loaded, slot, case)
        self.call(loaded, slot, nan=nan)
        return self.compare(loaded, slot, case)

    def call(self, loaded: Loaded, slot: int, *, nan: bool = False) -> float:
        """Run once on a slot whose case is in place, on poisoned outputs; microseconds."""
        if self.shop.machine.seals:
            loaded.seat.ready(slot, self.call_limit_s)
        loaded.seat.poison(slot, nan=nan)
        return loaded.seat.call(slot, self.call_limit_s)

    def untouched(self, loaded: Loaded, slot: int, case: Case) -> None:
        """Raises:
        Failure: the last call wrote where it may not.
        """
        if damaged := loaded.seat.damaged():
            raise Failure(Status.MISMATCH, f"writes outside {', '.join(damaged)}: bytes before the start or after the end were changed")
        if not self.shop.machine.seals and (changed := loaded.seat.changed(slot, case.placed_inputs, case.placed_weights)):
            raise Failure(Status.CHEATING, f"writes into {', '.join(changed)}: inputs, weights and what is prepared from them may only be read")

    def compare(self, loaded: Loaded, slot: int, case: Case) -> tuple[list[ErrorRow], dict[str, torch.Tensor]]:
        """Compare what the last call left in a slot."""
        self.untouched(loaded, slot, case)
        memory = loaded.seat.memory
        outputs = memory.outputs(slot)
        if odd := memory.not_bools(slot):
            raise Failure(Status.MISMATCH, f"bool output {odd[0]} holds bytes other than 0 and 1: some elements are never written")
        rows, message = self.shop.cases.check(case, outputs)
        if message:
            raise Failure(Status.MISMATCH, message, tuple(rows))
        return rows, outputs

    def close(self) -> None:
        """End the runner."""
        if self._runner:
            self._runner.kill()
            self._runner = None
        for scratch in self._scratch:
            scratch.close()
        self._scratch.clear()


def _valid(action: Callable[[], T]) -> T:
    """The one place where a bad kernel file becomes a verdict."""
    try:
        return action()
    except KernelFileError as error:
        raise Failure(Status.INVALID, str(error)) from None


def without_code(plan: Plan) -> Plan:
    """The runner needs the steps, not the text."""
    return replace(plan, code="")
