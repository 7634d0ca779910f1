"""The judge on a GPU: honest kernels, wrong ones, and errors inside CUDA, one after another in one judge. Skipped where there is no GPU."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from evokernel import targets
from evokernel.judge.lane import Lane, LaneSettings
from evokernel.kernelfile import make_kernel
from evokernel.records import Kernel, Status

HERE = Path(__file__).parent
TASKS = HERE.parent / "cheats" / "tasks"
WHY_NOT = targets.get("cuda").available()
HONEST = {"linear": "vendor_product", "softmax": "softmax"}  # by task, judged after each of the others
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(WHY_NOT is not None, reason=f"no GPU: {WHY_NOT}")]


def kernel(name: str) -> Kernel:
    return make_kernel((HERE / "kernels" / f"{name}.cu").read_text(), "cuda")


def header(name: str, word: str) -> str:
    found = re.search(rf"^// {word} (.+)$", kernel(name).text, re.MULTILINE)
    assert found
    return found[1]


NAMES = sorted((p.stem for p in (HERE / "kernels").glob("*.cu")), key=lambda name: (header(name, "TASK"), name))


@pytest.fixture(scope="module")
def lane(request: pytest.FixtureRequest, own_folders: Path) -> Iterator[Lane]:
    """One at a time: a GPU has one tenant."""
    made = Lane(LaneSettings(str(TASKS / f"{request.param}.py"), "cuda", own_folders / "cache", dict(os.environ), baselines=("eager", "graph")))
    yield made
    made.close()


@pytest.mark.parametrize(("lane", "name"), [(header(n, "TASK"), n) for n in NAMES], indirect=["lane"], ids=NAMES)
def test_each_kernel_gets_its_verdict_and_the_next_is_untouched(lane: Lane, name: str) -> None:
    verdict = lane.judge(kernel(name))
    statuses, _, pattern = header(name, "EXPECT").partition(": ")
    assert verdict.status.value in statuses.split("|"), verdict.message
    assert re.search(pattern, verdict.message), verdict.message
    honest = lane.judge(kernel(HONEST[header(name, "TASK")]))
    assert honest.status is Status.VERIFIED, f"after {name}: {honest.message}"
    assert honest.timing and honest.bounds and honest.resources
    assert honest.timing.clock_mhz > 0 and 0 < honest.bounds.traffic_fraction < 1
    assert sum(honest.stages_s.values()) == pytest.approx(honest.seconds)


@pytest.mark.parametrize("lane", ["softmax"], indirect=True)
def test_tunables_are_screened(lane: Lane) -> None:
    screens = lane.screen(kernel("softmax"), [{"BLOCK": 128}, {"BLOCK": 256}, {"BLOCK": 512}])
    assert [s.status for s in screens] == [Status.VERIFIED] * 3, [s.message for s in screens]
