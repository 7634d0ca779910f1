"""How far trusted and cheating implementations are off, in error units, against the budgets the judge gives.

    python experiments/calibration.py [--small] [TASK.py ...]

Writes experiments/results/calibration.json: per task, regime and output the budget and what each implementation measures. Trusted ones (eager with
one and all threads, torch.compile, one-pass forms) must lie within the budget; reduced-precision copies and zeros must not.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from report import write
from torch import Tensor

from evokernel.judge.cases import Case, Cases
from evokernel.judge.compare import measure
from evokernel.task import load_task

HEAD = "import torch\nimport torch.nn as nn\nF = nn.functional\n\n"
Implementation = Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], Tensor]


def module(init: str, forward: str, inputs: str) -> str:
    return (
        f"{HEAD}class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        {init}\n\n"
        f"    def forward(self, {forward}\n\n\ndef get_inputs():\n    return {inputs}\n"
    )


def tasks(rows: int, columns: int) -> dict[str, str]:
    """Our own small family of tasks: name -> task file."""
    x = f"[torch.randn({rows}, {columns})]"
    return {
        "softmax": module("pass", "x): return torch.softmax(x, dim=1)", x),
        "layernorm_gelu": module(f"self.norm = nn.LayerNorm({columns})", "x): return F.gelu(self.norm(x))", x),
        "rmsnorm": module(f"self.weight = nn.Parameter(torch.ones({columns}))", "x): return F.rms_norm(x, (x.shape[1],), self.weight)", x),
        "linear_relu": module(f"self.linear = nn.Linear({columns}, 256)", "x): return torch.relu(self.linear(x))", x),
        "bf16_product": module("pass", "a, b): return (a.float() @ b.float()).bfloat16()",
                               f"[torch.randn(64, {columns}).bfloat16(), torch.randn({columns}, 64).bfloat16()]"),
    }  # fmt: skip


def one_pass_layernorm(t: Mapping[str, Tensor], w: Mapping[str, Tensor]) -> Tensor:
    x = t["x"]
    mean = x.mean(1, keepdim=True)
    variance = ((x * x).mean(1, keepdim=True) - mean * mean).clamp(min=0)
    return torch.nn.functional.gelu((x - mean) * torch.rsqrt(variance + 1e-5) * w["norm_weight"] + w["norm_bias"])


def chunked_linear(t: Mapping[str, Tensor], w: Mapping[str, Tensor]) -> Tensor:
    parts = [a @ b.T for a, b in zip(t["x"].split(64, 1), w["linear_weight"].split(64, 1), strict=True)]
    return torch.relu(torch.stack(parts).sum(0) + w["linear_bias"])


VARIANTS: dict[str, dict[str, Implementation]] = {
    "layernorm_gelu": {"one-pass": one_pass_layernorm},
    "linear_relu": {"summed in chunks": chunked_linear},
    "softmax": {"exp2": lambda t, w: _exp2_softmax(t["x"])},
}


def _exp2_softmax(x: Tensor) -> Tensor:
    e = torch.exp2((x - x.amax(1, keepdim=True)) * 1.4426950408889634)
    return e / e.sum(1, keepdim=True)


def implementations(cases: Cases, case: Case, name: str, compiled: torch.nn.Module) -> dict[str, dict[str, Tensor]]:
    """Outputs of each implementation on one case, by plan name."""
    draw, weights = case.draw, case.weights
    found = {"eager": cases.eager(case), "tf32 copy": cases.narrowed(case, 10), "16-bit copy": cases.narrowed(case, 7)}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found["eager, 1 thread"] = cases.eager(case)
    torch.set_num_threads(threads)
    found["zeros"] = {n: torch.zeros_like(t) for n, t in found["eager"].items()}
    with cases.loaded.bound(weights), torch.no_grad():
        args, kwargs = cases.loaded.arguments(draw)
        found["torch.compile"] = {"out": compiled(*args, **kwargs)}
    for label, implementation in VARIANTS.get(name, {}).items():
        found[label] = {"out": implementation(draw.tensors, weights)}
    return found


def calibrate(name: str, file: Path) -> list[dict[str, object]]:
    """Rows of one task: a regime, an output, its budget and the units of each implementation (the largest over the regime's cases)."""
    cases = Cases(load_task(file))
    compiled = torch.compile(cases.loaded.model)
    rows: dict[tuple[str, str], dict[str, object]] = {}
    for case in cases.correctness():
        for label, outputs in implementations(cases, case, name, compiled).items():
            for output, tensor in outputs.items():
                found, budget = measure(tensor, case.truth.outputs[output]), case.budgets[output]
                row = rows.setdefault((case.regime, output), {"task": name, "regime": case.regime, "output": output})
                row |= {"budget_units": budget.max_units, "budget_rms": budget.rms_units if budget.rms_units < torch.inf else None}
                before = row.setdefault(label, {"max_units": 0.0, "rms_units": 0.0, "passed": True})
                assert isinstance(before, dict)
                before["max_units"] = max(before["max_units"], found.max_units)
                before["rms_units"] = max(before["rms_units"], found.rms_units)
                whole = {**cases.eager(case), output: tensor}
                before["passed"] = before["passed"] and cases.check(case, whole)[1] is None
    return list(rows.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="task files; default: a small family of our own")
    parser.add_argument("--small", action="store_true", help="256 x 512 instead of 4096 x 2048")
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        chosen = {f.stem: f for f in options.files}
        for name, text in ({} if chosen else tasks(*((256, 512) if options.small else (4096, 2048)))).items():
            chosen[name] = Path(folder) / f"{name}.py"
            chosen[name].write_text(text)
        for name, file in chosen.items():
            rows += calibrate(name, file)
            print(name, "done")
    write("calibration", {"rows": rows})


if __name__ == "__main__":
    main()
