"""`evokernel archive list|show|search|lineage|runs|stats|check`."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .. import targets
from ..errors import UsageError
from .evolve import ArchivePath, Json
from .output import json_line, result, say

if TYPE_CHECKING:
    from ..archive.embed import TextModel
    from ..archive.retrieval import Question

FILL_S = 2.0  # how long a search may first make missing vectors

app = typer.Typer(no_args_is_help=True, help="Browse the innovation archive.")
KernelId = Annotated[str, typer.Argument(metavar="ID", help="A kernel's id, or its first digits.")]
MOST = 10**9  # of anything that is counted: SQLite's numbers end somewhere


def finite(number: float | None) -> float | None:
    """Refuse NaN and infinity as an option's value."""
    if number is not None and not math.isfinite(number):
        raise typer.BadParameter(f"{number} is not a number that can be compared")
    return number


Target = Annotated[str | None, typer.Option("--target", callback=lambda x: x if x is None else targets.get(x).name, help="Only for this target.")]
MinSpeedup = Annotated[float | None, typer.Option("--min-speedup", callback=finite, help="Only kernels at least this fast (lower bound).")]
Technique = Annotated[str | None, typer.Option("--technique", help="Only kernels that use this instruction feature.")]
Device = Annotated[str | None, typer.Option("--device", help="Only verdicts from this device.")]
Verified = Annotated[bool, typer.Option("--verified", help="Only verified kernels.")]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=MOST, help="At most so many rows.")]


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
def search(  # noqa: PLR0913, PLR0917 - each parameter is one option of the command
    words: Annotated[list[str], typer.Argument(metavar="WORDS", help="Words, or one kernel file (.cu, .cpp) or task file (.py) to compare with.")],
    op: Annotated[str | None, typer.Option("--op", help="Only kernels of tasks whose name or source holds these words.")] = None,
    target: Target = None, device: Device = None, technique: Technique = None, min_speedup: MinSpeedup = None, verified: Verified = False,
    limit: Limit = 20,
    text_model: Annotated[str, typer.Option(envvar="EVOKERNEL_TEXT_MODEL", metavar="MODEL", help="A folder, a Hub id, or `none`.")] = "",
    archive: ArchivePath = None, json: Json = False,
) -> None:  # fmt: skip
    """Find kernels by words and their meaning, or like a kernel's code or a task's; each hit says why."""
    from ..api import open_archive
    from ..archive.search import Filters
    from ..archive.words import QUERY_WORDS, unasked
    from ..view.tables import hits_text

    with open_archive(archive, create=False) as opened:
        question = _question(words)
        if many := unasked(question.words):
            say(f"the last {many} words are not looked for; full text takes {QUERY_WORDS}")
        model = _text_model(text_model) if question.text else None
        filled = opened.fill(model, FILL_S)
        if not filled.complete:
            say(f"some kernels have no vectors yet and are found by words alone{': ' * bool(filled.why)}{filled.why}")
        hits = opened.search(question, Filters(target, device, None, technique, min_speedup, verified, op=op), limit, model)
    result(hits_text(hits))
    if json:
        json_line({"hits": hits})


def _question(words: list[str]) -> Question:
    """What a person asks: one name of a file that ends so is the file."""
    from ..api import read_kernel
    from ..archive.retrieval import by_kernel, by_task, by_words

    file = Path(words[0])
    if len(words) == 1 and file.suffix in (".cu", ".cpp"):
        return by_kernel(read_kernel(file))
    if len(words) == 1 and file.suffix == ".py":
        if not file.is_file():
            raise UsageError(f"there is no task file {file}")
        return by_task(file.stem, file.read_text("utf-8", "replace"))
    return by_words(" ".join(words))


