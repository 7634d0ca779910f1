"""Does the judge's race call a kernel faster than itself, and does it find a small planted difference?

    python experiments/timing_quality.py [--target cpp|cuda] [--trials 300] [--seconds 0.3 ...] [--plant 2] [--budget-s 540] [--write]

Three contests, each a race as the judge runs it for a number to be announced (`judge/timing`: on a GPU `race`, on a CPU `race_anew`; both sides in
processes and on buffers of their own, timed calls verified):

    itself    a kernel against the same kernel; the share of races whose interval lies above (or below) 1 is the false positives
    planted   the kernel against itself with more rows, as many as make it slower by --plant per cent (found by long races beforehand)
    library   a matrix product as `@call` against the baseline that runs the same product: the two sides as a verdict has them

On a GPU both sides start anew after every --fresh races, so that where processes and buffers come to lie is part of the noise. The contests
take turns, so that a run that ends early has all of them. With several --seconds each contest is run with each.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import report

from evokernel import targets
from evokernel.api import cache_folder
from evokernel.judge import tenant
from evokernel.judge.baselines import Baseline
from evokernel.judge.candidate import Candidate
from evokernel.judge.contestant import Failure
from evokernel.judge.lane import _JUDGE_ENVIRONMENT
from evokernel.judge.memory import SLOTS, TaskMemory
from evokernel.judge.timed import TimedCandidate
from evokernel.judge.timing import START_S, Entrant, Race, race, race_anew
from evokernel.judge.workshop import Workshop
from evokernel.judge.zygotes import Zygote, preload, zygote_environment
from evokernel.kernelfile import make_kernel
from evokernel.records import Interval, Kernel
from evokernel.targets.driver import gpu_uuid
from evokernel.task import load_task

SOFTMAX_TASK = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)

def get_inputs():
    return [torch.randn({rows}, {columns})]
"""
PRODUCT_TASK = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, a, b):
        return a @ b

def get_inputs():
    return [torch.randn({size}, {size}), torch.randn({size}, {size})]
