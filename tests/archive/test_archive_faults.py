"""Small runs of experiments/archive_faults.py: killed processes, and two that insert the same kernels, lose nothing and leave nothing twice."""

import subprocess
import sys
from pathlib import Path


def nothing_wrong(*options: str) -> str:
    """What the experiment prints."""
    script = Path(__file__).parents[2] / "experiments" / "archive_faults.py"
    done = subprocess.run([sys.executable, script, *options], capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0 and done.stdout.count("nothing wrong") == len(done.stdout.splitlines()), done.stdout + done.stderr
    return done.stdout


def test_kills_and_two_writers_lose_nothing() -> None:
    assert nothing_wrong("--kills", "4", "--live", "0", "--kernels", "60").count("nothing wrong") == 2


def test_merges_and_prunes_that_are_killed_beside_a_run_do_all_or_nothing_and_the_run_goes_on() -> None:
    said = nothing_wrong("--kills", "0", "--live", "2", "--kernels", "20")
    assert said.count("nothing wrong") == 3 and "'killed run': 1" in said
