"""How long the judge takes: one verdict from file to record with each stage's share, one that is lost early, configurations a second while
tuning, and the command's start.

    python experiments/judge_speed.py [--target cuda] [--write]

The task is small on purpose on the CPU (about 1 ms on two cores) and of a usual size on a GPU. Its baselines are measured first, so that they
are cached as in any second run. Every kernel is new to the build cache.
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
from evokernel.records import Kernel, Status, Verdict

TASK = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)

def get_inputs():
    return [torch.randn({rows}, {cols})]
"""
SHAPES = {"cpp": (512, 1024), "cuda": (4096, 4096)}
CPP = """// Row softmax, three passes. Variant {variant}.
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
CUDA = """// Row softmax, one block a row, the row in registers. Variant {variant}.
// @tune BLOCK = 256 in 128 256 512 1024
// @tune UNROLL = 1 in 1 2 4
// @tune LAZY = 0 in 0 1
// @const VECTORS = x.shape[1] // 4
// @const EACH = cdiv(VECTORS, BLOCK)
// @launch softmax<<<x.shape[0], BLOCK>>>(x, out)
__device__ float reduced(float v, bool top)
{{
    __shared__ float part[32];
    for (int o = 16; o; o /= 2) {{ float w = __shfl_xor_sync(~0u, v, o); v = top ? fmaxf(v, w) : v + w; }}
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = part[0];
    for (int w = 1; w < BLOCK / 32; ++w) v = top ? fmaxf(v, part[w]) : v + part[w];
    __syncthreads();
    return v;
}}
__global__ void softmax(const float4* x, float4* out)
{{
    constexpr int variant = {variant};
    float4 v[EACH];
    float top = -INFINITY, sum = 0;
#pragma unroll UNROLL
    for (int k = 0; k < EACH; ++k) {{
        int i = threadIdx.x + k * BLOCK;
        v[k] = i < VECTORS ? x[(long long)blockIdx.x * VECTORS + i] : make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
        top = fmaxf(fmaxf(fmaxf(top, v[k].x), fmaxf(v[k].y, v[k].z)), v[k].w);
    }}
    top = reduced(top, true) + 0 * variant;
    for (int k = 0; k < EACH; ++k) {{
        v[k] = make_float4(expf(v[k].x - top), expf(v[k].y - top), expf(v[k].z - top), expf(v[k].w - top));
        sum += v[k].x + v[k].y + v[k].z + v[k].w;
    }}
    const float scale = 1 / reduced(sum, false);
    for (int k = 0; k < EACH; ++k) {{
        int i = threadIdx.x + k * BLOCK;
        float4 w = make_float4(v[k].x * scale, v[k].y * scale, v[k].z * scale, v[k].w * scale);
        if (i < VECTORS) out[(long long)blockIdx.x * VECTORS + i] = w;
    }}
}}
"""
CONFIGS = {
    "cpp": [{"CHUNK": c, "LANES": n} for c in (1, 2, 4, 8, 16, 32, 64, 128) for n in (4, 8, 16)],
    "cuda": [{"BLOCK": b, "UNROLL": u, "LAZY": z} for b in (128, 256, 512, 1024) for u in (1, 2, 4) for z in (0, 1)],
}
VERDICTS = 8


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def command(*arguments: str) -> float:
    return statistics.median(seconds(lambda: subprocess.run(arguments, check=True, capture_output=True)) for _ in range(7))


def shares(verdicts: list[Verdict]) -> dict[str, float]:
    """Each stage's share of the time that verdicts took."""
    total = sum(v.seconds for v in verdicts)
    return {stage: sum(v.stages_s[stage] for v in verdicts) / total for stage in verdicts[0].stages_s}


def judged(lane: Lane, kernels: list[Kernel], **rules: float) -> tuple[list[float], list[Verdict]]:
    """Seconds from file to record, and the verdicts, which must all be good."""
    took, found = [], []
    for kernel in kernels:
        start = time.perf_counter()
        found.append(lane.judge(kernel, **rules))
        took.append(time.perf_counter() - start)
        assert found[-1].status is Status.VERIFIED, found[-1].message
    return took, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=("cpp", "cuda"), default="cpp")
    parser.add_argument("--write", action="store_true", help="write experiments/results/judge_speed.json (or judge_speed_cuda.json)")
    arguments = parser.parse_args()
    target, source = arguments.target, CUDA if arguments.target == "cuda" else CPP
    nonce = time.time_ns() % 10**6 * 100  # so that nothing is found in the build cache
    kernels = [make_kernel(source.format(variant=nonce + i), target) for i in range(2 * VERDICTS + 1)]
    with tempfile.TemporaryDirectory() as folder:
        task = Path(folder) / "softmax_small.py"
        task.write_text(TASK.format(rows=SHAPES[target][0], cols=SHAPES[target][1]))
        lane = Lane(LaneSettings(str(task), target, cache_folder(), dict(os.environ)))
        first_start = seconds(lane.admit)
        lane.restart()
        second_start = seconds(lane.admit)
        took, verdicts = judged(lane, kernels[:VERDICTS])
        fastest_us = min(v.time_us or 0.0 for v in verdicts)
        lost, lost_verdicts = judged(lane, kernels[VERDICTS:-1], incumbent_us=fastest_us / 2)
        screening = seconds(lambda: lane.screen(kernels[-1], CONFIGS[target]))
        lane.close()
    result = {
        "lane_first_start_s": first_start,
        "lane_start_with_cached_baselines_s": second_start,
        "verdict_s": sorted(took),
        "verdict_median_s": statistics.median(took),
        "verdict_shares": shares(verdicts),
        "lost_early_s": sorted(lost),
        "lost_early_median_s": statistics.median(lost),
        "lost_early_shares": shares(lost_verdicts),
        "configurations_per_second": len(CONFIGS[target]) / screening,
        "help_s": command(sys.executable, "-c", "import sys; sys.argv = ['evokernel', '--help']; from evokernel.cli import main; main()"),
        "import_s": command(sys.executable, "-c", "import evokernel"),
    }
    for name, value in result.items():
        print(f"{name}: {value}")
    if arguments.write:
        print(report.write("judge_speed" if target == "cpp" else f"judge_speed_{target}", result, target))


if __name__ == "__main__":
    main()
