"""Shipped seeds: the folder of verified kernel files with `manifest.jsonl`, one JSON object a kernel, and its import into a store.

The verdicts in a manifest were measured on the machine that wrote it. They are imported as such and never count as measured here.
"""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .. import codec
from ..errors import ArchiveError
from ..kernelfile import KernelFileError, make_kernel
from ..records import Kernel, Task, Verdict, digest
from . import verdicts
from .store import Archive
from .verdicts import Origin

MANIFEST = "manifest.jsonl"
SUFFIXES = {"cpp": ".cpp", "cuda": ".cu"}  # of kernel files, by target


@dataclass(frozen=True)
class ManifestEntry:
    """One shipped kernel. `file` is relative to the manifest's folder; `task_hash` is the digest of the task file's source; `parents` are
    kernel ids of earlier entries; the device is the verdict's own."""

    file: str
    kernel_id: str
    target: str
    task_hash: str
    task: Task
    verdict: Verdict
    parents: tuple[str, ...]
    licence: str


@dataclass(frozen=True)
class Imported:
    """What an import did: kernels added and those `known` before, and the refused rows, each with its name and the reason."""

    added: int
    refused: tuple[str, ...] = ()
    known: int = 0


def shipped_root() -> Path | None:
    """The folder with the shipped manifest: the installed package's first, then the checkout's; None when there is neither."""
    package = Path(__file__).parents[1]
    return next((root for root in (package / "_data" / "archive", package.parent / "archive") if (root / MANIFEST).is_file()), None)


def import_shipped(archive: Archive, root: Path, kind: str = "shipped", licence: str = "") -> Imported:
    """Import the kernels of a manifest that are not in the store yet, as of the origin `kind`; a shipped one that was imported whole before costs
    one hash. `licence`: of the rows that name none.

    A row that is not what it says (text and id, source and hash, unknown parent) is refused by name; the others are imported.

    Raises:
        ArchiveError: the manifest cannot be read.
    """
    try:
        data = (root / MANIFEST).read_bytes()
    except OSError as error:
        raise ArchiveError(f"cannot read {root / MANIFEST}: {error}") from error
    manifest = hashlib.sha256(data).hexdigest()
    if kind == "shipped" and archive.database.row("SELECT 1 FROM imports WHERE manifest = ?", manifest):
        return Imported(0)
    found, refused = list[bool](), []
    with archive.database.write() as connection:
        for number, line in _lines(data.decode("utf-8", "replace")):
            try:
                entry = _entry(line, number)
                found.append(_import_entry(connection, root, entry, Origin(kind, entry.licence or licence, entry.file)))
            except ArchiveError as error:
                refused.append(str(error))
        if not refused:
            connection.execute("INSERT OR IGNORE INTO imports VALUES (?, ?)", (manifest, time.time()))
    return Imported(sum(found), tuple(refused), found.count(False))


def manifest_entry(root: Path, file: Path, task: Task, verdict: Verdict, *, parents: Sequence[str] = (), licence: str) -> ManifestEntry:
    """The manifest's row of one kernel file under `root`, judged with `verdict`.

    Raises:
        ArchiveError: the verdict is of another text, or not verified.
    """
    kernel = make_kernel(file.read_text("utf-8"), target_of(file))
    if not verdict.timing:
        raise ArchiveError(f"{file}: only verified kernels are shipped, this one is {verdict.status}: {verdict.message}")
    if verdict.kernel_id != kernel.id:
        raise ArchiveError(f"{file}: the verdict is of kernel {verdict.kernel_id}, the file's is {kernel.id}; judge the file again")
    name = file.resolve().relative_to(root.resolve()).as_posix()
    # The folders of the machine that judged are nobody's business.
    portable = replace(task, path=Path(task.path).name)
    return ManifestEntry(name, kernel.id, kernel.target, digest(task.source), portable, verdict, tuple(parents), licence)


