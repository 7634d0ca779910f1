"""How many candidates a search needs on a task that is new to the archive, with the shipped stepping stones and without any.

    python experiments/seeding.py [--only NAME] [--candidates 10] [--repeats 1] [--write]

Each task is searched from the same plain kernel, with the same budget and seed, by the archive's own operators on the CPU (no model), three times:
with an empty archive, with the shipped seeds in the order of retrieval, and with the same stones in random order. Two kinds of tasks: a known module
at sizes that no seed was made for, and a module whose own seeds are left out, so that only those of other modules are there.

Counted are candidates until the best so far reaches 90 % of the best that any of the three runs found (a run that never does counts one more than
the budget), and the final best against the empty archive's. Means over tasks with 95 % bootstrap intervals (10,000 draws of tasks). The judge
compares with eager code only, which is all that a comparison between searches needs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import report

from evokernel.api import cache_folder
from evokernel.archive.runs import Judged, Logged, RunSettings
from evokernel.archive.shipped import import_shipped, shipped_root
from evokernel.archive.stones import Stone
from evokernel.archive.store import Archive
from evokernel.judge.lane import Lane, LaneSettings
from evokernel.records import Task
from evokernel.search.run import run_search
from evokernel.search.state import State

TASKS = Path(__file__).parent / "tasks"
REACHED = 0.9
DRAWS = 10_000
ARMS = ("empty", "seeds", "shuffled")

# What somebody writes first: the loops as they are, rows over the threads.
_ROWS = "#pragma omp parallel for schedule(static, CHUNK)\n  for (int64_t r = 0; r < rows; ++r) {\n"
_ROW = "    const float* a = x + r * COLUMNS;\n    float* to = out + r * COLUMNS;\n"
_TUNE = "// @tune CHUNK = 1 in 1 4 16\n// @const COLUMNS = x.shape[-1]\n// @require x.contiguous\n"
PLAIN = {
    "softmax": f"""// Softmax as it is written.
{_TUNE}// @launch f(x, out, x.numel // COLUMNS)
void f(const float* x, float* out, int64_t rows) {{
{_ROWS}{_ROW}    float m = a[0];
    double s = 0;
    for (int j = 1; j < COLUMNS; ++j) m = a[j] > m ? a[j] : m;
    for (int j = 0; j < COLUMNS; ++j) s += (to[j] = expf(a[j] - m));
    for (int j = 0; j < COLUMNS; ++j) to[j] /= (float)s;
  }}
}}
""",
    "rmsnorm": f"""// Root-mean-square normalisation as it is written.
{_TUNE}// @launch f(x, weight, out, x.numel // COLUMNS)
void f(const float* x, const float* weight, float* out, int64_t rows) {{
{_ROWS}{_ROW}    double s = 0;
    for (int j = 0; j < COLUMNS; ++j) s += a[j] * a[j];
    const float scale = 1.0 / sqrt(s / COLUMNS + 1e-6);
    for (int j = 0; j < COLUMNS; ++j) to[j] = a[j] * scale * weight[j];
  }}
}}
""",
    "layernorm_gelu": f"""// Layer normalisation and GELU as they are written.
{_TUNE}// @launch f(x, norm_weight, norm_bias, out, x.numel // COLUMNS)
void f(const float* x, const float* weight, const float* bias, float* out, int64_t rows) {{
{_ROWS}{_ROW}    double s = 0, q = 0;
    for (int j = 0; j < COLUMNS; ++j) s += a[j];
    const double mean = s / COLUMNS;
    for (int j = 0; j < COLUMNS; ++j) q += (a[j] - mean) * (a[j] - mean);
    const double scale = 1.0 / sqrt(q / COLUMNS + 1e-5);
    for (int j = 0; j < COLUMNS; ++j) {{
      const float y = (float)((a[j] - mean) * scale) * weight[j] + bias[j];
      to[j] = 0.5f * y * (1.0f + erff(y * 0.70710678f));
    }}
  }}
}}
""",
    "mean_square": """// The mean square of every channel as it is written.