"""
PRODUCT = "// The library's product.\n// @call out = mm(a, b)\n"
CPP = """// Row softmax, then {extra} rows once more, into scratch.
// @flags fast_math
// @scratch spill float32 [{spill}, x.shape[1]]
// @launch softmax(x, out, spill, x.shape[0], x.shape[1])
void softmax(const float* x, float* out, float* spill, int64_t rows, int64_t columns)
{{
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows + {extra}; ++r) {{
        const float* a = x + r % rows * columns;
        float* b = r < rows ? out + r * columns : spill + (r - rows) * columns;
        float top = a[0], sum = 0;
        for (int64_t i = 1; i < columns; ++i) top = a[i] > top ? a[i] : top;
        for (int64_t i = 0; i < columns; ++i) sum += b[i] = expf(a[i] - top);
        const float scale = 1 / sum;
        for (int64_t i = 0; i < columns; ++i) b[i] *= scale;
    }}
}}
"""
CUDA = """// Row softmax, one block a row, the row in registers; then {extra} rows once more, into scratch.
// @tune BLOCK = 256 in 256
// @const EACH = x.shape[1] // (4 * BLOCK)
// @require x.shape[1] % (4 * BLOCK) == 0
// @scratch spill float32 [{spill}, x.shape[1]]
// @launch softmax<<<x.shape[0] + {extra}, BLOCK>>>(x, out, spill, x.shape[0])
__device__ float reduced(float v, bool top)
{{
    __shared__ float part[BLOCK / 32];
    for (int o = 16; o; o /= 2) {{ float w = __shfl_xor_sync(~0u, v, o); v = top ? fmaxf(v, w) : v + w; }}
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = part[0];
    for (int w = 1; w < BLOCK / 32; ++w) v = top ? fmaxf(v, part[w]) : v + part[w];
    __syncthreads();
    return v;
}}
__global__ void softmax(const float4* x, float4* out, float4* spill, int rows)
{{
    const int row = blockIdx.x;
    const float4* from = x + (long long)(row % rows) * EACH * BLOCK + threadIdx.x;
    float4* to = (row < rows ? out + (long long)row * EACH * BLOCK : spill + (long long)(row - rows) * EACH * BLOCK) + threadIdx.x;
    float4 v[EACH];
    float top = -INFINITY, sum = 0;
    for (int k = 0; k < EACH; ++k) {{
        v[k] = from[k * BLOCK];
        top = fmaxf(fmaxf(fmaxf(top, v[k].x), fmaxf(v[k].y, v[k].z)), v[k].w);
    }}
    top = reduced(top, true);
    for (int k = 0; k < EACH; ++k) {{
        v[k] = make_float4(expf(v[k].x - top), expf(v[k].y - top), expf(v[k].z - top), expf(v[k].w - top));
        sum += (v[k].x + v[k].y) + (v[k].z + v[k].w);
    }}
    const float scale = 1 / reduced(sum, false);
    for (int k = 0; k < EACH; ++k) to[k * BLOCK] = make_float4(v[k].x * scale, v[k].y * scale, v[k].z * scale, v[k].w * scale);
}}
"""
ROWS, COLUMNS = {"cpp": 1024, "cuda": 4096}, {"cpp": 1024, "cuda": 4096}
PRODUCT_SIZE = {"cpp": 384, "cuda": 1024}
PLANTED_PERCENT, SECONDS = {"cpp": 5.0, "cuda": 2.0}, {"cpp": 3.0, "cuda": 0.6}  # for so long a number to be announced is measured
CALL_LIMIT_S = 20.0
CALIBRATION_STEPS, CALIBRATION_PAIRS = 5, 4
CLOSE = 0.15  # of the planted difference: near enough to the one that was asked for


def clopper_pearson(hits: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact interval of a share (Clopper and Pearson 1934, Biometrika 26, 404), by bisection on binomial tails."""

    def tail(share: float, first: int) -> float:
        """The probability of `first` hits or more."""
        return math.fsum(math.comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(first, trials + 1))

    def solved(first: int, wanted: float) -> float:
        low, high = 0.0, 1.0
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if tail(middle, first) < wanted else (low, middle)
        return (low + high) / 2

    rest = (1 - confidence) / 2
    return (solved(hits, rest) if hits else 0.0), (solved(hits + 1, 1 - rest) if hits < trials else 1.0)


@dataclass(frozen=True)
class Trial:
    """One race. `pair`: which start of the two processes; `seconds`: wall time; `calls_s`: what the timed calls took in all."""

    pair: int
    speedup: Interval
    blocks: int
    void_blocks: int
    starts: int
    seconds: float
    calls_s: float


@dataclass
class Contest:
    """Two sides and what their races have said so far. `first` against itself, `second`, or (None) the baseline."""

    name: str
    bench: Bench
    first: Kernel
    second: Kernel | None
    seconds: float
    trials: list[Trial] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


