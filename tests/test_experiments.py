"""The logic of the measurement experiments that has a right answer: shares with exact intervals, what a re-measurement says, a translated plan."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "experiments"))

import extension  # noqa: E402
import remeasure  # noqa: E402
import throughput  # noqa: E402
from timing_quality import clopper_pearson  # noqa: E402

from evokernel.api import read_kernel  # noqa: E402
from evokernel.archive.shipped import read_entries, shipped_root  # noqa: E402
from evokernel.kernelfile import parse, resolve  # noqa: E402
from evokernel.kernelfile.gpus import shipped_gpu  # noqa: E402
from evokernel.records import BaselineTime, Environment, Interval, ModeTiming, Status, Timing, Verdict  # noqa: E402
from evokernel.task import load_task  # noqa: E402


def verdict(candidate_us: float, baselines: dict[str, tuple[float, Interval]], torch: str = "2.11") -> Verdict:
    rows = tuple(BaselineTime(name, us, speedup, live=True) for name, (us, speedup) in baselines.items())
    mode = ModeTiming("cold", candidate_us, candidate_us, candidate_us, 100, rows)
    where = Environment("GPU", "sm_90a", "compiler", "sandbox", {"torch": torch})
    return Verdict(Status.VERIFIED, "done", "", "id", {}, where, timing=Timing("cold", (mode,)), milestone=1)


@pytest.mark.parametrize(("hits", "trials", "low", "high"), [(0, 300, 0.0, 0.012221), (3, 300, 0.002067, 0.028946), (10, 10, 0.691503, 1.0)])
def test_shares_have_the_exact_interval(hits: int, trials: int, low: float, high: float) -> None:
    assert clopper_pearson(hits, trials) == pytest.approx((low, high), abs=2e-6)


def test_a_verdict_outside_of_its_interval_names_the_side_that_moved() -> None:
    old = verdict(20.0, {"graph": (24.0, Interval(1.19, 1.20, 1.21)), "eager": (30.0, Interval(1.49, 1.50, 1.51))})
    inside = remeasure.compared(old, verdict(20.1, {"graph": (24.1, Interval(1.18, 1.199, 1.22)), "eager": (31.0, Interval(1.53, 1.54, 1.55))}))
    assert inside["inside"] and inside["moved"] == "" and inside["against"] == "graph"
    outside = remeasure.compared(old, verdict(20.0, {"graph": (26.0, Interval(1.29, 1.30, 1.31))}, torch="2.12"))
    assert not outside["inside"] and not outside["overlap"] and outside["moved"] == "baseline"
    assert outside["differs"] == {"torch": ["2.11", "2.12"]} and outside["change_percent"] == pytest.approx(100 * (1.30 / 1.20 - 1))
    summed = remeasure.summary({"a": inside, "b": outside, "c": {"why": "gone"}})
    assert (summed["remeasured"], summed["inside"], summed["moved"]) == (2, 1, {"baseline": 1})


@pytest.mark.parametrize("task", throughput.FILES["cuda"])
def test_kernel_files_become_extensions_with_the_same_device_code(task: str) -> None:
    loaded = load_task(ROOT / "experiments" / "tasks" / f"{task}.py").task
    kernel = read_kernel(ROOT / "archive" / task / throughput.FILES["cuda"][task])
    plan = resolve(parse(kernel), loaded.signature, shipped_gpu("H200"), None)
    text = extension.model_new(loaded, plan, "name")
    compile(text, "custom.py", "exec")
    compile(extension.reference(loaded), "reference.py", "exec")
    launches = [launch.function for launch in plan.launches]
    assert all(f"launch(candidate::{name}, " in text for name in launches) and text.count("__global__") == kernel.text.count("__global__")


def test_retrieval_is_graded_for_every_shipped_kernel() -> None:
    graded = json.loads((ROOT / "experiments" / "retrieval_queries.json").read_text())["kernels"]
    assert set(graded) == {entry.file for entry in read_entries(shipped_root() / "manifest.jsonl")}