def read_manifest(root: Path) -> list[ManifestEntry]:
    """The entries of a folder's manifest; none where there is no manifest yet.

    Raises:
        ArchiveError: a line is not an entry.
    """
    file = root / MANIFEST
    return read_entries(file) if file.exists() else []


def read_entries(file: Path) -> list[ManifestEntry]:
    """The entries of a file of the manifest's form.

    Raises:
        ArchiveError: a line is not an entry.
    """
    return [_entry(line, number) for number, line in _lines(file.read_text("utf-8"))]


def write_manifest(root: Path, entries: Sequence[ManifestEntry]) -> Path:
    """Write the manifest: by file name, parents before their children. The same entries give the same bytes.

    Raises:
        ArchiveError: a parent is no entry, or the parents go in a circle.
    """
    waiting = sorted(entries, key=lambda e: e.file)
    done: dict[str, ManifestEntry] = {}
    while waiting:
        ready = next((e for e in waiting if all(p in done for p in e.parents)), None)
        if ready is None:
            raise ArchiveError(f"{waiting[0].file}: its parents {', '.join(waiting[0].parents)} are not all earlier kernels of the manifest")
        done[ready.kernel_id] = ready
        waiting.remove(ready)
    fresh = root / (MANIFEST + ".new")
    fresh.write_text("".join(codec.dumps(e) + "\n" for e in done.values()), "utf-8")
    return fresh.replace(root / MANIFEST)


def target_of(file: Path) -> str:
    """The target of a kernel file by its suffix.

    Raises:
        ArchiveError: not a kernel file.
    """
    target = next((name for name, suffix in SUFFIXES.items() if suffix == file.suffix), None)
    if target is None:
        raise ArchiveError(f"{file}: a kernel file ends in {' or '.join(SUFFIXES.values())}")
    return target


def _lines(manifest: str) -> list[tuple[int, str]]:
    """Its lines that are not blank, with their numbers. Other ends of lines than "\\n" stand in texts."""
    return [(number, line) for number, line in enumerate(manifest.split("\n"), 1) if line.strip()]


def _entry(line: str, number: int) -> ManifestEntry:
    try:
        entry = codec.loads(ManifestEntry, line)
        codec.dumps(entry).encode()  # raises ValueError on what is no Unicode: JSON can spell it
    except ValueError as error:
        raise ArchiveError(f"line {number} of {MANIFEST} is not an entry: {error}") from error
    return entry


def _import_entry(connection: sqlite3.Connection, root: Path, entry: ManifestEntry, origin: Origin) -> bool:
    kernel = _checked_kernel(root, entry)
    unknown = [p for p in entry.parents if not connection.execute("SELECT 1 FROM kernels WHERE id = ?", (p,)).fetchone()]
    if unknown:
        raise ArchiveError(f"{entry.file}: its parent {unknown[0]} is neither in the archive nor earlier in the manifest")
    verdicts.insert_task(connection, entry.task)
    new = verdicts.insert_kernel(connection, kernel, origin)
    verdicts.offer(connection, entry.verdict, entry.task, imported=True)
    if new:
        verdicts.insert_edges(connection, kernel, entry.parents, None)
    return new


def _checked_kernel(root: Path, entry: ManifestEntry) -> Kernel:
    path = (root / entry.file).resolve()
    if not path.is_relative_to(root.resolve()):
        raise ArchiveError(f"{entry.file}: lies outside the archive's folder")
    try:
        kernel = make_kernel(path.read_text("utf-8"), entry.target)
    except (OSError, UnicodeDecodeError, KernelFileError) as error:
        raise ArchiveError(f"{entry.file}: cannot be read: {error}") from error
    if not kernel.id == entry.kernel_id == entry.verdict.kernel_id:
        raise ArchiveError(f"{entry.file}: the text no longer matches its id {entry.kernel_id}; judge it again and rewrite the manifest")
    if digest(entry.task.source) != entry.task_hash:
        raise ArchiveError(f"{entry.file}: the source of task {entry.task.name!r} no longer matches its hash; rewrite the manifest")
    return kernel
