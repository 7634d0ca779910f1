"""Targets: what turns a resolved plan into machine code and runs it inside the runner.

A target is one file with one class that satisfies `Target`, one line in `_BUILT_IN` (or an entry point in the group
`evokernel.targets`), one prompt template, and passes `tests/contracts/target_contract.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path
from typing import Protocol

from .. import codec
from ..errors import UsageError
from ..kernelfile import KernelFile, resolve
from ..kernelfile.steps import Plan
from ..records import Config, Device, Number, Resources, Signature

_BUILT_IN = {"cuda": "evokernel.targets.cuda:CudaTarget", "cpp": "evokernel.targets.cpp:CppTarget"}
ENTRY_POINT_GROUP = "evokernel.targets"


class BuildError(Exception):
    """The candidate does not compile. The message is the compiler's, cut to what a model can act on, with the kernel file's own lines."""


@dataclass(frozen=True)
class Artifact:
    """A built kernel. `code_hash` covers the code sections without names: equal hashes are one measurement."""

    path: str
    code_hash: str
    resources: Resources
    functions: tuple[str, ...]


class Program(Protocol):
    """A loaded artifact inside the runner."""

    def launch(self, index: int, pointers: Sequence[int], numbers: Sequence[Number]) -> None:
        """Run launch `index` (numbered as in `Plan.launches`) with tensor addresses and numbers, each in argument order, and wait for nothing."""


class Target(Protocol):
    """What a target provides. `build` runs in the judge, `load` in the runner (after the sandbox is up).

    Attributes:
        builds_beside: kernels may be built while others are timed, which is done on another device than building.
    """

    name: str
    suffix: str
    builds_beside: bool

    def available(self) -> str | None:
        """None when this machine can build and run, otherwise one sentence: what is missing and how to get it."""

    def device(self) -> Device:
        """The device that `load` would run on, with its architecture."""

    def compiler(self) -> str:
        """Name and version of the compiler, part of a build's key."""

    def build(self, plan: Plan, dtypes: dict[str, str], directory: Path, device: Device) -> Artifact:
        """Compile `plan.code` for a device into `directory` (created if need be), content-addressed: the same plan gives the same path at once.

        `dtypes` gives the torch dtype of every tensor a launch passes, by plan name. Thread-safe.

        Raises:
            BuildError: the code does not compile, or an argument does not fit its parameter.
            KernelFileError: the object file holds something that is refused (see kernelfile/).
        """

    def load(self, artifact: Artifact) -> Program:
        """Load into this process.

        Raises:
            OSError: the artifact cannot be loaded here.
        """


def built(
    target: Target, parsed: KernelFile, signature: Signature, device: Device, directory: Path, config: Config | None = None
) -> tuple[Plan, Artifact]:
    """A kernel file resolved for one signature and compiled; raises as `resolve` and `Target.build` do."""
    plan = resolve(parsed, signature, device, config)
    return plan, target.build(plan, plan.dtypes(signature), directory, device)


def canonical_plan(plan: Plan) -> str:
    """The plan without its code, line numbers, the names of its functions, and what may change from call to call."""
    steps = [codec.encode(s) for s in (*plan.prepare, *plan.steps)]
    for step in steps:
        step.pop("line")
        step.pop("enabled", None)
        step.pop("function", None)
    return codec.dumps([codec.encode(plan.buffers), len(plan.prepare), steps, plan.nondeterministic])


@cache  # each look reads the metadata of every installed package
def _added() -> EntryPoints:
    return entry_points(group=ENTRY_POINT_GROUP)


def names() -> tuple[str, ...]:
    """All registered target names, built-in ones first."""
    return (*_BUILT_IN, *(e.name for e in _added()))


def get(name: str) -> Target:
    """The target registered under `name`.

    Raises:
        UsageError: no such target.
    """
    for entry in _added():
        if entry.name == name:
            return entry.load()()  # type: ignore[no-any-return]
    if name not in _BUILT_IN:
        raise UsageError(f"there is no target {name!r}; known targets: {', '.join(names())}")
    module, _, cls = _BUILT_IN[name].partition(":")
    return getattr(import_module(module), cls)()  # type: ignore[no-any-return]
