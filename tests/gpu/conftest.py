"""One judge at a time: a GPU has one tenant. Tests sort what they judge by its task, because each other task starts another judge."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evokernel.judge.lane import Lane, LaneSettings

TASKS = Path(__file__).parent.parent / "cheats" / "tasks"


@pytest.fixture(scope="module")
def only_lane(own_folders: Path) -> Iterator[Callable[..., Lane]]:
    """`only_lane(task, baselines)`: the judge of a task of tests/cheats; the one before it ends first."""
    lanes: dict[tuple[str, tuple[str, ...]], Lane] = {}

    def get(task: str, baselines: tuple[str, ...] = ("eager",)) -> Lane:
        key = (task, baselines)
        if key not in lanes:
            close()
            lanes[key] = Lane(LaneSettings(str(TASKS / f"{task}.py"), "cuda", own_folders / "cache", dict(os.environ), baselines=baselines))
        return lanes[key]

    def close() -> None:
        while lanes:
            lanes.popitem()[1].close()

    yield get
    close()
