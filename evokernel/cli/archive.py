"""`evokernel archive list|show|search|lineage|runs|stats|check`."""

from __future__ import annotations

from typing import Annotated

import typer

from .evolve import ArchivePath, Json
from .output import json_line, result

app = typer.Typer(no_args_is_help=True, help="Browse the innovation archive.")
KernelId = Annotated[str, typer.Argument(metavar="ID", help="A kernel's id, or its first digits.")]
Target = Annotated[str | None, typer.Option("--target", help="Only kernels for this target.")]
MinSpeedup = Annotated[float | None, typer.Option("--min-speedup", help="Only kernels with at least this speedup (lower bound).")]
Technique = Annotated[str | None, typer.Option("--technique", help="Only kernels that use this instruction feature.")]
Device = Annotated[str | None, typer.Option("--device", help="Only verdicts from this device.")]
Verified = Annotated[bool, typer.Option("--verified", help="Only verified kernels.")]
Limit = Annotated[int, typer.Option("--limit", metavar="N", help="At most so many rows.")]


@app.command("list")
def list_(
    target: Target = None, device: Device = None, technique: Technique = None, min_speedup: MinSpeedup = None, verified: Verified = False,
    limit: Limit = 50, archive: ArchivePath = None, json: Json = False,
) -> None:  # fmt: skip
    """List kernels, the fastest first."""
    from ..api import open_archive
    from ..archive.search import Filters
    from ..view.tables import entries_text

    with open_archive(archive, create=False) as opened:
        entries = opened.entries(Filters(target, device, None, technique, min_speedup, verified), limit)
    result(entries_text(entries))
    if json:
        json_line({"kernels": entries})


@app.command()
def search(
    words: Annotated[list[str], typer.Argument(metavar="WORDS", help="What to look for.")],
    target: Target = None, technique: Technique = None, min_speedup: MinSpeedup = None, verified: Verified = False,
    limit: Limit = 20, archive: ArchivePath = None, json: Json = False,
) -> None:  # fmt: skip
    """Find kernels by words of their strategy, techniques and tasks."""
    from ..api import open_archive
    from ..archive.search import Filters
    from ..view.tables import hits_text

    with open_archive(archive, create=False) as opened:
        hits = opened.search(" ".join(words), Filters(target, None, None, technique, min_speedup, verified), limit)
    result(hits_text(hits))
    if json:
        json_line({"hits": hits})


@app.command()
def show(kernel: KernelId, archive: ArchivePath = None, json: Json = False) -> None:
    """Show a kernel file and its verdicts."""
    from ..api import open_archive
    from ..archive.search import Filters
    from ..view.tables import kernel_text

    with open_archive(archive, create=False) as opened:
        found = opened.find(kernel)
        entries = opened.entries(Filters(kernel_id=found.id))
    result(kernel_text(found, entries))
    if json:
        json_line({"kernel": found, "verdicts": entries})


@app.command()
def lineage(kernel: KernelId, archive: ArchivePath = None) -> None:
    """Show the path from the first draft to a kernel, with the gain of each step."""
    from ..api import open_archive
    from ..view.tables import lineage_text

    with open_archive(archive, create=False) as opened:
        found = opened.find(kernel)
        graph = opened.lineage(found.id)
    result(lineage_text(graph, found.id))


@app.command()
def runs(archive: ArchivePath = None, json: Json = False) -> None:
    """List runs, the newest first; those that are not over can be resumed."""
    from ..api import open_archive
    from ..view.tables import runs_text

    with open_archive(archive, create=False) as opened:
        rows = opened.runs()
    result(runs_text(rows))
    if json:
        json_line({"runs": rows})


@app.command()
def stats(archive: ArchivePath = None, json: Json = False) -> None:
    """Count what is in the archive."""
    from ..api import open_archive
    from ..codec import encode

    with open_archive(archive, create=False) as opened:
        counted = opened.stats()
    result("\n".join(f"{name}: {value}" for name, value in encode(counted).items() if name != "is"))
    if json:
        json_line(counted)


@app.command()
def check(archive: ArchivePath = None, json: Json = False) -> None:
    """Verify the archive's integrity and rebuild what is derived."""
    from ..api import open_archive

    with open_archive(archive, create=False) as opened:
        wrong = opened.check()
    result("\n".join(wrong) if wrong else "sound")
    if json:
        json_line({"status": "damaged" if wrong else "sound", "findings": wrong})
    raise typer.Exit(1 if wrong else 0)
