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
_JOINS = (
    "kernels k LEFT JOIN (builds b JOIN verdicts v ON v.build_id = b.id) ON b.kernel_id = k.id LEFT JOIN tasks t ON t.id = v.task_id"
)
# A word in a strategy or a task's name says more than one in a source or an instruction list.
_FOUND = (
    "WITH kw AS MATERIALIZED (SELECT rowid AS seq, -bm25(kernel_words, 2.0, 1.0) AS score FROM kernel_words WHERE kernel_words MATCH ?), "
    "tw AS MATERIALIZED (SELECT rowid AS seq, -bm25(task_words, 2.0, 1.0) AS score FROM task_words WHERE task_words MATCH ?) "
)


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
    condition, values = where(filters)
    rows = database.rows(
        f"{_FOUND} SELECT {_COLUMNS}, coalesce(kw.score, 0.0) + coalesce(tw.score, 0.0) AS score, k.seq AS kseq, t.seq AS tseq "
        f"FROM {_JOINS} LEFT JOIN kw ON kw.seq = k.seq LEFT JOIN tw ON tw.seq = t.seq WHERE (kw.seq IS NOT NULL OR tw.seq IS NOT NULL) "
        f"AND {condition} ORDER BY score DESC, v.speedup_low DESC, k.seq",
        match, match, *values,
    )  # fmt: skip
    first = {row["kernel_id"]: row for row in reversed(rows)}
    best = sorted(first.values(), key=lambda r: -r["score"])[:limit]
    return [Hit(entry(row), row["score"], _why(database, row, asked)) for row in best]


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


def _why(database: Database, row: sqlite3.Row, asked: list[str]) -> str:
    kernel = database.row("SELECT strategy, techniques FROM kernel_words WHERE rowid = ?", row["kseq"])
    task = database.row("SELECT name, source FROM task_words WHERE rowid = ?", row["tseq"])
    places = [(place, found[column]) for found, column, place in (
        (kernel, "strategy", "the strategy"), (kernel, "techniques", "the compiled code"),
        (task, "name", "the task's name"), (task, "source", "the task's source"),
    ) if found]  # fmt: skip
    hits = [(place, words.matched(asked, indexed)) for place, indexed in places]
    return "; ".join(f"{', '.join(found)} in {place}" for place, found in hits if found)
