"""`evokernel judge`."""

from __future__ import annotations

from typing import Annotated

import typer

from ..records import Status
from .evolve import Force, Json, TaskTimeout
from .output import json_line, result, speedup_fields


def judge(
    kernel: Annotated[str, typer.Argument(metavar="KERNEL", help="A kernel file.")],
    task: Annotated[str, typer.Argument(metavar="TASK", help="A task file, or DIR:level/number.")],
    task_timeout: TaskTimeout = 60.0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Say whether a kernel is correct for a task, and how fast it is."""
    from ..api import Session
    from ..api import judge as run
    from ..view.terminal import Progress, verdict_text

    with Progress() as progress:
        verdict = run(kernel, task, Session(task_timeout_s=task_timeout, force=force, on_phase=progress.phase))
    result(verdict_text(verdict))
    if json:
        here = verdict.environment
        json_line({
            "status": verdict.status, "stage": verdict.stage, "message": verdict.message, **speedup_fields(verdict), "milestone": verdict.milestone,
            "errors": verdict.errors, "sandbox": here.sandbox, "device": here.device,
        })  # fmt: skip
    raise typer.Exit(0 if verdict.status is Status.VERIFIED else 1)
