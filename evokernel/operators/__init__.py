"""Operators: what turns a proposal of the policy into one kernel text.

An operator is one file with one class that satisfies `Operator`, one line in `_BUILT_IN` (or an entry point in the group
`evokernel.operators`), and passes `tests/contracts/operator_contract.py`. It never calls the judge: it yields batches of one kernel in several
configurations, the loop has them screened and sends the screens back, and what it returns is the reply.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoints, entry_points
from typing import Protocol

from ..archive.stones import Stone
from ..errors import UsageError
from ..models import Prompt
from ..records import Config, Device, Kernel, Reply, Screen, Task, Verdict

_BUILT_IN = {
    "transplant": "evokernel.operators.transplant:Transplant",
    "tune": "evokernel.operators.tune:Tune",
    "recombine": "evokernel.operators.recombine:Recombine",
}
_WRITERS = {
    name: f"evokernel.operators.{name}:{name.capitalize()}"
    for name in ("translate", "mutate", "technique", "crossover", "rethink", "simplify", "transfer", "repair")
}
ENTRY_POINT_GROUP = "evokernel.operators"
MAX_BUILDS = 32


@dataclass(frozen=True)
class Parent:
    """A kernel of the run with its verdict on the run's task and device."""

    kernel: Kernel
    verdict: Verdict


@dataclass(frozen=True)
class OperatorContext:
    """All that an operator may know. The same context and screens give the same batches and reply: `seed` seeds all its randomness.

    `stones`: archived kernels of other searches, not judged here. `builds`: how many configurations may be built. For writers: `tried`, one line
    for each kernel of this lineage (its first comment line) and what came of it, oldest first; `examples`, verified kernels of this task, slow to
    fast; `draft`, how many first drafts this run has asked for before; `lessons`, of earlier runs.
    """

    task: Task
    device: Device
    seed: int
    parents: tuple[Parent, ...] = ()
    stones: tuple[Stone, ...] = ()
    builds: int = MAX_BUILDS
    tried: tuple[str, ...] = ()
    examples: tuple[Parent, ...] = ()
    draft: int = 0
    lessons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Batch:
    """One kernel in several configurations, to be screened together."""

    kernel: Kernel
    configs: tuple[Config, ...]


Answering = Generator[Batch, list[Screen], Reply]


class Operator(Protocol):
    """What an operator provides."""

    def run(self, context: OperatorContext) -> Answering:
        """Yield batches, receive one screen a configuration in the same order, return a reply.

        A kernel or stone that does not lend itself to it is a reply without text, with the reason in its note.

        Raises:
            UsageError: the context lacks the parents or stones that the operator works on.
        """


class Writer(Protocol):
    """An operator that has a model write the kernel. Pure: the same context gives the same prompt, live or into a file.

    Attributes:
        parents: how many it works on.
        stones: how many stepping stones it works on.
    """

    parents: int
    stones: int

    def prompt(self, context: OperatorContext) -> Prompt:
        """What to ask. The answer is read by `models.reply.read`, with the first parent as the file that edits apply to.

        Raises:
            UsageError: the context lacks the parents or stones that the operator works on.
        """


def writers() -> tuple[str, ...]:
    """Names of the operators that need a model."""
    return tuple(_WRITERS)


def writer(name: str) -> Writer:
    """Raises:
    UsageError: no such operator.
    """
    if name not in _WRITERS:
        raise UsageError(f"there is no operator {name!r} for models; known ones: {', '.join(_WRITERS)}")
    module, _, cls = _WRITERS[name].partition(":")
    return getattr(import_module(module), cls)()  # type: ignore[no-any-return]


@cache  # each look reads the metadata of every installed package
def _added() -> EntryPoints:
    return entry_points(group=ENTRY_POINT_GROUP)


def names() -> tuple[str, ...]:
    """All registered operators that need no model, built-in ones first."""
    return (*_BUILT_IN, *(e.name for e in _added()))


def get(name: str) -> Operator:
    """The operator registered under `name`.

    Raises:
        UsageError: no such operator.
    """
    for entry in _added():
        if entry.name == name:
            return entry.load()()  # type: ignore[no-any-return]
    if name not in _BUILT_IN:
        raise UsageError(f"there is no operator {name!r}; known operators: {', '.join(names())}")
    module, _, cls = _BUILT_IN[name].partition(":")
    return getattr(import_module(module), cls)()  # type: ignore[no-any-return]
