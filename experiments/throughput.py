"""Verdicts a minute, and how busy the GPU is meanwhile; beside it the time that KernelBench's own evaluator takes for the same kernels.

    python experiments/throughput.py [--target cuda] [--each 10] [--kernelbench DIR] [--budget-s 560] [--write]

Four shipped kernels, each judged --each times in one lane, every time as a text that no build cache knows. With --kernelbench (a checkout of
ScalingIntelligence/KernelBench whose requirements can be imported) the same device code is given to its `eval_kernel_against_ref` as a
`load_inline` extension, in a process and build folder of its own, with the numbers of trials that its scripts use (5 for correctness, 100 for
time). Only that call is counted: not its process's start, and not the baselines that its scripts time beside it. On our side the lane's start
(baselines compiled and measured, truth, admission) is reported apart, too.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import extension
import report

from evokernel.api import cache_folder
from evokernel.errors import EvokernelError
from evokernel.judge.lane import AHEAD, Lane, LaneSettings
from evokernel.kernelfile import make_kernel, parse, resolve
from evokernel.records import Admission, Status, Verdict
from evokernel.targets.driver import gpu_uuid

ROOT = Path(__file__).parent.parent
FILES = {
    "cuda": {
        "softmax": "row_in_registers.cu", "layernorm_gelu": "warps_share_a_row.cu", "linear_relu": "split_k_cluster.cu",
        "cross_entropy": "row_block_then_mean.cu", "causal_attention": "tensor_core_tf32_parts.cu", "matmul_split": "tensor_core_tf32_parts.cu",
    },
    "cpp": {
        "softmax": "row_buffer_streaming_store.cpp", "layernorm_gelu": "two_pass_streaming_store.cpp", "linear_relu": "packed_weight_gemm.cpp",
        "cross_entropy": "online_row_scratch.cpp",
    },
}  # fmt: skip
ARCHITECTURES = {7: "Turing", 8: "Ampere", 9: "Hopper", 10: "Blackwell", 12: "Blackwell"}  # KernelBench's names, by major compute capability
CORRECTNESS_TRIALS, TIMED_TRIALS = 5, 100
KERNELBENCH_LIMIT_S = 300.0


class Utilisation:
    """The share of time with a kernel on the GPU, as NVML says it, while the context lasts.

    Attributes:
        percent: one number a look; none where the library or the GPU does not say.
    """

    PERIOD_S, SETTLING_LOOKS = 0.1, 10  # NVML looks back over up to a second

    def __init__(self, target: str) -> None:
        self.percent: list[int] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True) if target == "cuda" else None

    def _watch(self) -> None:
        gpu, rates = ctypes.c_void_p(), (ctypes.c_uint * 2)()  # nvmlUtilization_t: gpu, memory
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByUUID(f"GPU-{gpu_uuid()}".encode(), ctypes.byref(gpu)):
            return
        while not self._ended.wait(self.PERIOD_S):
            if library.nvmlDeviceGetUtilizationRates(gpu, ctypes.byref(rates)) == 0:
                self.percent.append(rates[0])

    def __enter__(self) -> Utilisation:
        if self._thread:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread:
            self._thread.join()
        del self.percent[: self.SETTLING_LOOKS]


def calls_s(verdict: Verdict) -> float:
    """What the timed calls of a verdict took on the device, in seconds: a part of what keeps it busy (checks, copies and flushes are not in it)."""
    modes = verdict.timing.modes if verdict.timing else ()
    live = ((m.calls * (m.median_us + statistics.fmean(b.median_us for b in m.baselines if b.live))) for m in modes)
    return sum(live) / 1e6


def ours(task: str, text: str, target: str, each: int) -> tuple[Admission, dict[str, Any]]:
    """One lane's start, and `each` verdicts of texts that differ."""
    lane = Lane(LaneSettings(str(ROOT / "experiments" / "tasks" / f"{task}.py"), target, cache_folder(), dict(os.environ)))
    nonce = time.time_ns() % 10**9
    try:
        start = time.monotonic()
        admission = lane.admit()
        started_s = time.monotonic() - start
        took, verdicts = [], []
        with Utilisation(target) as gpu:
            kernels = [make_kernel(f"{text}\nconstexpr int text_{nonce}_{number} = {number};\n", target) for number in range(each)]
            for number, kernel in enumerate(kernels):
                start = time.monotonic()
                for later in kernels[number + 1 : number + 1 + AHEAD]:
                    lane.ahead(later)  # as `judge --batch` does it
                verdict = lane.judge(kernel)
                took.append(time.monotonic() - start)
                verdicts.append(verdict)
                if verdict.status is not Status.VERIFIED:
                    raise SystemExit(f"{task}: {verdict.status.value}: {verdict.message}")
    finally:
        lane.close()
    stages = {stage: statistics.fmean(v.stages_s[stage] for v in verdicts) for stage in verdicts[0].stages_s}
    return admission, {
        "lane_start_s": started_s, "verdict_s": took, "verdict_mean_s": statistics.fmean(took), "stages_s": stages,
        "timed_calls_share": sum(map(calls_s, verdicts)) / sum(took), "gpu_busy_percent": gpu.percent,
        "time_us": statistics.median(v.time_us or 0.0 for v in verdicts),
        "speedup": [[s.low, s.mid, s.high] for v in verdicts if (s := v.speedup)], "device": admission.device.name,
    }  # fmt: skip


