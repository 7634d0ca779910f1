"""`evokernel archive lessons|rejudge|prune|merge`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ..records import Status
from .archive import MOST, Limit, Target, finite
from .evolve import ArchivePath, Device, Force, Json, TaskTimeout
from .output import json_line, result, say

TaskName = Annotated[str | None, typer.Option("--task", metavar="TASK", help="Only on this task: its name, or its id's first digits.")]


def lessons(
    task: Annotated[str | None, typer.Argument(metavar="TASK", help="A task's name or id (default: all).")] = None,
    target: Target = None,
    limit: Limit = 50,
    archive: ArchivePath = None,
    json: Json = False,
) -> None:
    """List what the verdicts taught: what made kernels faster, and how they failed."""
    from ..api import open_archive
    from ..view.tables import lessons_text

    with open_archive(archive, create=False) as opened:
        names = opened.task_names()
        tasks = [None] if task is None else opened.find_tasks(task)
        found = [lesson for task_id in tasks for lesson in opened.lessons(task_id, target)][:limit]
    result(lessons_text(found, names))
    if json:
        json_line({"lessons": found})


def rejudge(
    target: Annotated[str, typer.Option(help="auto, cuda or cpp.")] = "auto",
    task: TaskName = None,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, max=MOST, help="At most so many kernels; the same command goes on.")] = None,
    archive: ArchivePath = None,
    device: Device = None,
    task_timeout: TaskTimeout = 60.0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Judge kernels again here whose verdicts come from other rules, another device or other versions."""
    from ..api import Session, choose_target, open_archive
    from ..batch import here
    from ..batch import rejudge as run
    from ..view.terminal import Progress, outcome

    chosen = choose_target(target).name
    counts = {"due": 0, "verified": 0, "failed": 0, "errors": 0}
    with open_archive(archive, create=False) as opened, Progress() as progress:
        if task is not None:
            opened.find_tasks(task)
        work = opened.due(chosen, here(chosen), task, limit)
        counts["due"] = len(work)
        session = Session(archive, task_timeout, force, progress.phase, device)
        for due, found in run(opened, work, device.split(",") if device else [None], session):
            kind = "errors" if isinstance(found, str) else "verified" if found.status is Status.VERIFIED else "failed"
            counts[kind] += 1
            say(f"{due.kernel.id[:8]} on {due.task.name}: {found if isinstance(found, str) else outcome(found)}")
    result(f"{counts['due']} to judge again: {counts['verified']} verified, {counts['failed']} failed, {counts['errors']} without a verdict")
    if json:
        json_line({"status": "errors" if counts["errors"] else "judged", **counts})
    raise typer.Exit(1 if counts["errors"] else 0)


def prune(
    older_than: Annotated[float, typer.Option("--older-than", metavar="DAYS", min=0, callback=finite, help="Only kernels that are older.")] = 30.0,
    keep: Annotated[int, typer.Option(metavar="N", min=1, max=MOST, help="How many of the fastest stay, by task, target and device.")] = 50,
    apply: Annotated[bool, typer.Option("--apply", help="Remove them; without this nothing is changed.")] = False,
    archive: ArchivePath = None,
    json: Json = False,
) -> None:
    """Remove old kernels that are not among the fastest, but never an ancestor of one that stays, nor what was shipped."""
    from ..api import open_archive

    with open_archive(archive, create=False) as opened:
        done = opened.prune(older_than * 86_400, keep, apply=apply)
    said = "removed" if apply else "would be removed (--apply does it)"
    result(f"{len(done.kernels)} kernels {said}, {done.kept} stay")
    if json:
        json_line(asdict(done))


def merge(
    other: Annotated[Path, typer.Argument(metavar="OTHER", help="Another archive's file; it is only read.")],
    own: Annotated[bool, typer.Option("--own", help="OTHER was measured on this machine: its verdicts count as measured here.")] = False,
    archive: ArchivePath = None,
    json: Json = False,
) -> None:
    """Add what another archive has and this one has not."""
    from ..api import open_archive

    with open_archive(archive, create=False) as opened:
        done = asdict(opened.merge(other, own=own))
    lines = ["added: " + ", ".join(f"{count} {name}" for name, count in done.items() if name != "parted")]
    lines += [f"run {run} went on differently in {other}: its events and attempts there were left out" for run in done["parted"]]
    result("\n".join(lines))
    if json:
        json_line(done)
