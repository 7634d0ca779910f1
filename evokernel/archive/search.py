"""Lists and searches over the archive by columns and by words (SQLite FTS5, bm25)."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from ..records import Kernel, Status, Verdict
from . import words
from .database import Database
from .verdicts import Origin, load


@dataclass(frozen=True)
class Filters:
    """What rows to take; None takes all. `device`, `technique`: exact names. `min_speedup`: of the lower bound."""

    target: str | None = None
    device: str | None = None
    task_id: str | None = None
    technique: str | None = None
    min_speedup: float | None = None
    verified: bool = False
    kernel_id: str | None = None


@dataclass(frozen=True)
class Entry:
    """A kernel with one of its verdicts, or with none. `imported`: measured elsewhere, never by this archive's runs.
    `quarantined`: the reason why it may not seed any search."""

    kernel: Kernel
    strategy: str
    origin: Origin
    task_id: str | None
    task_name: str | None
    verdict: Verdict | None
    imported: bool
    quarantined: str | None


@dataclass(frozen=True)
class Hit:
    """An entry that a search found; `why` says in words where the question matched. Higher scores are better."""

    entry: Entry
    score: float
    why: str


_COLUMNS = (
    "k.id AS kernel_id, k.target, k.text, k.strategy, k.origin, k.licence, k.provenance, k.quarantined, "
    "v.task_id, t.name AS task_name, v.record, coalesce(v.imported, 0) AS imported"
)
_JOINS = "kernels k LEFT JOIN builds b ON b.kernel_id = k.id LEFT JOIN verdicts v ON v.build_id = b.id LEFT JOIN tasks t ON t.id = v.task_id"
# A word in a strategy or a task's name says more than one in a source or an instruction list. Scores are joined here, not in SQL: SQLite scans
# the list of scores anew for each row.
_KERNEL_SCORES = "SELECT rowid, -bm25(kernel_words, 2.0, 1.0) FROM kernel_words WHERE kernel_words MATCH ?"
_TASK_SCORES = "SELECT rowid, -bm25(task_words, 2.0, 1.0) FROM task_words WHERE task_words MATCH ?"


def list_entries(database: Database, filters: Filters, limit: int) -> list[Entry]:
    """Kernels with their verdicts, one entry a verdict, the fastest first."""
    condition, values = where(filters)
    order = "ORDER BY v.speedup_low IS NULL, v.speedup_low DESC, k.seq DESC LIMIT ?"
    return [entry(r) for r in database.rows(f"SELECT {_COLUMNS} FROM {_JOINS} WHERE {condition} {order}", *values, limit)]


def search(database: Database, question: str, filters: Filters, limit: int) -> list[Hit]:
    """Kernels whose strategy, techniques or tasks hold words of the question, the best match first, each kernel once."""
    asked = words.words(question)
    match = words.match_any(asked)
    if not match:
        return []
    kernels, tasks = ({r[0]: r[1] for r in database.rows(query, match)} for query in (_KERNEL_SCORES, _TASK_SCORES))
    condition, values = where(filters)
    rows = database.rows(
        f"SELECT k.seq AS kernel, v.seq AS verdict, t.seq AS task FROM {_JOINS} WHERE {condition} ORDER BY v.speedup_low DESC, k.seq", *values
    )
    scored = [(kernels.get(r["kernel"], 0.0) + tasks.get(r["task"], 0.0), r) for r in rows if r["kernel"] in kernels or r["task"] in tasks]
    best: dict[int, tuple[float, sqlite3.Row]] = {}
    for score, row in sorted(scored, key=lambda s: -s[0]):
        best.setdefault(row["kernel"], (score, row))
    return [_hit(database, row, score, asked) for score, row in list(best.values())[:limit]]


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
    if filters.verified:
        parts.append(("v.status = ?", Status.VERIFIED.value))
    return " AND ".join(["1", *(p for p, _ in parts)]), [v for _, v in parts]


def entry(row: sqlite3.Row) -> Entry:
    """The entry of a row with the columns of a list."""
    return Entry(
        Kernel(row["kernel_id"], row["target"], row["text"]), row["strategy"], Origin(row["origin"], row["licence"], row["provenance"]),
        row["task_id"], row["task_name"], load(row["record"]) if row["record"] else None, bool(row["imported"]), row["quarantined"],
    )  # fmt: skip


def fastest(database: Database, task_id: str, target: str, device: str | None) -> Entry | None:
    """The fastest kernel that was verified here (quarantined ones left out)."""
    condition, values = where(Filters(target=target, device=device, task_id=task_id, verified=True))
    row = database.row(
        f"SELECT {_COLUMNS} FROM {_JOINS} WHERE {condition} AND v.imported = 0 AND k.quarantined IS NULL ORDER BY v.speedup_low DESC, v.seq LIMIT 1",
        *values,
    )
    return entry(row) if row else None


def _hit(database: Database, found: sqlite3.Row, score: float, asked: list[str]) -> Hit:
    (row,) = database.rows(f"SELECT {_COLUMNS} FROM {_JOINS} WHERE k.seq = ? AND v.seq IS ?", found["kernel"], found["verdict"])
    kernel = database.row("SELECT strategy, techniques FROM kernel_words WHERE rowid = ?", found["kernel"])
    task = database.row("SELECT name, source FROM task_words WHERE rowid = ?", found["task"])
    places = [(place, words.matched(asked, text[column])) for text, column, place in (
        (kernel, "strategy", "the strategy"), (kernel, "techniques", "the compiled code"),
        (task, "name", "the task's name"), (task, "source", "the task's source"),
    ) if text]  # fmt: skip
    return Hit(entry(row), score, "; ".join(f"{', '.join(hits)} in {place}" for place, hits in places if hits))
