"""How long the judge takes: one verdict from file to record, configurations a second while tuning, and the command's start.

    python experiments/judge_speed.py [--write]

The task is small on purpose (about 1 ms on two cores), its baselines are measured first, so that they are cached as in any second run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import report

from evokernel.api import cache_folder
from evokernel.judge.lane import Lane, LaneSettings
from evokernel.kernelfile import make_kernel

TASK = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)

def get_inputs():
    return [torch.randn(512, 1024)]
"""
KERNEL = """// Row softmax, three passes. Variant {variant}.
// @tune CHUNK = 8 in 1 2 4 8 16 32 64 128
// @tune LANES = 8 in 4 8 16
// @launch softmax(x, out, x.shape[0], x.shape[1])
void softmax(const float* x, float* out, int64_t rows, int64_t cols)
{{
    constexpr int variant = {variant};
#pragma omp parallel for schedule(dynamic, CHUNK)
    for (int64_t r = 0; r < rows; ++r) {{
        const float* a = x + r * cols;
        float* b = out + r * cols;
        float m[LANES], s[LANES] = {{}};
        for (int k = 0; k < LANES; ++k) m[k] = a[k] + 0 * variant;
        for (int64_t i = 0; i < cols; ++i) m[i % LANES] = a[i] > m[i % LANES] ? a[i] : m[i % LANES];
        float top = m[0], sum = 0;
        for (int k = 1; k < LANES; ++k) top = m[k] > top ? m[k] : top;
        for (int64_t i = 0; i < cols; ++i) s[i % LANES] += b[i] = expf(a[i] - top);
        for (int k = 0; k < LANES; ++k) sum += s[k];
        const float scale = 1 / sum;
        for (int64_t i = 0; i < cols; ++i) b[i] *= scale;
    }}
}}
"""


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def command(*arguments: str) -> float:
    return statistics.median(seconds(lambda: subprocess.run(arguments, check=True, capture_output=True)) for _ in range(7))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write experiments/results/judge_speed.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        task = Path(folder) / "softmax_small.py"
        task.write_text(TASK)
        lane = Lane(LaneSettings(str(task), "cpp", cache_folder(), dict(os.environ)))
        first_start = seconds(lane.admit)
        lane.restart()
        second_start = seconds(lane.admit)
        nonce = time.time_ns()  # so that nothing is found in the build cache
        kernels = [make_kernel(KERNEL.format(variant=nonce % 10**6 + i), "cpp") for i in range(6)]
        verdicts = [seconds(lambda k=k: lane.judge(k)) for k in kernels]  # type: ignore[misc]
        tuned = make_kernel(KERNEL.format(variant=nonce % 10**6 + 99), "cpp")
        configs = [{"CHUNK": c, "LANES": n} for c in (1, 2, 4, 8, 16, 32, 64, 128) for n in (4, 8, 16)]
        screening = seconds(lambda: lane.screen(tuned, configs))
        lane.close()
    result = {
        "lane_first_start_s": first_start,
        "lane_start_with_cached_baselines_s": second_start,
        "verdict_s": sorted(verdicts),
        "verdict_median_s": statistics.median(verdicts),
        "configurations_per_second": len(configs) / screening,
        "help_s": command(sys.executable, "-c", "import sys; sys.argv = ['evokernel', '--help']; from evokernel.cli import main; main()"),
        "import_s": command(sys.executable, "-c", "import evokernel"),
    }
    for name, value in result.items():
        print(f"{name}: {value}")
    if arguments.write:
        print(report.write("judge_speed", result))


if __name__ == "__main__":
    main()
