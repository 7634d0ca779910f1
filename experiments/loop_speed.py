"""How fast the loop is when answers and verdicts cost nothing: candidates a second for each thousand of one run, and memory.

    python experiments/loop_speed.py [--candidates 10000] [--write]

The judge and the model are doubles: the judge is that of tests/search (a verdict is arithmetic), the model answers at once with a kernel that is new
each time. The policy, the operators with their prompts, the reading of answers, the archive on disk and the threads between them are the real ones.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import report

sys.path.insert(0, str(Path(__file__).parent.parent))
from evokernel.archive.runs import Judged, Logged, RunSettings
from evokernel.archive.store import Archive
from evokernel.models import CallSettings, Completion, Prompt
from evokernel.records import Kernel, Verdict
from evokernel.search.run import run_search
from evokernel.search.state import State
from tests.search.fake_judge import FakeJudge, kernel_text

MODEL = "openai/double@http://127.0.0.1:1/v1"
STEP = 1000  # candidates that make one row
PROBE = 200  # the first candidates and the last, which are compared


class FreeModel:
    """Answers at once, in 1 of 8 calls with a kernel that is wrong. Times are spread by the golden ratio, so that bests come ever more rarely."""

    def __init__(self) -> None:
        self._count, self._lock = itertools.count(), threading.Lock()

    def complete(self, prompt: Prompt, settings: CallSettings) -> Completion:
        with self._lock:
            number = next(self._count)
        base = 300 + int(number * 0.6180339887 % 1 * 600)
        extra = f"int n{number};" + ("  // WRONG" if number % 8 == 7 else "")
        return Completion(f"```cpp\n{kernel_text(base, extra=extra, strategy=f'Draft {number}.')}```\n", input_tokens=4000, output_tokens=300)


class FreeJudge(FakeJudge):
    """The double of the tests without its lists of what was judged, which would grow."""

    def judge(self, kernel: Kernel, *, incumbent_us: float | None = None, patience: float = 1.0) -> Verdict:
        verdict = super().judge(kernel, incumbent_us=incumbent_us, patience=patience)
        self.judged.clear()
        self.incumbents.clear()
        self.screened.clear()
        return replace(verdict, seconds=0.0)


def resident_bytes() -> int:
    """Memory of this process that is in use now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measured(candidates: int, folder: Path) -> dict[str, Any]:
    """One run: the second at which each candidate was judged, and the memory at each row's end."""
    seconds: list[float] = []
    memory: list[int] = []

    def watch(logged: Logged, state: State) -> None:
        if isinstance(logged.event, Judged) and state.candidates > len(seconds):
            seconds.append(time.perf_counter())
            if len(seconds) % STEP == 0:
                memory.append(resident_bytes())
                print(f"{len(seconds):6} candidates: {rate(seconds, STEP):7.1f} a second, {memory[-1] / 2**20:6.1f} MiB", flush=True)

    began = time.perf_counter()
    start_bytes = resident_bytes()
    with Archive(folder / "archive.db") as archive:
        settings = RunSettings("cpp", candidates=candidates, models=(MODEL,))
        found = run_search(archive, FreeJudge(), settings, watch, {MODEL: FreeModel()})
        archive_bytes = sum(p.stat().st_size for p in folder.glob("archive.db*"))
    steps_s = [b - a for a, b in itertools.pairwise(seconds)]
    early, late = statistics.median(steps_s[100 : 100 + PROBE]), statistics.median(steps_s[-PROBE:])
    return {
        "candidates": found.candidates,
        "candidates_per_second": found.candidates / (seconds[-1] - began),
        "candidates_per_second_by_thousand": [
            STEP / (seconds[i + STEP - 1] - (seconds[i - 1] if i else began)) for i in range(0, candidates - STEP + 1, STEP)
        ],
        "median_s_after_the_100th": early,
        "median_s_at_the_end": late,
        "dearer_at_the_end": late / early - 1,
        "resident_bytes_at_start": start_bytes,
        "resident_bytes_by_thousand": memory,
        "resident_bytes_a_candidate": (memory[-1] - memory[0]) / (STEP * (len(memory) - 1)) if len(memory) > 1 else None,
        "peak_resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "archive_bytes_a_candidate": archive_bytes / found.candidates,
    }


def rate(seconds: list[float], last: int) -> float:
    """Candidates a second over the `last` ones."""
    return (last - 1) / (seconds[-1] - seconds[-last])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=10_000)
    parser.add_argument("--write", action="store_true", help="write experiments/results/loop_speed.json")
    arguments = parser.parse_args()
    if arguments.candidates < STEP:
        parser.error(f"--candidates must be at least {STEP}")
    with tempfile.TemporaryDirectory() as folder:
        result = measured(arguments.candidates, Path(folder))
    for name, value in result.items():
        print(f"{name}: {value}")
    if arguments.write:
        print(report.write("loop_speed", result))


if __name__ == "__main__":
    main()
