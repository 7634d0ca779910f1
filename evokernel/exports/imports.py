"""`evokernel archive import`: kernels from elsewhere, with their licence and provenance. Nothing imported counts as measured here.

- Our own dataset: kernels with their verdicts, lineage and quarantine, as imported ones.
- The published AI CUDA Engineer Archive (or a file of its columns): its kernels are torch extensions, no kernel files of ours. They are kept as
  quarantined texts, so that searches find them and nothing is seeded by them; what their authors measured stands in their leading comment and is
  no verdict. Rows that their authors did not find correct are left out.
- A folder with a manifest, as `evokernel export folder` writes it.

Each batch of rows is one transaction; doing it again adds nothing. The data is not trusted: a row that is not what it says is refused by name.
"""

from __future__ import annotations

import heapq
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from .. import codec
from ..archive.shipped import MANIFEST, import_shipped
from ..archive.store import Archive
from ..archive.verdicts import Origin, insert_edges, insert_kernel, insert_task, offer
from ..errors import ArchiveError, UsageError
from ..kernelfile import KernelFileError, make_kernel
from ..records import Kernel, Task, Verdict, digest
from .columns import DATASET, OURS, PAIRS, PUBLISHED
from .selection import check_licence

_BATCH = 128
_FOREIGN = "a torch extension, no kernel file: it cannot be judged as it is"
_MALFORMED = (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError)  # what reading hostile values may raise
_CLAIMED = re.compile(r"[^\w .,+-]")
_KINDS: dict[str, tuple[Any, str]] = {"string": (str, "a text"), "list": (list, "a list"), "float64": (int | float, "a number")}


@dataclass(frozen=True)
class Result:
    """Kernels: `added` ones, of which `unlicensed` name no licence, and those `known` before. Rows: `left_out`, which their authors did not find
    correct, and `refused`, each with the reason."""

    added: int
    known: int = 0
    left_out: int = 0
    unlicensed: int = 0
    refused: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Item:
    """One checked row. `parents`: kernel ids."""

    kernel: Kernel
    origin: Origin
    task: Task | None = None
    verdict: Verdict | None = None
    parents: tuple[str, ...] = ()
    quarantined: str | None = None


def import_path(archive: Archive, path: Path, licence: str = "") -> Result:
    """Import a dataset folder, a parquet file, or a folder with a manifest.

    Args:
        licence: of the rows that name none ("": the licence that a dataset's card names, if any).

    Raises:
        UsageError: nothing of these is there, or the licence is no SPDX expression.
        ArchiveError: a file cannot be read, or SQLite failed; whole batches stay.
    """
    check_licence(licence)
    if (path / MANIFEST).is_file():
        done = import_shipped(archive, path, "import", licence)
        return Result(done.added, done.known, refused=done.refused)
    if path.suffix in (".db", ".sqlite") and path.is_file():
        raise UsageError(f"{path} is a database; if it is an archive, `evokernel archive merge {path}` takes it in")
    files = [path] if path.is_file() else sorted(path.rglob("*.parquet"))
    if not files:
        raise UsageError(f"{path} holds neither {MANIFEST} nor parquet files; name a dataset's folder, or a folder of `evokernel export folder`")
    readers = [_Reader(file, path, licence or _card_licence(path)) for file in files]
    wanted = [reader for reader in readers if not reader.pairs]
    if not wanted:
        raise UsageError(f"{path} holds only pairs; import the dataset's folder, which holds the kernels")
    counted: Counter[str] = Counter(added=0)
    refused: list[str] = []
    seen: set[str] = set()
    # By the number of the row, over all files: parents come before their children, whatever their splits.
    rows = heapq.merge(*(reader.rows() for reader in wanted), key=lambda row: row[0])
    while batch := list(islice(rows, _BATCH)):
        items = []
        for _, reader, where, row in batch:
            try:
                items.append(reader.item(row) if row is not None else _no_text())
            except (ArchiveError, KernelFileError, *_MALFORMED) as error:
                refused.append(f"{where}: {str(error) or type(error).__name__}")
        counted.update(_store(archive, [item for item in items if item], seen))
        counted["left_out"] += items.count(None)
    return Result(**counted, refused=tuple(refused))