def _text_model(name: str) -> TextModel | None:
    from ..archive import embed

    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is there: one question is answered faster by one thread than by several
    why = embed.missing() if not name else None
    if why:
        say(f"searching by words and structure alone: {why}")
    return None if why or name.lower() == embed.NONE else embed.open_text_model(name)


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
def lineage(
    kernel: Annotated[str | None, typer.Argument(metavar="ID", help="A kernel's id, or its first digits.")] = None,
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="What each operator and stepping stone did in this run instead.")] = None,
    dot: Annotated[bool, typer.Option("--dot", help="Print all ancestors in Graphviz's language.")] = False,
    archive: ArchivePath = None, json: Json = False,
) -> None:  # fmt: skip
    """Show the path from the first draft to a kernel, with the gain of each step; or what made the difference in a run."""
    from ..api import open_archive
    from ..view.tables import contributions_text, lineage_text

    if bool(kernel) == bool(run) or (run and dot):
        raise UsageError("give a kernel's ID, or --run RUN (which has no --dot)")
    with open_archive(archive, create=False) as opened:
        if run:
            operators, stones = opened.contributions(opened.find_run(run))
            result(contributions_text(operators, "operator") + (f"\n\n{contributions_text(stones, 'stepping stone')}" if stones else ""))
            if json:
                json_line({"operators": operators, "stones": stones})
            return
        found = opened.find(kernel or "")
        graph = opened.lineage(found.id)
    from ..archive.lineage import dot as as_dot

    result(as_dot(graph) if dot else lineage_text(graph, found.id))
    if json:
        nodes = [{"kernel": node, **facts} for node, facts in graph.nodes(data=True)]
        json_line({"kernels": nodes, "edges": [{"parent": a, "child": b, **facts} for a, b, facts in graph.edges(data=True)]})


@app.command("import")
def import_(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A dataset's folder, a parquet file, or a folder with a manifest.")],
    licence: Annotated[str, typer.Option("--licence", metavar="SPDX", help="The licence of rows that name none, such as CC-BY-4.0.")] = "",
    archive: ArchivePath = None, json: Json = False,
) -> None:  # fmt: skip
    """Take in kernels from elsewhere: our dataset, the AI CUDA Engineer Archive, or a folder of `export folder`."""
    from ..api import open_archive
    from ..codec import encode
    from ..exports.imports import import_path

    if not path.exists():
        raise UsageError(f"there is no {path}; name a dataset's folder, a parquet file, or a folder of `evokernel export folder`")
    with open_archive(archive) as opened:
        done = import_path(opened, path, licence)
    lines = [f"{done.added} kernels imported, {done.known} were known", *(f"refused: {row}" for row in done.refused)]
    if done.left_out:
        lines.append(f"{done.left_out} rows were left out, which their authors did not find correct")
    if done.unlicensed:
        lines.append(f"{done.unlicensed} kernels name no licence; import again with it (the published AI CUDA Engineer Archive: --licence CC-BY-4.0)")
    result("\n".join(lines))
    if json:
        json_line({"status": "refused" if done.refused else "imported", **{k: v for k, v in encode(done).items() if k != "is"}})
    raise typer.Exit(1 if done.refused else 0)


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
    """Count what is in the archive, by target, device and technique, and what each operator gained and cost."""
    from ..api import open_archive
    from ..view.tables import stats_text

    with open_archive(archive, create=False) as opened:
        counted = opened.stats()
    result(stats_text(counted))
    if json:
        json_line(counted)


@app.command()
def check(
    repair: Annotated[bool, typer.Option("--repair", help="Repair what can be: keep a copy of the file first.")] = False,
    archive: ArchivePath = None, json: Json = False,
) -> None:  # fmt: skip
    """Verify the archive's integrity and rebuild what is derived."""
    from ..api import open_archive

    with open_archive(archive, create=False, shipped=False) as opened:
        repaired = opened.check(repair=True) if repair else []
        wrong = opened.check()
    result("\n".join([*repaired, *(wrong or ["sound"])]))
    if json:
        json_line({"status": "damaged" if wrong else "sound", "findings": wrong, "repairs": repaired})
    raise typer.Exit(1 if wrong else 0)