class Bench:
    """A judge's parts around one task, and two places to run its kernels in."""

    def __init__(self, task: Path, target: str, zygote: Zygote) -> None:
        loaded = load_task(task)
        self._zygote, self._task = zygote, task
        self._shop = Workshop(loaded, targets.get(target), zygote, cache_folder(), dict(os.environ))
        self._cases = self._shop.cases.timed()
        self._order = -1
        self.machine = self._shop.machine
        for case in self._cases:
            self._shop.cases.budgets(case)

    @contextlib.contextmanager
    def pair(self, first: Kernel, second: Kernel | None) -> Iterator[tuple[Entrant, Entrant]]:
        """Both sides in fresh processes on fresh buffers, checked once, ready to race; ended at the end.

        Raises:
            Failure: one of them does not run, or is wrong.
        """
        with contextlib.ExitStack() as stack:
            opens = [partial(self._candidate, stack, first), partial(self._candidate, stack, second) if second else partial(self._baseline, stack)]
            self._order = -self._order  # who gets the first places in memory, by turns as in the judge
            sides = [opened() for opened in opens[:: self._order]][:: self._order]
            yield sides[0], sides[1]

    def _candidate(self, stack: contextlib.ExitStack, kernel: Kernel) -> TimedCandidate:
        shop = stack.enter_context(contextlib.closing(self._shop.elsewhere()))
        candidate = stack.enter_context(contextlib.closing(Candidate(shop, kernel, CALL_LIMIT_S)))
        loaded = candidate.load(candidate.build(0, None))
        candidate.check(loaded, 0, self._cases[0])
        shop.settle_runner()
        return TimedCandidate(candidate, loaded, self._cases)

    def _baseline(self, stack: contextlib.ExitStack) -> Baseline:
        name = "eager" if self.machine.seals else "graph"
        memory = TaskMemory(self.machine, self._shop.loaded.task.signature, sealed=False, slots=SLOTS)
        baseline = Baseline(name, self._zygote, str(self._task), memory, self._cases, self._shop.environ)
        stack.callback(baseline.close)
        baseline.wait()
        return baseline

    def races(self, first: Kernel, second: Kernel | None, seconds: float, count: int) -> Iterator[Race]:
        """Races for the cold score: in one pair of processes, or each in many."""
        run = partial(race, mode="cold", steady=self.machine.steady, placement=self.machine.placement or 0.0)

        def once() -> Race:
            with self.pair(first, second) as sides:
                return run(*sides, seconds=START_S)

        if self.machine.placement is None:
            yield from (race_anew(once, seconds=seconds) for _ in range(count))
            return
        with self.pair(first, second) as sides:
            yield from (run(*sides, seconds=seconds) for _ in range(count))


def softmax(target: str, extra: int) -> Kernel:
    """The kernel that is raced, with `extra` rows of work beyond what the task asks for."""
    return make_kernel((CUDA if target == "cuda" else CPP).format(extra=extra, spill=max(extra, 1)), target)


def ratios(bench: Bench, target: str, extra: int, seconds: float, pairs: int) -> list[float]:
    """How many times longer the kernel with `extra` rows takes, by one long race in each of several pairs of processes."""
    contest = Contest("calibration", bench, softmax(target, 0), softmax(target, extra), seconds / 2)
    for number in range(pairs):
        round_of(contest, number, 2)  # a race ends at 1 % width: two say more than one
    if len(contest.trials) < 2:
        raise SystemExit(f"the kernel with {extra} more rows does not run: {contest.failures}")
    return [trial.speedup.mid for trial in contest.trials]


def calibrated(bench: Bench, target: str, percent: float, until: float) -> tuple[int, dict[str, Any]]:
    """Rows to add so that the kernel takes `percent` longer, and what they really cost. Where races differ too much to say, the share of the rows."""
    wanted, extra = percent / 100, max(1, round(percent / 100 * ROWS[target]))
    steps: list[tuple[int, float, float]] = []
    while len(steps) < CALIBRATION_STEPS and time.monotonic() < until:
        found = ratios(bench, target, extra, 1.0, CALIBRATION_PAIRS)
        cost, doubt = statistics.median(found) - 1, statistics.stdev(found) / math.sqrt(len(found))
        steps.append((extra, cost, doubt))
        print(f"calibration: {extra} more rows take {100 * cost:+.2f} % (+- {100 * doubt:.2f})", flush=True)
        if abs(cost - wanted) <= max(CLOSE * wanted, doubt):
            break
        grown = extra * (wanted / cost if cost > 0 else 2.0)
        extra = max(1, round(min(max(grown, extra / 2), extra * 2)))
    if steps:
        extra = min(steps, key=lambda step: max(abs(step[1] - wanted), step[2]))[0]
    long = sorted(ratios(bench, target, extra, 3.0, 2 * CALIBRATION_PAIRS))
    ratio = statistics.median(long)
    print(f"planted: {extra} more rows of {ROWS[target]} take {100 * ratio - 100:+.2f} % ({long[0]:.4f} to {long[-1]:.4f})", flush=True)
    return extra, {"rows": ROWS[target], "more_rows": extra, "ratio": ratio, "ratio_by_race": long, "steps": steps}


