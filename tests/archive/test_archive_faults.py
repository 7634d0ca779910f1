"""A small run of experiments/archive_faults.py: killed processes, and two that insert the same kernels, lose nothing and leave nothing twice."""

import subprocess
import sys
from pathlib import Path


def test_kills_and_two_writers_lose_nothing() -> None:
    script = Path(__file__).parents[2] / "experiments" / "archive_faults.py"
    done = subprocess.run([sys.executable, script, "--kills", "4", "--kernels", "60"], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0 and done.stdout.count("nothing wrong") == 2, done.stdout + done.stderr
