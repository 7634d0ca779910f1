"""Shared by the experiments: where and when a result was measured, and the result file."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from evokernel.targets import get
from evokernel.targets.driver import gpu_uuid

RESULTS = Path(__file__).parent / "results"


def circumstances(target: str = "cpp") -> dict[str, Any]:
    """Device, versions, date and how busy the machine was."""
    versions = {name: importlib.metadata.version(name) for name in ("torch", "numpy")}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=RESULTS.parent).stdout.strip()
    here = get(target)
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": here.device().name,
        "cores": here.device().sm_count,
        "compiler": here.compiler(),
        "python": platform.python_version(),
        "versions": versions,
        "commit": commit,
        "load_average": [round(x, 2) for x in os.getloadavg()],
    }


def write(name: str, result: dict[str, Any], target: str = "cpp") -> Path:
    """Write experiments/results/NAME.json."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"measured": circumstances(target), **result}, indent=1) + "\n")
    return path


def gpu_memory_mib() -> int:
    """In use on the GPU that kernels run on, whoever uses it."""
    query = ["nvidia-smi", f"--id=GPU-{gpu_uuid()}", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0])
