"""The columns of the exported dataset: their types, and how a row is made of what the archive knows.

The first 19 are those of the published AI CUDA Engineer Archive (SakanaAI/AI-CUDA-Engineer-Archive, CC-BY-4.0), same names, order and units (times
in milliseconds), so that code written for it works; profiles are text there. They speak of CUDA kernels: for others, code, times and ratios are null
there and stand only in the columns that follow. What is not known is null, never invented.
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
from dataclasses import dataclass, replace
from pathlib import PurePath

from .. import codec
from ..records import BaselineTime, Kernel, Status, Task, Verdict

Value = str | int | float | bool | list[str] | None
Columns = dict[str, str]  # name -> string, int64, float64, bool or list (of strings)
Row = dict[str, Value]

PUBLISHED: Columns = {
    "Op_Name": "string", "Level_ID": "int64", "Task_ID": "int64", "Kernel_Name": "string", "CUDA_Runtime": "float64",
    "PyTorch_Native_Runtime": "float64", "PyTorch_Compile_Runtime": "float64", "CUDA_Speedup_Native": "float64", "CUDA_Speedup_Compile": "float64",
    "CUDA_Code": "string", "PyTorch_Code_Module": "string", "PyTorch_Code_Functional": "string", "Correct": "bool", "Max_Diff": "float64",
    "Error": "string", "NCU_Profile": "string", "Torch_Profile": "string", "Clang_Tidy": "string", "__index_level_0__": "int64",
}  # fmt: skip
OURS: Columns = {
    "kernel_id": "string", "parents": "list", "operator": "string", "model": "string", "prompt_hash": "string", "input_tokens": "int64",
    "output_tokens": "int64", "cost_usd": "float64", "target": "string", "kernel_file": "string", "strategy": "string", "tunables": "string",
    "techniques": "list", "task_id": "string", "shapes": "string", "dtypes": "list", "status": "string", "milestone": "int64", "device": "string",
    "architecture": "string", "compiler": "string", "versions": "string", "protocol": "int64", "samples": "int64", "time_us": "float64",
    "baseline": "string", "baselines_us": "string", "speedup": "float64", "speedup_low": "float64", "speedup_high": "float64",
    "traffic_fraction": "float64", "work_fraction": "float64", "registers": "int64", "spill_bytes": "int64", "imported": "bool", "licence": "string",
    "origin": "string", "provenance": "string", "quarantined": "string", "task": "string", "verdict": "string", "forced": "bool",
}  # fmt: skip
DATASET = {**PUBLISHED, **OURS}
PAIRS: Columns = {
    "task_id": "string", "Op_Name": "string", "PyTorch_Code_Module": "string", "target": "string", "device": "string", "slow_id": "string",
    "fast_id": "string", "slow": "string", "fast": "string", "diff": "string", "slow_time_us": "float64", "fast_time_us": "float64",
    "gain_low": "float64", "made_from_slow": "bool", "operator": "string", "model": "string", "licence": "string", "provenance": "string",
}  # fmt: skip


@dataclass(frozen=True)
class Source:
    """What the archive knows of one kernel and one of its verdicts (None: it has none). `kernel`, `attempt` (that made it): rows of the database."""

    kernel: sqlite3.Row
    licence: str
    task: Task | None
    verdict: Verdict | None
    imported: bool
    attempt: sqlite3.Row | None
    parents: list[str]


def level_of(task: Task | None) -> tuple[int, int] | None:
    """Level and number of a task of KernelBench, by its path; None for others."""
    found = re.search(r"(?:^|/)level(\d{1,9})/0*(\d{1,9})_[^/]*\.py$", task.path) if task else None
    return (int(found[1]), int(found[2])) if found else None


def split_of(task: Task | None) -> str:
    """The split of a task's rows: by its level in KernelBench."""
    level = level_of(task)
    return f"level_{level[0]}" if level else "train"


def portable(task: Task) -> Task:
    """The task without the folders of the machine that judged it, which are nobody's business; the level of KernelBench stays."""
    return replace(task, path="/".join(PurePath(task.path).parts[-2 if level_of(task) else -1 :]))