// @tune CHUNK = 1 in 1 4 16
// @require x.contiguous
// @launch f(x, out, x.shape[0], x.shape[1], x.shape[2])
void f(const float* x, float* out, int64_t outer, int64_t reduced, int64_t inner) {
#pragma omp parallel for schedule(static, CHUNK)
  for (int64_t i = 0; i < outer; ++i)
    for (int64_t j = 0; j < inner; ++j) {
      double s = 0;
      for (int64_t r = 0; r < reduced; ++r) s += (double)x[(i * reduced + r) * inner + j] * x[(i * reduced + r) * inner + j];
      out[i * inner + j] = s / reduced;
    }
}
""",
    "swiglu_residual": """// The chain as it is written.
// @tune CHUNK = 1024 in 256 1024 4096
// @require gate.contiguous and up.contiguous and residual.contiguous
// @launch f(gate, up, residual, out, out.numel)
void f(const float* gate, const float* up, const float* residual, float* out, int64_t n) {
#pragma omp parallel for schedule(static, CHUNK)
  for (int64_t i = 0; i < n; ++i) {
    const float v = gate[i] / (1.0f + expf(-gate[i])) * up[i] * 0.5f + residual[i];
    out[i] = v < -8.0f ? -8.0f : v > 8.0f ? 8.0f : v;
  }
}
""",
}
# Task, what to replace in its file, and whether the seeds of the module itself are left out.
NewTask = tuple[str, dict[str, str], bool]
NEW: dict[str, NewTask] = {
    "softmax of long rows": ("softmax", {"2048, 4096": "512, 16384"}, False),
    "rmsnorm of wide rows": ("rmsnorm", {"2048, 4096": "1024, 8192", "[4096, 1e-6]": "[8192, 1e-6]"}, False),
    "layernorm_gelu of wide rows": ("layernorm_gelu", {"2048, 2048": "1024, 4096", "[2048]": "[4096]"}, False),
    "mean_square of many channels": ("mean_square", {"32, 256, 1024": "64, 128, 2048"}, False),
    "swiglu_residual of narrow rows": ("swiglu_residual", {"1024, 4096": "4096, 1024"}, False),
    "softmax without its seeds": ("softmax", {}, True),
    "rmsnorm without its seeds": ("rmsnorm", {}, True),
    "swiglu_residual without its seeds": ("swiglu_residual", {}, True),
}


class Shuffled(Archive):
    """The same stepping stones in random order."""

    order = random.Random(0)

    def stones(self, task: Task, target: str, limit: int = 16, device: str | None = None) -> tuple[Stone, ...]:
        found = list(super().stones(task, target, limit, device))
        self.order.shuffle(found)
        return tuple(found)


def prepared(archive: Archive, new: NewTask) -> None:
    """Give an archive the shipped seeds, without those of the task's own module where they are left out."""
    module, _, left_out = new
    root = shipped_root()
    assert root, "the shipped archive is not installed"
    import_shipped(archive, root)
    for row in archive.database.rows("SELECT k.id FROM kernels k WHERE k.provenance LIKE ?", f"{module}/%") if left_out else ():
        archive.quarantine(row["id"], "left out by the experiment")


def task_file(new: NewTask, folder: Path) -> Path:
    """The file of a task that is new to the archive."""
    module, changes, _ = new
    source = (TASKS / f"{module}.py").read_text()
    for old, wanted in changes.items():
        assert old in source, f"{module}.py no longer holds {old!r}"
        source = source.replace(old, wanted)
    file = folder / f"{module}.py"
    file.write_text(source)
    return file


def searched(arm: str, name: str, lane: Lane, settings: RunSettings, folder: Path) -> list[float]:
    """The speedup (median, against eager; 0 for none) of the best kernel after each candidate."""
    best: list[float] = []

    def watch(logged: Logged, state: State) -> None:
        if isinstance(logged.event, Judged) and state.candidates > len(best):
            speedup = state.best.verdict.speedup if state.best else None
            best.append(speedup.mid if speedup else 0.0)

    with (Shuffled if arm == "shuffled" else Archive)(folder / f"{arm}-{settings.seed}.db") as archive:
        if arm != "empty":
            prepared(archive, NEW[name])
        run_search(archive, lane, settings, watch)
    return best