class _Reader:
    """One parquet file, of our layout or the published one."""

    def __init__(self, file: Path, root: Path, licence: str) -> None:
        from pyarrow import ArrowException, parquet

        self.file, self._licence = file, licence
        try:
            self._parquet: Any = parquet.ParquetFile(file)
            names = set(self._parquet.schema_arrow.names)
        except (ArrowException, OSError, UnicodeDecodeError) as error:
            raise ArchiveError(f"{file} cannot be read as a parquet file: {error}") from error
        self.pairs = names >= {"slow", "fast", "diff"} and names <= set(PAIRS)
        self._ours = names >= set(OURS)
        self._name = (root if root.is_dir() else file).resolve().name
        if not (self.pairs or self._ours or names >= {"Op_Name", "Kernel_Name", "CUDA_Code", "Correct"}):
            raise UsageError(f"{file} has the columns neither of our dataset nor of the AI CUDA Engineer Archive (Op_Name, CUDA_Code, ...)")
        self._columns = [n for n in self._parquet.schema_arrow.names if n in OURS or n in PUBLISHED]

    def rows(self) -> Iterator[tuple[int, _Reader, str, dict[str, Any] | None]]:
        """Number of the row in the dataset, this, the row's name for messages, and its values (None: a text is no Unicode)."""
        number = 0
        for batch in self._batches():
            for i in range(batch.num_rows):
                try:
                    (row,) = batch.slice(i, 1).to_pylist()
                except UnicodeDecodeError:
                    row = None
                where = f"{self.file.name}, row {number}" + (f" ({_plain(row.get('kernel_id') or row.get('Kernel_Name'))})" if row else "")
                key = row.get("__index_level_0__") if row and self._ours else None
                yield key if isinstance(key, int) else number, self, where, row
                number += 1

    def _batches(self) -> Iterator[Any]:
        from pyarrow import ArrowException

        try:
            yield from self._parquet.iter_batches(_BATCH, columns=self._columns)
        except (ArrowException, OSError) as error:
            raise ArchiveError(f"{self.file} is damaged: {error}; get it again, what was read before is kept") from error

    def item(self, row: dict[str, Any]) -> _Item | None:
        """Raises ArchiveError, KernelFileError or one of _MALFORMED where the row is not what it says; None: its authors did not find it correct."""
        return self._own(row) if self._ours else self._published(row)

    def _own(self, row: dict[str, Any]) -> _Item:
        _check(row, ("kernel_id", "kernel_file", "target"), ("task", "verdict", "parents", "licence", "origin", "provenance", "quarantined"))
        kernel = make_kernel(row["kernel_file"], row["target"])
        if kernel.id != row["kernel_id"]:
            raise ArchiveError(f"its text has the id {kernel.id}")
        task = verdict = None
        if row["task"] is not None:
            _check(row, ("PyTorch_Code_Module",))
            task = replace(codec.loads(Task, row["task"]), source=row["PyTorch_Code_Module"])
            if digest(task.source, codec.dumps(task.options), codec.dumps(task.variants)) != task.id:
                raise ArchiveError(f"the source of task {task.name!r} no longer matches its id {task.id}")
        if row["verdict"] is not None:
            verdict = codec.loads(Verdict, row["verdict"])
            if verdict.kernel_id != kernel.id or task is None:
                raise ArchiveError("its verdict is of another kernel, or of no task")
        (codec.dumps(task) + codec.dumps(verdict)).encode()  # raises ValueError on what is no Unicode: JSON can spell it
        source = " ".join(str(part) for part in (f"{self._name}:", row["origin"], row["provenance"]) if part)
        parents = tuple(str(parent) for parent in row["parents"] or ())
        return _Item(kernel, Origin("import", row["licence"] or self._licence, source), task, verdict, parents, row["quarantined"])

    def _published(self, row: dict[str, Any]) -> _Item | None:
        if row["Correct"] not in (None, False, True):  # 0 and 1 are equal to these
            raise ArchiveError(f"column Correct holds {row['Correct']!r:.60}, not true or false")
        if not row["Correct"]:
            return None
        _check(row, ("CUDA_Code", "Op_Name", "Kernel_Name"), ("CUDA_Speedup_Native",))
        text, names = row["CUDA_Code"], [_plain(row[n]) for n in ("Op_Name", "Kernel_Name")]
        ratio = row.get("CUDA_Speedup_Native")
        claim = f" Its authors measured {float(ratio):.3g}x against eager PyTorch; not verified." if ratio is not None else ""
        kernel = make_kernel(f"// {names[0]}: {names[1]}, {_FOREIGN}.{claim}\n\n{text}", "cuda")
        place = " ".join(f"{key} {row[column]}" for key, column in (("level", "Level_ID"), ("task", "Task_ID")) if row.get(column) is not None)
        return _Item(kernel, Origin("import", self._licence, f"{self._name}: {place} {names[1]}"), quarantined=_FOREIGN)


def _check(row: dict[str, Any], needed: Sequence[str], others: Sequence[str] = ()) -> None:
    """Raises: ArchiveError: a needed column is missing or empty, or one is not of its kind."""
    for name in (*needed, *others):
        value, (kinds, called) = row.get(name), _KINDS[DATASET[name]]
        if name in needed and (value is None or (isinstance(value, str) and not value.strip())):
            raise ArchiveError(f"column {name} is missing or empty")
        if value is not None and not isinstance(value, kinds):
            raise ArchiveError(f"column {name} holds {value!r:.60}, not {called}")


def _store(archive: Archive, items: Iterable[_Item], seen: set[str]) -> Counter[str]:
    """One transaction. `seen`: the ids of kernels that were counted before, to which it adds."""
    counted: Counter[str] = Counter()
    with archive.database.write() as connection:
        for item in items:
            new = insert_kernel(connection, item.kernel, item.origin)
            counted["added" if new else "known"] += item.kernel.id not in seen
            counted["unlicensed"] += new and not item.origin.licence
            seen.add(item.kernel.id)
            if new:
                insert_edges(connection, item.kernel, tuple(p for p in item.parents if _there(connection, p, item.kernel.id)), None)
            connection.execute("UPDATE kernels SET quarantined = coalesce(quarantined, ?) WHERE id = ?", (item.quarantined, item.kernel.id))
            if item.task:
                insert_task(connection, item.task)
            if item.task and item.verdict:
                offer(connection, item.verdict, item.task, imported=True)
    return counted


def _there(connection: sqlite3.Connection, parent: str, child: str) -> bool:
    return parent != child and connection.execute("SELECT 1 FROM kernels WHERE id = ?", (parent,)).fetchone() is not None


def _card_licence(path: Path) -> str:
    """What the dataset's card says in its head; "" where it says nothing."""
    try:
        head = (path / "README.md").read_text("utf-8", "replace").split("---")[1]
    except (OSError, IndexError):
        return ""
    found = re.search(r"(?m)^license:[ \t]*([\w.+-]+)[ \t]*$", head)
    return found[1] if found and found[1] != "other" else ""


def _plain(value: object) -> str:
    """A name that is safe in a comment line."""
    return _CLAIMED.sub(" ", str(value))[:200].strip()


def _no_text() -> _Item:
    raise ArchiveError("a text is not valid Unicode")
