"""The judge on a GPU: honest kernels, wrong ones, and errors inside CUDA, one after another in one judge. Skipped where there is no GPU."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from evokernel import targets
from evokernel.judge.lane import Lane, LaneSettings
from evokernel.kernelfile import make_kernel
from evokernel.records import Status, Verdict

HERE = Path(__file__).parent
TASKS = HERE.parent / "cheats" / "tasks"
WHY_NOT = targets.get("cuda").available()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(WHY_NOT is not None, reason=f"no GPU: {WHY_NOT}")]


@pytest.fixture(scope="module")
def lanes(own_folders: Path) -> Iterator[dict[str, Lane]]:
    made = {
        task: Lane(LaneSettings(str(TASKS / f"{task}.py"), "cuda", own_folders / "cache", dict(os.environ), baselines=("eager", "graph")))
        for task in ("softmax", "linear")
    }
    yield made
    for lane in made.values():
        lane.close()


def judged(lanes: dict[str, Lane], name: str) -> tuple[Verdict, str]:
    text = (HERE / "kernels" / f"{name}.cu").read_text()
    task, expected = re.search(r"^// TASK (\w+)$", text, re.MULTILINE), re.search(r"^// EXPECT (.+)$", text, re.MULTILINE)
    assert task and expected
    return lanes[task[1]].judge(make_kernel(text, "cuda")), expected[1]


@pytest.mark.parametrize("name", sorted(p.stem for p in (HERE / "kernels").glob("*.cu")))
def test_each_kernel_gets_its_verdict_and_the_next_is_untouched(name: str, lanes: dict[str, Lane]) -> None:
    verdict, expected = judged(lanes, name)
    statuses, _, pattern = expected.partition(": ")
    assert verdict.status.value in statuses.split("|"), verdict.message
    assert re.search(pattern, verdict.message), verdict.message
    honest, _ = judged(lanes, "softmax")
    assert honest.status is Status.VERIFIED, f"after {name}: {honest.message}"


def test_tunables_are_screened(lanes: dict[str, Lane]) -> None:
    kernel = make_kernel((HERE / "kernels" / "softmax.cu").read_text(), "cuda")
    screens = lanes["softmax"].screen(kernel, [{"BLOCK": 128}, {"BLOCK": 256}, {"BLOCK": 512}])
    assert [s.status for s in screens] == [Status.VERIFIED] * 3, [s.message for s in screens]
