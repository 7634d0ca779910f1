"""Every cheating kernel is rejected, for the reason it names. The kinds are those of published evaluators' issue threads and audits."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from evokernel.judge.lane import Lane
from evokernel.kernelfile import make_kernel

HERE = Path(__file__).parent
FILES = sorted((HERE / "cpp").glob("*.cpp"))


def test_there_are_cheats() -> None:
    assert len(FILES) >= 35


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_a_cheat_is_rejected_for_its_reason(file: Path, lane_for: Callable[[Path], Lane]) -> None:
    text = file.read_text()
    task = re.search(r"^// TASK (\w+)$", text, re.MULTILINE)
    expected = re.search(r"^// EXPECT ([\w|]+)(?:: (.+))?$", text, re.MULTILINE)
    assert task and expected, "a cheat names its task and what it expects"
    verdict = lane_for(HERE / "tasks" / f"{task[1]}.py").judge(make_kernel(text, "cpp"))
    assert verdict.status.value in expected[1].split("|"), f"{verdict.status}: {verdict.message}"
    assert verdict.timing is None
    assert re.search(expected[2] or "", verdict.message), verdict.message
    assert len(verdict.message.splitlines()) <= 30


HONEST = sorted((HERE / "honest").glob("*.cpp"))


@pytest.mark.parametrize("file", HONEST, ids=lambda f: f.stem)
def test_an_honest_kernel_with_odd_habits_is_verified(file: Path, lane_for: Callable[[Path], Lane]) -> None:
    text = file.read_text()
    task = re.search(r"^// TASK (\w+)$", text, re.MULTILINE)
    assert task
    verdict = lane_for(HERE / "tasks" / f"{task[1]}.py").judge(make_kernel(text, "cpp"))
    assert verdict.status.value == "verified", verdict.message
    assert verdict.timing is not None
    assert verdict.errors and all(row.passed for row in verdict.errors)
