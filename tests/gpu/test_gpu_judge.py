"""The judge on a GPU: honest kernels, wrong ones, and errors inside CUDA, one after another in one judge. Skipped where there is no GPU."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from evokernel import targets
from evokernel.judge.lane import Lane
from evokernel.kernelfile import make_kernel
from evokernel.records import Kernel, Status

HERE = Path(__file__).parent
WHY_NOT = targets.get("cuda").available()
BASELINES = ("eager", "graph")
HONEST = {"linear": "vendor_product", "softmax": "softmax"}  # by task, judged after each of the others
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(WHY_NOT is not None, reason=f"no GPU: {WHY_NOT}")]


def kernel(name: str) -> Kernel:
    return make_kernel((HERE / "kernels" / f"{name}.cu").read_text(), "cuda")


def header(name: str, word: str) -> str:
    found = re.search(rf"^// {word} (.+)$", kernel(name).text, re.MULTILINE)
    assert found
    return found[1]


NAMES = sorted((p.stem for p in (HERE / "kernels").glob("*.cu")), key=lambda name: (header(name, "TASK"), name))


@pytest.mark.parametrize("name", NAMES)
def test_each_kernel_gets_its_verdict_and_the_next_is_untouched(only_lane: Callable[..., Lane], name: str) -> None:
    lane = only_lane(header(name, "TASK"), BASELINES)
    verdict = lane.judge(kernel(name))
    statuses, _, pattern = header(name, "EXPECT").partition(": ")
    assert verdict.status.value in statuses.split("|"), verdict.message
    assert re.search(pattern, verdict.message), verdict.message
    honest = lane.judge(kernel(HONEST[header(name, "TASK")]))
    assert honest.status is Status.VERIFIED, f"after {name}: {honest.message}"
    assert honest.timing and honest.bounds and honest.resources
    assert honest.timing.clock_mhz > 0 and 0 < honest.bounds.traffic_fraction < 1
    assert sum(honest.stages_s.values()) == pytest.approx(honest.seconds)


def test_tunables_are_screened(only_lane: Callable[..., Lane]) -> None:
    screens = only_lane("softmax", BASELINES).screen(kernel("softmax"), [{"BLOCK": 128}, {"BLOCK": 256}, {"BLOCK": 512}])
    assert [s.status for s in screens] == [Status.VERIFIED] * 3, [s.message for s in screens]
