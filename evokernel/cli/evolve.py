"""`evokernel evolve` and `evokernel resume`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .. import __version__
from .output import fail, json_line, result, say, speedup_fields

if TYPE_CHECKING:
    from ..archive.runs import RunSettings
    from ..search.run import RunResult

PROMPT_BYTES = 16_000  # a usual prompt, for the estimate before a run

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line of stdout.")]
ArchivePath = Annotated[Path | None, typer.Option("--archive", metavar="PATH", help="The archive file to use (default: your own).")]
TaskTimeout = Annotated[float, typer.Option("--task-timeout", metavar="S", help="Limit on each part of the task's own code, in seconds.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Where to write the best kernel.")]
Device = Annotated[str | None, typer.Option("--device", metavar="GPU", help="A GPU's number or UUID; judge --batch takes several (0,1).")]
Force = Annotated[bool, typer.Option("--force", help="Judge a task that admission refuses; its results stay marked.")]


def evolve(  # noqa: PLR0913, PLR0917 - each parameter is one option of the command
    task: Annotated[str, typer.Argument(metavar="TASK", help="A task file, or DIR:level/number in a KernelBench checkout.")],
    target: Annotated[str, typer.Option(help="auto, cuda or cpp.")] = "auto",
    start: Annotated[Path | None, typer.Option(metavar="KERNEL", help="A kernel file to begin with.")] = None,
    candidates: Annotated[int, typer.Option(metavar="N", help="How many kernels may be measured.")] = 40,
    seconds: Annotated[float | None, typer.Option("--time", metavar="S", help="Wall time for the search, in seconds.")] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the search's decisions.")] = 0,
    model: Annotated[list[str] | None, typer.Option(metavar="PROVIDER/NAME", help="A model to ask, @URL for your own server; several times.")] = None,
    effort: Annotated[str, typer.Option(help="How hard models think: none, low, medium, high, max.")] = "medium",
    budget_usd: Annotated[float | None, typer.Option(metavar="USD", help="What model calls may cost.")] = None,
    budget_tokens: Annotated[int | None, typer.Option(metavar="N", help="How many tokens models may use, input and output.")] = None,
    price: Annotated[list[str] | None, typer.Option(metavar="MODEL=IN,OUT", help="A price in USD for a million tokens.")] = None,
    policy: Annotated[str, typer.Option(help="How the next step is chosen: ranked, random-operator; with models best-of-n, serial.")] = "ranked",
    archive: ArchivePath = None,
    out: Out = None,
    device: Device = None,
    task_timeout: TaskTimeout = 60.0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Search for a faster kernel of a PyTorch module, and prove it."""
    from ..api import Session, choose_target, open_archive, read_kernel
    from ..api import evolve as run
    from ..archive.runs import RunSettings
    from ..view.terminal import Progress

    chosen = choose_target(target)
    if out:
        writable(out)
    start_text = None
    if start:
        kernel = read_kernel(start)
        if kernel.target != chosen.name:
            fail("error", f"{start} is a kernel for {kernel.target}, the search is for {chosen.name}; give --target {kernel.target}", 2)
        start_text = kernel.text
    settings = RunSettings(
        chosen.name, candidates, seconds, seed, start_text, policy, tuple(model or ()), effort, budget_usd, budget_tokens, tuple(price or ())
    )
    say(f"evokernel {__version__}: {announcement(settings)}")
    began = time.monotonic()
    with Progress() as progress, open_archive(archive):
        session = Session(archive=archive, task_timeout_s=task_timeout, force=force, on_phase=progress.phase, device=device)
        found = run(task, settings, session, progress.event)
    _report(found, out, time.monotonic() - began, archive, as_json=json)


def announcement(settings: RunSettings) -> str:
    """What kind of search this will be, and what it may cost; raises UsageError where a price is missing."""
    from ..models import CallSettings, ModelSpec
    from ..models.money import estimate, prices_for
    from ..models.prices import parse_price

    if not settings.models:
        own = "stepping stones as they are, tunables, recombination"
        return f"without a model the archive's own operators search: {own}. Add a model with --model PROVIDER/NAME."
    specs = [ModelSpec.parse(text) for text in settings.models]
    prices = prices_for(specs, dict(map(parse_price, settings.prices)), settings.budget_usd)
    cost = estimate(specs, prices, settings.candidates, PROMPT_BYTES, CallSettings(effort=settings.effort))
    return f"the task's source and kernels made for it are sent to {', '.join(s.id for s in specs)}. {cost}."


def resume(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's id, or its first digits.")],
    archive: ArchivePath = None,
    out: Out = None,
    device: Device = None,
    task_timeout: TaskTimeout = 60.0,
    json: Json = False,
) -> None:
    """Go on with a run that was interrupted or killed."""
    from ..api import Session, resume_run
    from ..view.terminal import Progress

    began = time.monotonic()
    with Progress() as progress:
        session = Session(archive=archive, task_timeout_s=task_timeout, on_phase=progress.phase, device=device)
        found = resume_run(run, session, progress.event)
    _report(found, out, time.monotonic() - began, archive, as_json=json)


def _report(found: RunResult, out: Path | None, seconds: float, archive: Path | None, *, as_json: bool) -> None:
    """Write the best kernel, say what it is worth and what to do next, and exit with the code that fits."""
    from ..api import open_archive
    from ..view.terminal import summary

    with open_archive(archive) as opened:
        task = opened.task(found.task_id)
        run_row = next(r for r in opened.runs() if r.id == found.run_id)
    verdict = found.verdict
    path = _write_kernel(found, out, task.name) if found.best and verdict else None
    interrupted = found.reason == "interrupted"
    status = "interrupted" if interrupted else "stopped" if found.stopped else "verified" if verdict else "nothing_verified"
    _fill_vectors(archive)
    say()
    result(summary(found, task, path))
    if as_json:
        json_line({
            "status": status, "reason": found.reason, "resumable": found.resumable, "run": found.run_id,
            "task_id": found.task_id, "kernel_id": found.best.id if found.best else None,
            "kernel_path": str(path) if path else None, "target": run_row.target, "device": verdict.environment.device if verdict else None,
            **speedup_fields(verdict),
            "candidates": found.candidates, "verified": sum(found.placements.get(p, 0) for p in ("new_best", "kept")), "tokens": found.tokens,
            "cost_usd": found.cost_usd, "seconds": round(seconds, 3),
        })  # fmt: skip
    raise typer.Exit(130 if interrupted else 2 if found.stopped else 0 if verdict else 1)


def _fill_vectors(archive: Path | None) -> None:
    """Let a process of its own make the vectors of what this run has found, now that nothing is measured any more."""
    from ..api import data_folder
    from ..archive.vectors import start_filling

    model = os.environ.get("EVOKERNEL_TEXT_MODEL", "")
    if model.lower() != "none":
        start_filling(archive or data_folder() / "archive.db", model)


def writable(path: Path) -> None:
    """Find out before the work, not after it, whether a result can be written there; OSError says why not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    existed = path.exists()
    path.open("ab").close()
    if not existed:
        path.unlink()


def _write_kernel(found: RunResult, out: Path | None, task_name: str) -> Path:
    from .. import targets

    assert found.best is not None
    suffix = targets.get(found.best.target).suffix
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in task_name)
    path = out or Path("evokernel-out") / f"{safe}-{found.best.id[:8]}{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(found.best.text, encoding="utf-8")
    return path
