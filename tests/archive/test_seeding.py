"""The arithmetic of experiments/seeding.py, and that its plain kernels fit the tasks they are for."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "experiments"))

import seeding  # noqa: E402

from evokernel.kernelfile import make_kernel, parse, resolve  # noqa: E402
from evokernel.targets import get  # noqa: E402
from evokernel.task import load_task  # noqa: E402


def test_candidates_are_counted_to_the_level_or_past_the_budget() -> None:
    assert seeding.needed([0.0, 1.0, 1.9, 2.0], 1.9, 10) == 3
    assert seeding.needed([0.0, 1.0], 1.9, 10) == seeding.needed([], 1.9, 10) == 11


def test_arms_are_compared_with_the_empty_archive() -> None:
    rows = [
        {"kind": "other sizes", "needed": {"empty": 11, "seeds": 1 + n, "shuffled": 11}, "best": {"empty": 1.0, "seeds": 2.0, "shuffled": 0.0}}
        for n in range(3)
    ]
    found = seeding.compared(rows, 10)
    low, mid, high = found["all"]["seeds"]["candidates_saved"]
    assert low <= mid == 9 <= high and found["all"] == found["other sizes"] and "own seeds left out" not in found
    assert found["all"]["seeds"]["best_over_empty"] == [2.0, 2.0, 2.0] and found["all"]["shuffled"]["best_over_empty"] is None
    assert found["all"]["empty"]["never_reached"] == 3


@pytest.mark.parametrize("name", seeding.NEW)
def test_the_plain_kernel_and_the_changed_task_fit(name: str, tmp_path: Path) -> None:
    module, changes, _ = seeding.NEW[name]
    source = (seeding.TASKS / f"{module}.py").read_text()
    for old, new in changes.items():
        assert old in source
        source = source.replace(old, new)
    (tmp_path / f"{module}.py").write_text(source)
    task = load_task(tmp_path / f"{module}.py").task
    assert resolve(parse(make_kernel(seeding.PLAIN[module], "cpp")), task.signature, get("cpp").device())