def dataset_row(source: Source, number: int) -> Row:
    """The row of a source; `number` counts the rows of the dataset."""
    made, kernel = source.attempt, Kernel(source.kernel["id"], source.kernel["target"], source.kernel["text"])
    row: Row = dict.fromkeys(DATASET)
    row |= {"__index_level_0__": number, "kernel_id": kernel.id, "target": kernel.target, "kernel_file": kernel.text, "parents": source.parents}
    row |= {"Kernel_Name": PurePath(source.kernel["provenance"]).stem if source.kernel["origin"] == "shipped" else kernel.id}
    row |= {name: source.kernel[name] or None for name in ("strategy", "origin", "provenance", "quarantined")}
    row |= {"imported": source.imported, "licence": source.licence or None, "CUDA_Code": kernel.text if kernel.target == "cuda" else None}
    if made:
        row |= {name: made[name] for name in ("operator", "model", "input_tokens", "output_tokens", "cost_usd")}
        row["prompt_hash"] = made["prompt_hash"] or None
    if source.task:
        row |= _task_columns(source.task)
    if source.verdict:
        row |= _verdict_columns(source.verdict) | (_published_times(source.verdict) if kernel.target == "cuda" else {})
    return row


def _task_columns(task: Task) -> Row:
    level, number = level_of(task) or (None, None)
    tensors = task.signature.tensors
    return {
        "Op_Name": task.name, "Level_ID": level, "Task_ID": number, "PyTorch_Code_Module": task.source, "task_id": task.id,
        "shapes": json.dumps({t.name: t.shape for t in tensors}), "dtypes": [t.dtype for t in tensors],
        "task": codec.dumps(replace(portable(task), source="")),  # its source has a column of its own
    }  # fmt: skip


def _verdict_columns(verdict: Verdict) -> Row:
    environment, timing, made, bounds = verdict.environment, verdict.timing, verdict.resources, verdict.bounds
    own = [e.max_abs for e in verdict.errors if e.regime == "own"]
    row: Row = {
        "Correct": verdict.status is Status.VERIFIED, "Max_Diff": max(own, key=lambda e: (math.isnan(e), e), default=None),
        "Error": None if timing else verdict.message, "tunables": json.dumps(verdict.config), "status": verdict.status.value,
        "milestone": verdict.milestone, "device": environment.device, "architecture": environment.architecture, "compiler": environment.compiler,
        "versions": json.dumps(environment.versions, sort_keys=True), "protocol": environment.protocol, "verdict": codec.dumps(verdict),
        "forced": environment.forced,
    }  # fmt: skip
    if made:
        gpu = {"registers": made.registers, "spill_bytes": made.spill_bytes} if made.registers else {}
        row |= {"techniques": list(made.features), **gpu}
    if bounds:
        row |= {"traffic_fraction": bounds.traffic_fraction or None, "work_fraction": bounds.work_fraction or None}
    if timing and verdict.speedup:
        scored, speedup = timing.scored, verdict.speedup
        row |= {
            "samples": scored.calls, "time_us": scored.median_us, "baseline": scored.fastest.name,
            "baselines_us": json.dumps({b.name: b.median_us for b in scored.baselines}),
            "speedup": speedup.mid, "speedup_low": speedup.low, "speedup_high": speedup.high,
        }  # fmt: skip
    return row


def _published_times(verdict: Verdict) -> Row:
    if not verdict.timing:
        return {}
    scored = verdict.timing.scored
    by_name: dict[str, BaselineTime] = {b.name: b for b in scored.baselines}
    row: Row = {"CUDA_Runtime": scored.median_us / 1e3}
    for name, column in (("eager", "Native"), ("compile", "Compile")):
        if baseline := by_name.get(name):
            row |= {f"PyTorch_{column}_Runtime": baseline.median_us / 1e3, f"CUDA_Speedup_{column}": baseline.speedup.mid}
    return row