def summary(contest: Contest) -> dict[str, Any]:
    """Counts with exact 95 % intervals, what a race costs, and how much of the spread comes from starting anew."""
    trials = contest.trials
    if not trials:
        return {"contest": contest.name, "seconds": contest.seconds, "trials": 0, "failures": contest.failures}
    n = len(trials)
    faster, slower = sum(t.speedup.low > 1 for t in trials), sum(t.speedup.high < 1 for t in trials)
    widths = sorted((t.speedup.high - t.speedup.low) / t.speedup.mid for t in trials)
    logs = {pair: [math.log(t.speedup.mid) for t in trials if t.pair == pair] for pair in {t.pair for t in trials}}
    several = [v for v in logs.values() if len(v) > 1]
    within = math.sqrt(statistics.fmean(statistics.variance(v) for v in several)) if several else 0.0
    means = [statistics.fmean(v) for v in logs.values()]
    each = n / len(means)
    between = math.sqrt(max(0.0, statistics.variance(means) - within**2 / each)) if len(means) > 1 else 0.0
    return {
        "contest": contest.name, "seconds": contest.seconds, "trials": n, "pairs_of_processes": len(means),
        "called_faster": faster, "called_faster_share": faster / n, "called_faster_95": clopper_pearson(faster, n),
        "called_slower": slower, "called_slower_share": slower / n, "called_slower_95": clopper_pearson(slower, n),
        "median_ratio": statistics.median(t.speedup.mid for t in trials),
        "spread_within_a_pair_percent": 100 * within, "spread_between_pairs_percent": 100 * between,
        "width_percent": {"median": 100 * statistics.median(widths), "p90": 100 * widths[int(0.9 * (n - 1))]},
        "took_s": {"median": statistics.median(t.seconds for t in trials), "most": max(t.seconds for t in trials)},
        "calls_s": statistics.median(t.calls_s for t in trials), "blocks": statistics.median(t.blocks for t in trials),
        "starts": statistics.median(t.starts for t in trials),        "void_blocks": sum(t.void_blocks for t in trials), "failures": contest.failures,
    }  # fmt: skip


def line(contest: Contest) -> str:
    s = summary(contest)
    if not s["trials"]:
        return f"{contest.name} {contest.seconds} s: no trial yet {s['failures']}"
    shares = (f"{what} {s[f'called_{what}']} = {100 * s[f'called_{what}_share']:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"
              for what in ("faster", "slower") for low, high in [s[f"called_{what}_95"]])  # fmt: skip
    return (
        f"{contest.name} {contest.seconds} s: {s['trials']} races, {', '.join(shares)}; ratio {s['median_ratio']:.4f}, "
        f"width {s['width_percent']['median']:.2f} %, spread {s['spread_within_a_pair_percent']:.2f} % in a pair, "
        f"{s['spread_between_pairs_percent']:.2f} % between; {s['took_s']['median']:.2f} s, {s['starts']:.0f} start(s), {s['blocks']:.0f} blocks"
    )


