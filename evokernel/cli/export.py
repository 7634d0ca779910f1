"""`evokernel export module|candidates`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError
from .evolve import ArchivePath, Json, writable
from .output import json_line, result

app = typer.Typer(no_args_is_help=True, help="Take kernels out of the archive.")


@app.command()
def module(
    kernel: Annotated[str, typer.Argument(metavar="ID", help="A kernel's id, or its first digits.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The Python file to write.")],
    task: Annotated[str | None, typer.Option("--task", metavar="ID", help="The task's id, where the kernel is verified for several.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over an existing file.")] = False,
    archive: ArchivePath = None,
    json: Json = False,
) -> None:
    """Write a drop-in torch.nn.Module: the same constructor and state_dict, the fast kernel where it fits."""
    from ..api import open_archive
    from ..exports.module import drop_in, verified_on, verified_task

    if file.exists() and not force:
        raise UsageError(f"{file} exists already; choose another name or give --force")
    writable(file)
    with open_archive(archive, create=False) as opened:
        found = opened.find(kernel)
        for_task = verified_task(opened, found, task)
        where = verified_on(opened, found, for_task)
    file.write_text(drop_in(for_task, found, where), encoding="utf-8")
    result(f"{file} written: `from {file.stem} import Model` takes the place of {for_task.name}'s Model")
    if json:
        json_line({"status": "written", "kernel_id": found.id, "task_id": for_task.id, "path": str(file)})


@app.command()
def candidates(
    task: Annotated[str, typer.Argument(metavar="TASK", help="A task file, or DIR:level/number.")],
    kernels: Annotated[list[Path], typer.Argument(metavar="KERNEL...", help="Kernel files.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file to write, one line a kernel.")],
    append: Annotated[bool, typer.Option("--append", help="Add to an existing file.")] = False,
    json: Json = False,
) -> None:
    """Write kernels with their task as lines for `evokernel judge --batch`, on this machine or another."""
    from ..batch import line_of, pack, read_candidates

    there = len(read_candidates(out)) if out.exists() and append else 0
    if out.exists() and not append:
        raise UsageError(f"{out} exists already; choose another name or give --append")
    lines = [line_of(c) for c in pack(task, kernels)]
    out.parent.mkdir(parents=True, exist_ok=True)
    torn = there and not out.read_bytes().endswith(b"\n")
    with out.open("ab") as file:
        file.write((b"\n" if torn else b"") + b"".join(lines))
    result(f"{out}: {len(lines)} candidates written, {there + len(lines)} in all; next: evokernel judge --batch {out} --out outcomes.jsonl")
    if json:
        json_line({"status": "written", "written": len(lines), "candidates": there + len(lines), "path": str(out)})