def needed(curve: Sequence[float], level: float, budget: int) -> int:
    """Candidates until the curve reaches the level; one more than the budget where it never does."""
    return next((n for n, value in enumerate(curve, 1) if value >= level), budget + 1)


def interval(values: Sequence[float], mean: Callable[[Sequence[float]], float] = statistics.fmean) -> list[float]:
    """The mean with its 95 % bootstrap interval: low, mid, high."""
    rng = random.Random(0)
    draws = sorted(mean(rng.choices(values, k=len(values))) for _ in range(DRAWS))
    return [draws[int(0.025 * DRAWS)], mean(values), draws[int(0.975 * DRAWS)]]


def compared(rows: Sequence[dict[str, Any]], budget: int, arms: Sequence[str] = ARMS) -> dict[str, Any]:
    """Candidates saved and speedup gained by each arm over the empty archive, over all rows and by kind of task."""
    result: dict[str, Any] = {}
    for kind in ("all", "other sizes", "own seeds left out"):
        chosen = [r for r in rows if kind in ("all", r["kind"])]
        if not chosen:
            continue
        result[kind] = {"runs": len(chosen)}
        for arm in arms:
            counts = [r["needed"][arm] for r in chosen]
            result[kind][arm] = {"candidates_needed": interval(counts), "never_reached": sum(c > budget for c in counts)}
        for arm in arms[1:]:
            result[kind][arm]["candidates_saved"] = interval([r["needed"]["empty"] - r["needed"][arm] for r in chosen])
            ratios = [r["best"][arm] / r["best"]["empty"] for r in chosen if r["best"][arm] and r["best"]["empty"]]
            result[kind][arm]["best_over_empty"] = interval(ratios, statistics.geometric_mean) if ratios else None
    return result


def measured(name: str, candidates: int, repeats: int) -> list[dict[str, Any]]:
    """All arms on one task, one row a repeat."""
    module, _, left_out = NEW[name]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        file = task_file(NEW[name], Path(folder))
        lane = Lane(LaneSettings(str(file), "cpp", cache_folder(), dict(os.environ), baselines=("eager",)))
        try:
            for seed in range(repeats):
                settings = RunSettings("cpp", candidates=candidates, seed=seed, start=PLAIN[module])
                order = random.Random(f"{name}{seed}").sample(ARMS, len(ARMS))  # so that none has the machine's warmest or quietest minutes
                curves = {arm: searched(arm, name, lane, replace(settings), Path(folder)) for arm in order}
                level = REACHED * max(max(c, default=0.0) for c in curves.values())
                row = {
                    "task": name, "kind": "own seeds left out" if left_out else "other sizes", "seed": seed, "curves": {a: curves[a] for a in ARMS},
                    "needed": {a: needed(curves[a], level, candidates) for a in ARMS}, "best": {a: max(curves[a], default=0.0) for a in ARMS},
                }  # fmt: skip
                print(f"{name}, seed {seed}: needed {row['needed']}, best {({a: round(b, 2) for a, b in row['best'].items()})}", flush=True)
                rows.append(row)
        finally:
            lane.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="NAME", help="tasks whose name holds this; the stored rows of the others are kept")
    parser.add_argument("--candidates", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="write experiments/results/seeding.json")
    arguments = parser.parse_args()
    names = [n for n in NEW if not arguments.only or arguments.only in n]
    file = report.RESULTS / "seeding.json"
    stored = json.loads(file.read_text()) if arguments.only and file.exists() else {}
    rows: list[dict[str, Any]] = [r for r in stored.get("rows", []) if r["task"] not in names and stored["candidates"] == arguments.candidates]
    summary: dict[str, Any] = {}
    for name in names:
        rows += measured(name, arguments.candidates, arguments.repeats)
        summary = compared(rows, arguments.candidates)
        if arguments.write:
            report.write("seeding", {"candidates": arguments.candidates, "summary": summary, "rows": rows})
    for kind, arms in summary.items():
        print(kind, arms)


if __name__ == "__main__":
    main()
