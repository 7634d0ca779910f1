"""`evokernel ask` and `evokernel tell`: a run whose model, judge or both are reached by file."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UsageError
from .evolve import ArchivePath, Force, Json, TaskTimeout, writable
from .output import json_line, result

if TYPE_CHECKING:
    from ..archive.store import Archive
    from ..records import BatchOutcome
    from ..search.post import Answer

RunId = Annotated[str, typer.Argument(metavar="RUN", help="A run's id, or its first digits.")]


def ask(  # noqa: PLR0913, PLR0917 - each parameter is one option of the command
    run: Annotated[str, typer.Argument(metavar="RUN|TASK", help="A run's id, or a task file: then a new run is started.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the prompts go, one JSON object a line.")],
    number: Annotated[int, typer.Option("-n", metavar="N", min=1, help="How many prompts.")] = 4,
    gpu: Annotated[str | None, typer.Option(metavar="NAME", help="For a new run: the GPU it is for, which need not be here (H200).")] = None,
    candidates: Annotated[int, typer.Option(metavar="N", help="For a new run: how many kernels may be measured.")] = 40,
    archive: ArchivePath = None,
    task_timeout: TaskTimeout = 60.0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Write the next prompts of a run into a file, for a person, an agent or a batch service to answer."""
    from ..api import Session, begin_by_post, open_archive
    from ..codec import encode
    from ..search.post import ask as asked

    writable(out)
    with open_archive(archive) as opened:
        new = Path(run).is_file() or ":" in run
        run_id = begin_by_post(opened, run, gpu, candidates, Session(task_timeout_s=task_timeout, force=force)) if new else _run_id(opened, run)
        questions = asked(opened, run_id, number)
    out.write_text("".join(jsonlib.dumps(encode(q)) + "\n" for q in questions), encoding="utf-8")
    more = "" if len(questions) == number else "; the rest has to wait for verdicts (evokernel tell) or for the judge (evokernel resume)"
    answer = '{"number": N, "text": "..."}'
    result(f"run {run_id}: {len(questions)} prompts in {out}{more}. Answer with lines {answer}, then: evokernel tell {run_id} FILE")
    if json:
        json_line({"status": "asked", "run": run_id, "prompts": len(questions), "path": str(out)})


def tell(
    run: RunId,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Answers, or outcomes of `evokernel judge --batch`, one a line.")],
    candidates: Annotated[Path | None, typer.Option(metavar="FILE", help="Write what waits for a verdict, for `evokernel judge --batch`.")] = None,
    archive: ArchivePath = None,
    json: Json = False,
) -> None:
    """Take answers to prompts, or verdicts on answers, into a run."""
    from ..api import open_archive
    from ..batch import line_of
    from ..search.post import candidates as waiting_of
    from ..search.post import tell as told_of

    if candidates:
        writable(candidates)
    with open_archive(archive, create=False) as opened:
        run_id = _run_id(opened, run)
        told = told_of(opened, run_id, list(_lines(file)))
        waiting = waiting_of(opened, run_id)
    if candidates:
        candidates.write_bytes(b"".join(map(line_of, waiting)))
    for reason in told.passed_over:
        result(f"passed over: {reason}")
    following = f"; {len(waiting)} wait for a verdict" + (f", in {candidates}" if candidates else "") if waiting else ""
    result(f"run {run_id}: {told.answers} answers ({told.without_kernel} without a kernel), {told.verdicts} verdicts{following}")
    if json:
        json_line({"status": "told", "run": run_id, **asdict(told), "waiting": len(waiting)})
    raise typer.Exit(1 if told.passed_over and not (told.answers or told.verdicts) else 0)


def _run_id(archive: Archive, prefix: str) -> str:
    found = [r.id for r in archive.runs() if r.id.startswith(prefix)]
    if len(found) != 1:
        raise UsageError(f"{len(found)} runs begin with {prefix!r}; `evokernel archive runs` lists them")
    return found[0]


def _lines(file: Path) -> Iterator[Answer | BatchOutcome]:
    from ..codec import decode
    from ..records import BatchOutcome
    from ..search.post import Answer

    for number, line in enumerate(file.read_text(encoding="utf-8", errors="surrogateescape").split("\n"), 1):
        try:
            value = jsonlib.loads(line) if line.strip() else None
            if isinstance(value, dict):
                known = Answer.__dataclass_fields__
                yield decode(BatchOutcome, value) if "candidate" in value else decode(Answer, {k: v for k, v in value.items() if k in known})
            elif line.strip():
                raise ValueError("not an object")
        except (ValueError, RecursionError) as error:
            form = '{"number": N, "text": "..."} or an outcome of `evokernel judge --batch`'
            raise UsageError(f"{file}, line {number}: {error}; write {form}. Nothing was taken") from error
