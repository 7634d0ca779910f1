"""Cheating CUDA kernels without a GPU: what loader and compiler can see is refused for the reason it names, everything else must compile.

What compiles is judged on a GPU, in tests/gpu/test_gpu_cheats.py.
"""

import re
from pathlib import Path

import pytest

from evokernel.kernelfile import KernelFileError
from evokernel.records import Signature
from evokernel.targets import BuildError
from evokernel.task import load_task
from tests.cheats.fixtures import Fixture, fixtures

from .cuda_offline import build, needs_compiler

ALL = fixtures("cuda")
REFUSED = [f for f in ALL if f.refused]
RUNNING = [f for f in ALL if not f.refused]
pytestmark = needs_compiler


@pytest.fixture(scope="module")
def signatures() -> dict[Path, tuple[Signature, ...]]:
    return {task: load_task(task).task.variants for task in {f.task for f in ALL}}


def test_there_are_enough() -> None:
    cheats, honest = [f for f in ALL if f.kind], [f for f in ALL if not f.kind]
    assert len(cheats) >= 45 and len(honest) >= 14
    assert len([f for f in RUNNING if f.kind]) >= 16


@pytest.mark.parametrize("fixture", REFUSED, ids=lambda f: f.name)
def test_a_cheat_is_refused_for_its_reason(fixture: Fixture, build_directory: Path, signatures: dict[Path, tuple[Signature, ...]]) -> None:
    kinds = tuple({"invalid": KernelFileError, "build_failed": BuildError}[status] for status in fixture.statuses)
    with pytest.raises(kinds) as caught:
        build(fixture.kernel.text, build_directory, signatures[fixture.task][0])
    message = str(caught.value)
    assert re.search(fixture.pattern, message), message
    assert len(message.splitlines()) <= 30 and str(build_directory) not in message


@pytest.mark.parametrize("fixture", RUNNING, ids=lambda f: f"{f.file.parent.name}-{f.name}")
def test_what_only_a_gpu_can_judge_compiles(fixture: Fixture, build_directory: Path, signatures: dict[Path, tuple[Signature, ...]]) -> None:
    for signature in signatures[fixture.task]:
        build(fixture.kernel.text, build_directory, signature)