def theirs(task: str, text: str, admission: Admission, kernelbench: Path, limit_s: float) -> dict[str, Any]:
    """KernelBench's evaluation of the same device code, in a process and folder of its own."""
    plan = resolve(parse(make_kernel(text, "cuda")), admission.task.signature, admission.device, None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "reference.py").write_text(extension.reference(admission.task))
        (folder / "custom.py").write_text(extension.model_new(admission.task, plan, f"{task}_{time.time_ns() % 10**9}"))
        command = [sys.executable, __file__, "--kernelbench", str(kernelbench), "--evaluate", name]
        environ = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # a package of its requirements asks the internet at import otherwise
        try:
            run = subprocess.run(command, capture_output=True, text=True, timeout=min(limit_s, KERNELBENCH_LIMIT_S), check=False, env=environ)
            said = run.stdout + run.stderr
        except subprocess.TimeoutExpired as error:
            said = f"not done after {error.timeout:.0f} s"
        outcome = folder / "outcome.json"
        return json.loads(outcome.read_text()) if outcome.exists() else {"error": said[-3000:]}


def evaluate(folder: Path, kernelbench: Path) -> None:
    """In the process of one evaluation: `seconds` with a fresh build, `again_s` once the extension is built."""
    sys.path.insert(0, str(kernelbench / "src"))
    import torch
    from kernelbench.eval import eval_kernel_against_ref
    from kernelbench.utils import set_gpu_arch

    set_gpu_arch([ARCHITECTURES[torch.cuda.get_device_capability()[0]]])
    torch.zeros(1, device="cuda").cpu()  # a running evaluator has its context
    outcome: dict[str, Any] = {}
    for key in ("seconds", "again_s"):
        start = time.monotonic()
        result = eval_kernel_against_ref(
            (folder / "reference.py").read_text(), (folder / "custom.py").read_text(), num_correct_trials=CORRECTNESS_TRIALS,
            num_perf_trials=TIMED_TRIALS, measure_performance=True, timing_method="cuda_event", build_dir=str(folder / "build"),
            device=torch.device("cuda:0"), backend="cuda", precision=torch.float32,
        )  # fmt: skip
        outcome[key] = time.monotonic() - start
        found = result.model_dump() if result is not None else {}
        kept = {k: found.get(k) for k in ("compiled", "correctness", "runtime", "ref_runtime")}
        outcome |= {**kept, "metadata": {k: str(v)[:1000] for k, v in found.get("metadata", {}).items()}}
        (folder / "outcome.json").write_text(json.dumps(outcome))


