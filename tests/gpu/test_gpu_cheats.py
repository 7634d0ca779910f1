"""Cheating and honest CUDA kernels of tests/cheats on a GPU: each is rejected for the reason it names, or verified. Skipped where there is none."""

from collections.abc import Callable

import pytest

from evokernel import targets
from evokernel.judge.lane import Lane
from tests.cheats.fixtures import Fixture, fixtures

WHY_NOT = targets.get("cuda").available()
RUNNING = sorted((f for f in fixtures("cuda") if not f.refused), key=lambda f: f.task)  # tests/targets has seen the others refused
IDS = [f"{f.file.parent.name}-{f.name}" for f in RUNNING]
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(WHY_NOT is not None, reason=f"no GPU: {WHY_NOT}")]


@pytest.mark.parametrize("fixture", RUNNING, ids=IDS)
def test_each_kernel_gets_the_verdict_it_deserves(only_lane: Callable[..., Lane], fixture: Fixture) -> None:
    verdict = only_lane(fixture.task.stem).judge(fixture.kernel)
    assert fixture.as_expected(verdict), f"{verdict.status}: {verdict.message}"
    assert (verdict.timing is None) == bool(fixture.kind)
    if not fixture.kind:
        assert verdict.errors and all(row.passed for row in verdict.errors)


@pytest.mark.parametrize(("name", "least_us"), [("finds_no_answers_in_shared_memory", 40), ("last_launch_does_not_wait", 150)])
def test_all_the_work_is_in_the_time(only_lane: Callable[..., Lane], name: str, least_us: float) -> None:
    """Many times as fast where an earlier launch's answer is left, or where the end of the last launch is that of the call."""
    fixture = next(f for f in RUNNING if f.name == name)
    verdict = only_lane(fixture.task.stem).judge(fixture.kernel)
    assert verdict.timing
    assert {mode.mode: mode.p10_us > least_us for mode in verdict.timing.modes} == {"cold": True, "warm": True}, verdict.timing.modes
