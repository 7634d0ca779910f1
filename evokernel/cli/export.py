"""`evokernel export dataset|folder|module|kernelbench|candidates`."""

from __future__ import annotations

import keyword
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError
from .evolve import ArchivePath, Json, writable
from .output import json_line, result

app = typer.Typer(no_args_is_help=True, help="Take kernels out of the archive.")
KernelId = Annotated[str, typer.Argument(metavar="ID", help="A kernel's id, or its first digits.")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="The Python file to write.")]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder to make.")]
TaskId = Annotated[str | None, typer.Option("--task", metavar="TASK", help="The task's name or id, if the kernel is verified for several.")]
Target = Annotated[str | None, typer.Option("--target", help="Only kernels for this target.")]
DeviceName = Annotated[str | None, typer.Option("--device", help="Only verdicts from this device.")]
Everything = Annotated[bool, typer.Option("--all", help="Also kernels of unknown licence, quarantined ones, and those judged never or by force.")]
Licence = Annotated[str, typer.Option("--licence", metavar="SPDX", help="The licence of your own kernels, such as Apache-2.0.")]
Force = Annotated[bool, typer.Option("--force", help="Write over an existing file.")]


@app.command()
def dataset(  # noqa: PLR0913, PLR0917 - each parameter is one option of the command
    folder: Folder, target: Target = None, device: DeviceName = None, everything: Everything = False, licence: Licence = "",
    pairs: Annotated[bool, typer.Option("--pairs", help="Also (slow, fast, diff) rows from lineage.")] = False,
    push: Annotated[str | None, typer.Option("--push", metavar="REPO", help="Then upload it to this dataset of the Hugging Face Hub.")] = None,
    archive: ArchivePath = None, json: Json = False,
) -> None:  # fmt: skip
    """Write a Hugging Face dataset: kernels, failed ones too, with all that was measured of them."""
    from ..api import open_archive
    from ..exports.dataset import check_name, write_dataset
    from ..exports.dataset import push as upload
    from ..exports.selection import Selection

    if push is not None:
        check_name(push)
    with open_archive(archive, create=False) as opened:
        written = write_dataset(opened, folder, Selection(target, device, licence, everything), with_pairs=pairs)
    lines = [f"{folder} written: {', '.join(f'{n} rows in {name}' for name, n in written.rows.items())}", *_left_out(written.left_out)]
    if pairs and not any(name.startswith("pairs/") for name in written.rows):
        lines.append("no pairs: no kernel here was made from another and told apart from it by measurement")
    result("\n".join([*lines, f'next: datasets.load_dataset("{folder}", "kernels")']))
    address = upload(folder, push) if push else None
    if address:
        result(f"pushed to {address}")
    if json:
        json_line({"status": "written", "path": str(folder), "rows": written.rows, "left_out": written.left_out, "pushed": address})


@app.command()
def folder(
    folder: Folder, target: Target = None, device: DeviceName = None, everything: Everything = False, licence: Licence = "",
    archive: ArchivePath = None, json: Json = False,
) -> None:  # fmt: skip
    """Write verified kernels as plain files with a manifest; `archive import` reads it back."""
    from ..api import open_archive
    from ..exports.folder import write_folder
    from ..exports.selection import Selection

    with open_archive(archive, create=False) as opened:
        number, left_out = write_folder(opened, folder, Selection(target, device, licence, everything, verified=True))
    result("\n".join([f"{folder} written: {number} kernels", *_left_out(left_out)]))
    if json:
        json_line({"status": "written", "path": str(folder), "kernels": number, "left_out": left_out})


@app.command()
def module(
    kernels: Annotated[list[str], typer.Argument(metavar="ID...", help="Kernels' ids, or their first digits; a call takes the first that fits.")],
    file: File, task: TaskId = None, force: Force = False, archive: ArchivePath = None, json: Json = False,
) -> None:  # fmt: skip
    """Write a drop-in torch.nn.Module: the same constructor and state_dict, the fast kernel where it fits."""
    from ..api import open_archive
    from ..exports.module import drop_in_of, verified

    if file.suffix != ".py" or not file.stem.isidentifier() or keyword.iskeyword(file.stem):
        raise UsageError(f"{file.name!r} cannot be imported; give a name such as fast_model.py")
    _free(file, force)
    with open_archive(archive, create=False) as opened:
        found = [verified(opened, kernel, task) for kernel in kernels]
    file.write_text(drop_in_of([(f.task, f.kernel, f.environment) for f in found]), encoding="utf-8")
    for_task = found[0].task
    said = f"{file} written: `from {file.stem} import Model` takes the place of {for_task.name}'s Model"
    result("\n".join([said, *(f"{f.kernel.id}: {f.environment.caveat}" for f in found if f.environment.forced)]))
    if json:
        ids = [f.kernel.id for f in found]
        json_line({"status": "written", "kernel_id": ids[0], "kernel_ids": ids, "task_id": for_task.id, "path": str(file)})


@app.command()
def kernelbench(kernel: KernelId, file: File, task: TaskId = None, force: Force = False, archive: ArchivePath = None, json: Json = False) -> None:
    """Write a CUDA kernel as the `ModelNew` file that KernelBench evaluates."""
    from ..api import open_archive
    from ..exports.kernelbench import kernelbench_file
    from ..exports.module import verified

    _free(file, force)
    with open_archive(archive, create=False) as opened:
        found = verified(opened, kernel, task)
    file.write_text(kernelbench_file(found.task, found.kernel, found.environment), encoding="utf-8")
    result(f"{file} written: ModelNew for {found.task.name}, built with load_inline by nvcc where it is used\n{found.environment.caveat}".strip())
    if json:
        json_line({"status": "written", "kernel_id": found.kernel.id, "task_id": found.task.id, "path": str(file)})


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


def _free(file: Path, force: bool) -> None:
    if file.exists() and not force:
        raise UsageError(f"{file} exists already; choose another name or give --force")
    writable(file)


def _left_out(reasons: dict[str, int]) -> list[str]:
    return [f"left out: {n} kernels, {why}" for why, n in reasons.items()]