def round_of(contest: Contest, pair: int, races: int) -> None:
    """Race in one fresh pair of processes; a side that fails costs the rest of this round."""
    try:
        start = time.monotonic()
        for run in contest.bench.races(contest.first, contest.second, contest.seconds, races):
            calls_s = (sum(run.candidate_us) + sum(run.baseline_us)) / 1e6
            contest.trials.append(Trial(pair, run.speedup, run.blocks, run.void_blocks, run.starts, time.monotonic() - start, calls_s))
            start = time.monotonic()
    except Failure as failure:
        contest.failures.append(f"{failure.status.value}: {failure.message[:300]}")
        print(f"{contest.name}: {contest.failures[-1]}", flush=True)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=("cpp", "cuda"), default="cpp")
    parser.add_argument("--trials", type=int, default=300, help="races of each contest")
    parser.add_argument("--seconds", type=float, nargs="+", help="wall time of a race, or several to compare (default: 3 on cpp, 0.6 on cuda)")
    parser.add_argument("--plant", type=float, metavar="PERCENT", help="the planted difference (default: 5 on cpp, 2 on cuda)")
    parser.add_argument("--fresh", type=int, default=10, help="races between two starts of the processes")
    parser.add_argument("--contests", nargs="+", choices=("itself", "planted", "library"), default=("itself", "planted", "library"))
    parser.add_argument("--budget-s", type=float, default=math.inf, help="stop after so many seconds, with what there is")
    parser.add_argument("--write", action="store_true", help="write experiments/results/timing_quality_TARGET.json")
    return parser.parse_args()


def main() -> None:
    arguments = options()
    if any(os.environ.get(name) != value for name, value in _JUDGE_ENVIRONMENT.items()):  # as a lane starts its judge
        os.execve(sys.executable, sys.orig_argv, {**os.environ, **_JUDGE_ENVIRONMENT})
    start, target = time.monotonic(), arguments.target
    percent = arguments.plant or PLANTED_PERCENT[target]
    zygote = Zygote(zygote_environment(len(os.sched_getaffinity(0)), os.environ), preload(target))
    lock = tenant.hold(gpu_uuid(), f"process {os.getpid()}", lambda: print("waiting for the GPU", flush=True)) if target == "cuda" else None
    result: dict[str, Any] = {"planted_percent": percent, "fresh_after": arguments.fresh, "confidence_of_a_race": 0.99}
    with tempfile.TemporaryDirectory() as folder, lock or contextlib.nullcontext():
        softmax_task = SOFTMAX_TASK.format(rows=ROWS[target], columns=COLUMNS[target])
        product_task = PRODUCT_TASK.format(size=PRODUCT_SIZE[target])
        benches = {}
        for name, text in (("softmax", softmax_task), ("product", product_task)):
            file = Path(folder) / f"{name}.py"
            file.write_text(text)
            benches[name] = Bench(file, target, zygote)
        print(f"ready after {time.monotonic() - start:.0f} s", flush=True)
        same, slower = softmax(target, 0), None
        if "planted" in arguments.contests:
            extra, result["planted"] = calibrated(benches["softmax"], target, percent, start + arguments.budget_s / 4)
            slower = softmax(target, extra)
        sides = {"itself": (benches["softmax"], same, same), "planted": (benches["softmax"], same, slower),
                 "library": (benches["product"], make_kernel(PRODUCT, target), None)}  # fmt: skip
        contests = [Contest(name, *sides[name], seconds) for seconds in arguments.seconds or [SECONDS[target]] for name in arguments.contests]
        for pair in range(-(-arguments.trials // arguments.fresh)):
            for contest in contests:
                if time.monotonic() - start < arguments.budget_s:
                    round_of(contest, pair, min(arguments.fresh, arguments.trials - len(contest.trials)))
                    print(f"{time.monotonic() - start:5.0f} s  {line(contest)}", flush=True)
            result["contests"] = [summary(c) for c in contests]
            result["races"] = {f"{c.name} {c.seconds}": [compact(t) for t in c.trials] for c in contests}
            result["seconds"] = round(time.monotonic() - start)
            if arguments.write:
                report.write(f"timing_quality_{target}", result, target)
        for contest in contests:
            print(line(contest))
    zygote.close()


def compact(trial: Trial) -> str:
    """A race in the result file, one line: pair, low, mid, high, blocks, seconds."""
    s = trial.speedup
    return f"{trial.pair} {s.low:.4f} {s.mid:.4f} {s.high:.4f} {trial.blocks} {trial.seconds:.2f}"


if __name__ == "__main__":
    main()
