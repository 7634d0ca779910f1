"""Stepping stones: archived kernels that may seed the search for a task. Only verified kernels do, quarantined ones never."""

from __future__ import annotations

import sqlite3
from collections import Counter
from dataclasses import dataclass

from .. import codec
from ..records import Kernel, Signature, Status, Task
from . import words
from .database import Database

_PER_TASK = 4
_TASKS = 200  # tasks whose signatures are compared; those that share words come first


@dataclass(frozen=True)
class Stone:
    """An archived kernel with the task it was verified on. `speedup_low` was measured there, perhaps on another device."""

    kernel: Kernel
    task_id: str
    task_name: str
    signature: Signature
    techniques: tuple[str, ...]
    speedup_low: float


_VERIFIED = (
    "FROM verdicts v JOIN builds b ON b.id = v.build_id JOIN kernels k ON k.id = b.kernel_id JOIN tasks t ON t.id = v.task_id "
    f"WHERE v.status = '{Status.VERIFIED}' AND k.quarantined IS NULL"
)
_COLUMNS = "k.id, k.target, k.text, t.record, v.features, max(v.speedup_low) AS speedup_low"


def retrieve(database: Database, task: Task, target: str, limit: int) -> tuple[Stone, ...]:
    """The stones to try for a task, best first: its own kernels, then those of the most similar tasks; within a task one of each set of
    techniques before the second of any, faster ones first."""
    order = _tasks_by_likeness(database, task, target)
    found: list[Stone] = []
    for task_id in order:
        rows = database.rows(
            f"SELECT {_COLUMNS} {_VERIFIED} AND t.id = ? AND k.target = ? GROUP BY k.id ORDER BY speedup_low DESC, k.seq", task_id, target
        )
        taken = {s.kernel.id for s in found}
        found += _apart([_stone(row) for row in rows if row["id"] not in taken])[:_PER_TASK]
        if len(found) >= limit:
            break
    return tuple(found[:limit])


def load(database: Database, kernel_id: str, task_id: str) -> Stone | None:
    """One stone by its kernel and task; None when it may not seed (any more)."""
    row = database.row(f"SELECT {_COLUMNS} {_VERIFIED} AND k.id = ? AND t.id = ? GROUP BY k.id", kernel_id, task_id)
    return _stone(row) if row else None


def likeness(one: Signature, other: Signature) -> float:
    """How alike two signatures are, 0 to 1: the share of tensors and scalars with a counterpart of the same role and kind."""
    first, second = _kinds(one), _kinds(other)
    return 2 * (first & second).total() / max(first.total() + second.total(), 1)


def _tasks_by_likeness(database: Database, task: Task, target: str) -> list[str]:
    match = words.match_any(words.telling_words(task))
    by_words = database.rows(
        "SELECT t.id FROM task_words w JOIN tasks t ON t.seq = w.rowid WHERE task_words MATCH ? ORDER BY bm25(task_words, 4.0, 1.0) LIMIT ?",
        match or '""', _TASKS,
    )  # fmt: skip
    place = {row["id"]: n for n, row in enumerate(by_words)}
    seeded = database.rows(f"SELECT DISTINCT t.id, t.record {_VERIFIED} AND k.target = ? ORDER BY t.seq DESC", target)
    near = sorted(seeded, key=lambda r: place.get(r["id"], _TASKS))[:_TASKS]
    score = {r["id"]: likeness(task.signature, codec.loads(Task, r["record"]).signature) + 1 / (1 + place.get(r["id"], _TASKS)) for r in near}
    return sorted(score, key=lambda i: (i != task.id, -score[i], i))


def _apart(stones: list[Stone]) -> list[Stone]:
    turns: Counter[tuple[str, ...]] = Counter()
    placed: list[tuple[int, Stone]] = []
    for stone in stones:
        placed.append((turns[stone.techniques], stone))
        turns[stone.techniques] += 1
    return [stone for _, stone in sorted(placed, key=lambda p: p[0])]


def _kinds(signature: Signature) -> Counter[tuple[str, ...]]:
    tensors = [(t.role.value, t.dtype, str(len(t.shape))) for t in signature.tensors]
    return Counter([*tensors, *(("scalar", type(s.value).__name__) for s in signature.scalars)])


def _stone(row: sqlite3.Row) -> Stone:
    task = codec.loads(Task, row["record"])
    kernel = Kernel(row["id"], row["target"], row["text"])
    features, low = row["features"], row["speedup_low"]
    return Stone(kernel, task.id, task.name, task.signature, tuple(features.split()), low)
