"""Cheating and honest CUDA kernels of tests/cheats on a GPU: each is rejected for the reason it names, or verified. Skipped where there is none."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evokernel import targets
from evokernel.judge.lane import Lane, LaneSettings
from tests.cheats.fixtures import Fixture, fixtures

WHY_NOT = targets.get("cuda").available()
RUNNING = sorted((f for f in fixtures("cuda") if not f.refused), key=lambda f: f.task)  # tests/targets has seen the others refused
IDS = [f"{f.file.parent.name}-{f.name}" for f in RUNNING]
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(WHY_NOT is not None, reason=f"no GPU: {WHY_NOT}")]


@pytest.fixture(scope="module")
def only_lane(own_folders: Path) -> Iterator[Callable[[Path], Lane]]:
    """The judge of a task; the one before it ends first, because a GPU has one tenant."""
    lanes: dict[Path, Lane] = {}

    def get(task: Path) -> Lane:
        if task not in lanes:
            close()
            lanes[task] = Lane(LaneSettings(str(task), "cuda", own_folders / "cache", dict(os.environ), baselines=("eager",)))
        return lanes[task]

    def close() -> None:
        while lanes:
            lanes.popitem()[1].close()

    yield get
    close()


@pytest.mark.parametrize("fixture", RUNNING, ids=IDS)
def test_each_kernel_gets_the_verdict_it_deserves(only_lane: Callable[[Path], Lane], fixture: Fixture) -> None:
    verdict = only_lane(fixture.task).judge(fixture.kernel)
    assert fixture.as_expected(verdict), f"{verdict.status}: {verdict.message}"
    assert (verdict.timing is None) == bool(fixture.kind)
    if not fixture.kind:
        assert verdict.errors and all(row.passed for row in verdict.errors)
