"""What lists and searches of the archive give: entries, by columns."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from ..records import Kernel, Status, Verdict
from . import words
from .database import Database
from .verdicts import Origin, load


@dataclass(frozen=True)
class Filters:
    """What rows to take; None takes all. `device`, `technique`: exact names. `min_speedup`: of the lower bound. `op`: words that the name
    or the source of the task must hold."""

    target: str | None = None
    device: str | None = None
    task_id: str | None = None
    technique: str | None = None
    min_speedup: float | None = None
    verified: bool = False
    kernel_id: str | None = None
    op: str | None = None


class _Decoded:
    """A verdict that is given as its record and decoded when it is first asked for: what is found is ranked by columns."""

    def __get__(self, entry: Entry | None, kind: type) -> Verdict | None:
        made: str | Verdict | None = entry.__dict__["verdict"] if entry else None  # without an entry: the field's default
        if entry and isinstance(made, str):
            entry.__dict__["verdict"] = made = load(made)
        return made if isinstance(made, Verdict) else None

    def __set__(self, entry: Entry, given: str | Verdict | None) -> None:
        entry.__dict__["verdict"] = given


@dataclass(frozen=True)
class Entry:
    """A kernel with one of its verdicts, or with none. `imported`: measured elsewhere, never by this archive's runs.
    `quarantined`: the reason why it may not seed any search. `verdict`: an ArchiveError where it cannot be read."""

    kernel: Kernel
    strategy: str
    origin: Origin
    task_id: str | None
    task_name: str | None
    imported: bool
    quarantined: str | None
    verdict: _Decoded = _Decoded()


@dataclass(frozen=True)
class Hit:
    """An entry that a search found; `why` says in words where the question matched. Higher scores are better."""

    entry: Entry
    score: float
    why: str


COLUMNS = (
    "k.id AS kernel_id, k.target, k.text, k.strategy, k.origin, k.licence, k.provenance, k.quarantined, "
    "v.task_id, t.name AS task_name, v.record, coalesce(v.imported, 0) AS imported"
)
JOINS = "kernels k LEFT JOIN builds b ON b.kernel_id = k.id LEFT JOIN verdicts v ON v.build_id = b.id LEFT JOIN tasks t ON t.id = v.task_id"


def list_entries(database: Database, filters: Filters, limit: int) -> list[Entry]:
    """Kernels with their verdicts, one entry a verdict, the fastest first."""
    condition, values = where(filters)
    order = "ORDER BY v.speedup_low IS NULL, v.speedup_low DESC, k.seq DESC LIMIT ?"
    return [entry(r) for r in database.rows(f"SELECT {COLUMNS} FROM {JOINS} WHERE {condition} {order}", *values, limit)]


def where(filters: Filters) -> tuple[str, list[object]]:
    """The SQL condition of the filters with its values."""
    parts: list[tuple[str, object]] = []
    for column, value in (
        ("k.target = ?", filters.target), ("v.device = ?", filters.device), ("v.task_id = ?", filters.task_id), ("k.id = ?", filters.kernel_id),
    ):  # fmt: skip
        if value is not None:
            parts.append((column, value))
    if filters.technique is not None:
        parts.append(("instr(' ' || v.features || ' ', ?) > 0", f" {filters.technique} "))
    if filters.min_speedup is not None:
        parts.append(("v.speedup_low >= ?", filters.min_speedup))
    if filters.op is not None:
        parts.append(("t.seq IN (SELECT rowid FROM task_words WHERE task_words MATCH ?)", words.match_all(words.words(filters.op))))
    if filters.verified:
        parts.append(("v.status = ?", Status.VERIFIED.value))
    return " AND ".join(["1", *(p for p, _ in parts)]), [v for _, v in parts]


def entry(row: sqlite3.Row) -> Entry:
    """The entry of a row with the columns of a list."""
    return Entry(
        Kernel(row["kernel_id"], row["target"], row["text"]), row["strategy"], Origin(row["origin"], row["licence"], row["provenance"]),
        row["task_id"], row["task_name"], bool(row["imported"]), row["quarantined"], row["record"],
    )  # fmt: skip


def fastest(database: Database, task_id: str, target: str, device: str | None) -> Entry | None:
    """The fastest kernel that was verified here (quarantined ones left out)."""
    condition, values = where(Filters(target=target, device=device, task_id=task_id, verified=True))
    row = database.row(
        f"SELECT {COLUMNS} FROM {JOINS} WHERE {condition} AND v.imported = 0 AND k.quarantined IS NULL ORDER BY v.speedup_low DESC, v.seq LIMIT 1",
        *values,
    )
    return entry(row) if row else None