def summary(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Rates over all tasks; the comparison over those that both sides judged."""
    own = [r["ours"] for r in rows.values() if "ours" in r]
    seconds = sum(sum(o["verdict_s"]) for o in own)
    count = sum(len(o["verdict_s"]) for o in own)
    busy = [p for o in own for p in o["gpu_busy_percent"]]
    found = {
        "verdicts": count, "verdicts_per_minute": 60 * count / seconds,
        "verdicts_per_minute_with_lane_starts": 60 * count / (seconds + sum(o["lane_start_s"] for o in own)),
        "gpu_busy_percent": statistics.fmean(busy) if busy else None, "gpu_busy_samples": len(busy),
        "timed_calls_share": sum(o["timed_calls_share"] * sum(o["verdict_s"]) for o in own) / seconds,
    }  # fmt: skip
    both = [r for r in rows.values() if "ours" in r and r.get("theirs", {}).get("correctness")]
    if both:
        ratio = sum(r["theirs"]["seconds"] for r in both) / sum(r["ours"]["verdict_mean_s"] for r in both)
        built = [r for r in both if "again_s" in r["theirs"]]
        found |= {
            "kernelbench_judged": len(both), "kernelbench_verdicts_per_minute": 60 * len(both) / sum(r["theirs"]["seconds"] for r in both),
            "times_kernelbench": ratio,
            "times_kernelbench_with_its_build_done": sum(r["theirs"]["again_s"] for r in built) / sum(r["ours"]["verdict_mean_s"] for r in built)
            if built else None,
        }  # fmt: skip
    return found


def told(task: str, row: dict[str, Any]) -> str:
    """One line a task."""
    own, other = row.get("ours"), row.get("theirs")
    text = row.get("error", "")
    if own:
        busy = f"{statistics.fmean(own['gpu_busy_percent']):.0f} %" if own["gpu_busy_percent"] else "not known"
        text = f"{own['verdict_mean_s']:.2f} s a verdict (lane start {own['lane_start_s']:.0f} s, GPU busy {busy}), {own['time_us']:.1f} us"
    if other:
        said = f"{other['seconds']:.1f} s, built already {other.get('again_s', math.nan):.1f} s" if other.get("correctness") else f"failed: {other}"
        text += f"; KernelBench {said}, {1000 * (other.get('runtime') or math.nan):.1f} us"
    return f"{task}: {text}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=("cpp", "cuda"), default="cuda")
    parser.add_argument("--tasks", nargs="+", choices=tuple(FILES["cuda"]), default=tuple(FILES["cpp"]))
    parser.add_argument("--each", type=int, default=10, help="verdicts of each kernel")
    parser.add_argument("--kernelbench", type=Path, metavar="DIR", help="compare with this checkout's evaluator")
    parser.add_argument("--budget-s", type=float, default=math.inf, help="begin nothing new after so many seconds")
    parser.add_argument("--write", action="store_true", help="write experiments/results/throughput.json (throughput_cpp.json)")
    parser.add_argument("--evaluate", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.evaluate:
        evaluate(arguments.evaluate, arguments.kernelbench.resolve())
        return
    start, target = time.monotonic(), arguments.target
    rows: dict[str, dict[str, Any]] = {}
    result: dict[str, Any] = {"summary": {}}
    for task in arguments.tasks:
        if time.monotonic() - start > arguments.budget_s:
            break
        text = (ROOT / "archive" / task / FILES[target][task]).read_text()
        row = rows[task] = {"file": f"{task}/{FILES[target][task]}"}
        try:
            admission, row["ours"] = ours(task, text, target, arguments.each)
        except EvokernelError as error:
            row["error"] = str(error)
            print(told(task, row), flush=True)
            continue
        left_s = arguments.budget_s - (time.monotonic() - start)
        if arguments.kernelbench and left_s > 0:
            row["theirs"] = theirs(task, text, admission, arguments.kernelbench.resolve(), left_s)
        print(f"{time.monotonic() - start:5.0f} s  {told(task, row)}", flush=True)
        result = {"summary": summary(rows), "tasks": rows, "seconds": round(time.monotonic() - start)}
        if arguments.write:
            report.write("throughput" if target == "cuda" else f"throughput_{target}", result, target)
    for key, value in result["summary"].items():
        print(f"{key}: {value}")


if __name__ == "__main__":
    main()
