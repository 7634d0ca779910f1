"""Errors inside CUDA, one after another in one judge, with an honest kernel after each: does every honest verdict stand?

    python experiments/gpu_faults.py [--faults 50] [--write]

The kernels are those of tests/gpu/kernels. Beside statuses it looks for what a fault could leave behind: memory of the GPU, processes, and
a drift of the honest kernel's time.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import statistics
import time
from collections import Counter
from pathlib import Path

import report

from evokernel.api import cache_folder
from evokernel.judge.lane import Lane, LaneSettings
from evokernel.kernelfile import make_kernel
from evokernel.records import Kernel, Status, Verdict
from evokernel.runner.processes import become_subreaper, children

TESTS = Path(__file__).parent.parent / "tests"
FAULTS = (
    "illegal", "misaligned", "endless", "endless_grid", "too_much_scratch", "too_much_stack", "cooperative_too_large", "out_of_bounds",
)  # fmt: skip


def kernel(name: str) -> Kernel:
    return make_kernel((TESTS / "gpu" / "kernels" / f"{name}.cu").read_text(), "cuda")


def processes() -> int:
    """Of the judge, its zygote, runners and baselines, in any state: all that this process has below itself."""
    below = [os.getpid()]
    for pid in below:
        below += children(pid)
    return len(below) - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--write", action="store_true", help="write experiments/results/gpu_faults.json")
    arguments = parser.parse_args()
    become_subreaper()
    honest = kernel("softmax")
    lane = Lane(LaneSettings(str(TESTS / "cheats" / "tasks" / "softmax.py"), "cuda", cache_folder(), dict(os.environ), baselines=("eager", "graph")))
    first = lane.judge(honest)
    before = (report.gpu_memory_mib(), processes())
    seen: Counter[str] = Counter()
    wrong: list[str] = []
    kept: list[Verdict] = []
    start = time.monotonic()
    for name in itertools.islice(itertools.cycle(FAULTS), arguments.faults):
        expected = re.search(r"^// EXPECT ([\w|]+)", kernel(name).text, re.MULTILINE)
        verdict = lane.judge(kernel(name))
        seen[f"{name}: {verdict.status.value}"] += 1
        if not expected or verdict.status.value not in expected[1].split("|"):
            wrong.append(f"{name}: {verdict.message}")
        kept.append(lane.judge(honest))
        print(name, verdict.status.value, "| then", kept[-1].status.value, kept[-1].time_us, flush=True)
    after = (report.gpu_memory_mib(), processes())
    lane.close()
    times = [v.time_us for v in kept if v.time_us]
    result = {
        "faults": dict(seen),
        "unexpected": wrong,
        "honest_verdicts": len(kept),
        "honest_verified": sum(v.status is Status.VERIFIED for v in kept),
        "honest_us": {"before": first.time_us, "median": statistics.median(times), "least": min(times), "most": max(times)},
        "gpu_memory_mib": {"before": before[0], "after": after[0]},
        "processes": {"before": before[1], "after": after[1]},
        "seconds": time.monotonic() - start,
    }
    for key, value in result.items():
        print(f"{key}: {value}")
    if arguments.write:
        print(report.write("gpu_faults", result, "cuda"))


if __name__ == "__main__":
    main()
