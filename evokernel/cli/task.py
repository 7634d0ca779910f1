"""`evokernel task new|show|check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError
from .evolve import Force, Json, TaskTimeout
from .output import json_line, result

app = typer.Typer(no_args_is_help=True, help="Task files: make one, see what a plan can name, see whether it can be judged.")
TaskFile = Annotated[str, typer.Argument(metavar="TASK", help="A task file, or DIR:level/number.")]

_TEMPLATE = '''"""One line that says what the module does."""

import torch
from torch import nn

# Optional, see docs/tasks.md:
# EVOKERNEL = {"precision": "strict", "shapes": [{"rows": 64}], "score": "cold"}


class Model(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(self.norm(x))


def get_inputs(rows: int = 2048):
    return [torch.randn(rows, 1024)]


def get_init_inputs():
    return [1024]
'''


@app.command()
def new(file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write the template.")]) -> None:
    """Write a task file to start from."""
    if file.exists():
        raise UsageError(f"{file} exists already; choose another name")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(_TEMPLATE, encoding="utf-8")
    result(f"{file} written; next: evokernel task check {file}")


@app.command()
def show(task: TaskFile, task_timeout: TaskTimeout = 60.0, json: Json = False) -> None:
    """Show the names, dtypes, shapes and strides that a launch plan can use."""
    from ..api import Session, choose_target, open_lane
    from ..view.tables import signature_text

    with open_lane(task, choose_target("auto").name, Session(task_timeout_s=task_timeout)) as lane:
        loaded = lane.describe()
    result("\n\n".join(signature_text(loaded, variant) for variant in range(len(loaded.variants))))
    if json:
        json_line(loaded)


@app.command()
def check(task: TaskFile, task_timeout: TaskTimeout = 60.0, force: Force = False, json: Json = False) -> None:
    """Say whether a task can be judged, and which trivial candidates were tried and fail on it."""
    from ..api import Session, choose_target, open_lane
    from ..view.tables import admission_text
    from ..view.terminal import Progress

    with Progress() as progress:
        session = Session(task_timeout_s=task_timeout, force=force, on_phase=progress.phase)
        with open_lane(task, choose_target("auto").name, session) as lane:
            admission = lane.admit()
    result(admission_text(admission))
    if json:
        json_line({"status": "admitted", "admission": admission})
