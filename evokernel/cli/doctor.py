"""`evokernel doctor`."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from .output import json_line, result

_PACKAGES = ("torch", "numpy", "networkx", "faiss-cpu", "sentence-transformers", "openai", "anthropic")
_KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")


@dataclass(frozen=True)
class Finding:
    """One part of this machine. `state` is ok, missing or note; `adds` says what the part is for, or would add."""

    part: str
    state: str
    detail: str
    adds: str


def doctor(
    measure: Annotated[bool, typer.Option("--measure", help="Measure the bandwidth and product rates of the devices, and keep them.")] = False,
    json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Say what this machine has, and what each missing part would add."""
    from ..api import cache_folder, data_folder
    from ..view.tables import table

    findings = [*_targets(), *_packages(), _sandbox(), _gpu(), _sanitizer(), *_keys()]
    findings += [_folder("archive", data_folder()), _folder("cache", cache_folder())]
    findings += _rooflines(cache_folder(), measure=measure)
    result(table(("part", "state", "detail", "what for"), [(f.part, f.state, f.detail, f.adds) for f in findings]))
    able = any(f.part.startswith("target") and f.state == "ok" for f in findings)
    result("\nready: `evokernel evolve TASK` works here" if able else "\nno target can run here: install what is missing above")
    if json:
        json_line({"status": "ready" if able else "not_ready", "findings": findings})
    raise typer.Exit(0 if able else 1)


def _targets() -> list[Finding]:
    from .. import targets

    found = []
    for name in targets.names():
        target = targets.get(name)
        why = target.available()
        detail = why or f"{target.compiler()}; {target.device().name}, {target.device().sm_count} cores"
        found.append(Finding(f"target {name}", "missing" if why else "ok", detail, "builds and judges kernels on this machine"))
    return found


def _rooflines(cache: Path, *, measure: bool) -> list[Finding]:
    """What the devices reach; measured now, or found from before."""
    from .. import targets

    here = [t for t in map(targets.get, targets.names()) if t.available() is None]
    if not measure and not (cache / "roofline").exists():
        return [Finding("roofline", "note", "not measured", "`evokernel doctor --measure` lets verdicts say how much of it a kernel reaches")]
    from ..judge import roofline

    found = []
    for target in here:
        device = target.device()
        rates = roofline.measure(device) if measure else roofline.read(cache, device)
        if rates and measure:
            roofline.write(cache, device, rates)
        if rates:
            products = ", ".join(f"{name} {rate:.3g} TFLOP/s" for name, rate in rates.product_tflops.items())
            detail = f"copy {rates.copy_gbs:.0f} GB/s, products: {products}"
            found.append(Finding(f"roofline {target.name}", "ok", detail, "what verdicts are set against"))
    return found


def _packages() -> list[Finding]:
    found = []
    for name in _PACKAGES:
        try:
            found.append(Finding(name, "ok", importlib.metadata.version(name), "installed"))
        except importlib.metadata.PackageNotFoundError:
            found.append(Finding(name, "missing", f"pip install {name}", "needed by the install; reinstall evokernel"))
    return found


def _sandbox() -> Finding:
    """Ask a process of its own: confinement cannot be taken back."""
    import sys

    code = "from evokernel.runner.sandbox import confine; print(confine(()))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    level = done.stdout.strip() or "none"
    if level == "landlock+seccomp":
        return Finding("sandbox", "ok", level, "confines candidate code")
    return Finding("sandbox", "note", level, "a newer kernel or another container profile would add the rest")


def _gpu() -> Finding:
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return Finding("NVIDIA GPU", "missing", "no nvidia-smi on the path", "a GPU would add the cuda target")
    done = subprocess.run([smi, "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, timeout=60, check=False)
    names = ", ".join(done.stdout.split("\n")).strip(", ")
    state = "ok" if done.returncode == 0 else "missing"
    return Finding("NVIDIA GPU", state, names or done.stderr.strip()[:80], "for the cuda target")


def _sanitizer() -> Finding:
    path, use = shutil.which("compute-sanitizer"), "looks for out-of-bounds accesses and races in the best cuda kernels"
    return Finding("compute-sanitizer", "ok", path, use) if path else Finding("compute-sanitizer", "note", "not on the path (CUDA toolkit)", use)


def _keys() -> list[Finding]:
    use = {name: f"for --model {name.partition('_')[0].lower()}/NAME" for name in _KEYS}
    return [Finding(k, "ok", "set", use[k]) if os.environ.get(k) else Finding(k, "note", "not set", use[k]) for k in _KEYS]


def _folder(part: str, folder: Path) -> Finding:
    base = next((p for p in (folder, *folder.parents) if p.exists()), folder)
    writable = os.access(base, os.W_OK)
    free_gb = shutil.disk_usage(base).free / 1e9
    detail = f"{folder} ({free_gb:.0f} GB free)" if writable else f"{folder} cannot be written"
    return Finding(part, "ok" if writable else "missing", detail, f"on {platform.system()}; set XDG_DATA_HOME or XDG_CACHE_HOME for another place")
