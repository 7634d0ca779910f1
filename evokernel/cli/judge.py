"""`evokernel judge`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UsageError
from ..records import BatchOutcome, Status
from .evolve import Device, Force, Json, TaskTimeout
from .output import fail, json_line, result, say, speedup_fields

if TYPE_CHECKING:
    from ..api import Session


def judge(  # noqa: PLR0913, PLR0917 - each parameter is one option of the command
    kernel: Annotated[str | None, typer.Argument(metavar="KERNEL", help="A kernel file.")] = None,
    task: Annotated[str | None, typer.Argument(metavar="TASK", help="A task file, or DIR:level/number.")] = None,
    batch: Annotated[Path | None, typer.Option(metavar="FILE", help="Judge all candidates of a file (`evokernel export candidates`).")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="With --batch: where outcomes are added; the same command goes on.")] = None,
    device: Device = None,
    task_timeout: TaskTimeout = 60.0,
    force: Force = False,
    explain: Annotated[bool, typer.Option("--explain", help="Say what was checked, with which data and budgets.")] = False,
    json: Json = False,
) -> None:
    """Say whether a kernel is correct for a task, and how fast it is; or the same for a file of candidates."""
    from ..api import Session, judged
    from ..records.profile import profile
    from ..view.explain import explain_text, explanation
    from ..view.terminal import Progress, verdict_text

    with Progress() as progress:
        session = Session(task_timeout_s=task_timeout, force=force, on_phase=progress.phase, device=device)
        if batch and out and not kernel and not explain:
            _judge_batch(batch, out, session, as_json=json)
        if not (kernel and task) or batch or out:
            raise UsageError("give KERNEL and TASK, or --batch candidates.jsonl --out outcomes.jsonl and neither")
        admission, verdict = judged(kernel, task, session)
    result(verdict_text(verdict))
    more: dict[str, object] = {}
    if explain:
        result(f"\n{explain_text(verdict, admission)}")
        more = {"explanation": explanation(verdict, admission), "profile": profile(verdict, admission.device), "verdict": verdict}
    if json:
        here = verdict.environment
        json_line({
            "status": verdict.status, "stage": verdict.stage, "message": verdict.message, **speedup_fields(verdict), "milestone": verdict.milestone,
            "errors": verdict.errors, "sandbox": here.sandbox, "device": here.device, **more,
        })  # fmt: skip
    raise typer.Exit(0 if verdict.status is Status.VERIFIED else 1)


def _judge_batch(candidates: Path, out: Path, session: Session, *, as_json: bool) -> None:
    """Judge a file, a line on stderr for each candidate, and exit with 0 when all have a verdict."""
    from ..batch import judge_batch
    from ..view.terminal import outcome

    def told(found: BatchOutcome, left: int) -> None:
        said = outcome(found.verdict) if found.verdict else f"{found.error}: {found.message[:300]!r}"
        say(f"{found.id or found.candidate}: {said} ({left} left)")

    devices = list(dict.fromkeys(session.device.split(","))) if session.device else [None]
    try:
        done = judge_batch(candidates, out, devices, session, told)
    except KeyboardInterrupt:
        fail("interrupted", f"interrupted; what was judged is in {out}, and the same command goes on from there", 130)
    again = "; the same command tries the errors again" if done.errors else ""
    result(f"{out}: {done.verdicts} verdicts of {done.candidates} candidates ({done.verified} verified), {done.errors} errors{again}")
    if as_json:
        json_line({"status": "errors" if done.errors else "judged", "out": str(out), **asdict(done)})
    raise typer.Exit(1 if done.errors else 0)
