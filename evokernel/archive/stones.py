"""Stepping stones: archived kernels that may seed the search for a task. Only verified kernels do; never quarantined ones or by force."""

from __future__ import annotations

import json
import math
import sqlite3
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..records import Kernel, Proposal, Signature, Status, Task
from . import words
from .database import Database
from .verdicts import PROVEN, load_task

EARLY, LATE = "early", "late"
EARLY_PROPOSALS = 12  # of a run: stones as they are and first drafts
_PER_TASK = 4
_NEAREST = 24  # tasks whose kernels are weighed
_POOL_SIZE = 32  # kernels of each, the fastest
_ELSEWHERE = 0.7  # what a kernel counts that was never measured on this device
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
    f"WHERE v.status = '{Status.VERIFIED}' AND k.quarantined IS NULL AND {PROVEN.format('v')}"
)
_COLUMNS = "k.id, k.target, k.text, t.record, v.features, max(v.speedup_low) AS speedup_low"
_POOL = (
    f"SELECT k.id, v.features, max(v.speedup_low) AS speedup_low, total(v.device = ?) > 0 AS here {_VERIFIED} AND t.id = ? AND k.target = ? "
    f"GROUP BY k.id ORDER BY speedup_low DESC, k.seq LIMIT {_POOL_SIZE}"
)


@dataclass(frozen=True)
class _Candidate:
    """A kernel on one task, before its text is read. `kind`: what it is too like another one by."""

    kernel_id: str
    task_id: str
    kind: str
    score: float


def retrieve(database: Database, task: Task, target: str, limit: int, device: str | None = None) -> tuple[Stone, ...]:
    """The stones to try for a task, best first: its own kernels, then others by likeness of their tasks x how often they helped x what they gained
    there, those that were measured on `device` before others. Within a task the second one of a set of techniques counts half, and so on."""
    nearest = list(_tasks_by_likeness(database, task, target).items())[:_NEAREST]
    pool = [(row, task_id, like) for task_id, like in nearest for row in database.rows(_POOL, device, task_id, target)]
    useful = usefulness(database, {row["id"] for row, _, _ in pool}, EARLY)
    found = [
        _Candidate(row["id"], task_id, row["features"], like * useful[row["id"]] * _worth(row["speedup_low"]) * (1.0 if row["here"] else _ELSEWHERE))
        for row, task_id, like in pool
    ]
    found.sort(key=lambda c: (c.task_id != task.id, -c.score))
    once: dict[str, _Candidate] = {}
    for candidate in found:
        once.setdefault(candidate.kernel_id, candidate)  # where it is best
    stones = (load(database, c.kernel_id, c.task_id) for c in _apart(once.values(), task.id)[:limit])
    return tuple(s for s in stones if s)


def usefulness(database: Database, kernel_ids: Iterable[str], stage: str) -> dict[str, float]:
    """How often a run got better by a kernel as a parent in this stage, between 0 and 1: the mean of a Beta(1, 1) prior after its uses, so that
    one without any stands before those that were tried in vain."""
    wanted = list(kernel_ids)
    rows = database.rows(
        "SELECT stone, count(*) AS uses, sum(improved) AS improved FROM uses "
        "WHERE stone IN (SELECT value FROM json_each(?)) AND stage = ? GROUP BY stone",
        json.dumps(wanted), stage,
    )  # fmt: skip
    known = {row["stone"]: (row["improved"] + 1) / (row["uses"] + 2) for row in rows}
    return {kernel_id: known.get(kernel_id, 0.5) for kernel_id in wanted}


def note_uses(connection: sqlite3.Connection, proposal: Proposal, run_id: str, attempt: int, *, improved: bool) -> None:
    """Remember which parents of a kernel the run had from the archive, and whether it got better by it."""
    stage = EARLY if proposal.number < EARLY_PROPOSALS else LATE
    for parent in dict.fromkeys(proposal.parents):
        connection.execute(
            "INSERT INTO uses SELECT id, ?, ?, ? FROM kernels WHERE id = ? AND NOT (origin = 'run' AND provenance = ?)",
            (attempt, stage, int(improved), parent, run_id),
        )


def load(database: Database, kernel_id: str, task_id: str) -> Stone | None:
    """One stone by its kernel and task; None when it may not seed (any more)."""
    row = database.row(f"SELECT {_COLUMNS} {_VERIFIED} AND k.id = ? AND t.id = ? GROUP BY k.id", kernel_id, task_id)
    return _stone(row) if row else None


def likeness(one: Signature, other: Signature) -> float:
    """How alike two signatures are, 0 to 1: the share of tensors and scalars with a counterpart of the same role and kind."""
    first, second = _kinds(one), _kinds(other)
    return 2 * (first & second).total() / max(first.total() + second.total(), 1)


def _tasks_by_likeness(database: Database, task: Task, target: str) -> dict[str, float]:
    """Tasks with verified kernels, this one first, then the likest; 0 (nothing in common) to 2 (the same)."""
    match = " OR ".join(words.terms(words.telling(task.name, task.source)))
    by_words = database.rows(
        "SELECT t.id FROM task_words w JOIN tasks t ON t.seq = w.rowid WHERE task_words MATCH ? ORDER BY bm25(task_words, 4.0, 1.0) LIMIT ?",
        match or '""', _TASKS,
    )  # fmt: skip
    place = {row["id"]: n for n, row in enumerate(by_words)}
    seeded = database.rows(f"SELECT DISTINCT t.id, t.record {_VERIFIED} AND k.target = ? ORDER BY t.seq DESC", target)
    near = sorted(seeded, key=lambda r: place.get(r["id"], _TASKS))[:_TASKS]
    score = {r["id"]: likeness(task.signature, load_task(r["record"]).signature) + 1 / (1 + place.get(r["id"], _TASKS)) for r in near}
    return {i: score[i] for i in sorted(score, key=lambda i: (i != task.id, -score[i], i))}


def _worth(speedup_low: float) -> float:
    """A gain on another task promises something here, but not as much: its square root, within a factor of 2."""
    return math.sqrt(min(max(speedup_low, 0.25), 4.0))


def _apart(candidates: Iterable[_Candidate], own: str) -> list[_Candidate]:
    """At most _PER_TASK of each task, its second of a kind counted half, the third a quarter; the own task's first."""
    turns: Counter[tuple[str, str]] = Counter()
    scored: list[_Candidate] = []
    for c in candidates:
        scored.append(replace(c, score=c.score / 2 ** turns[c.task_id, c.kind]))
        turns[c.task_id, c.kind] += 1
    taken: Counter[str] = Counter()
    kept = []
    for c in sorted(scored, key=lambda c: (c.task_id != own, -c.score)):
        taken[c.task_id] += 1
        if taken[c.task_id] <= _PER_TASK:
            kept.append(c)
    return kept


def _kinds(signature: Signature) -> Counter[tuple[str, ...]]:
    tensors = [(t.role.value, t.dtype, str(len(t.shape))) for t in signature.tensors]
    return Counter([*tensors, *(("scalar", type(s.value).__name__) for s in signature.scalars)])


def _stone(row: sqlite3.Row) -> Stone:
    task = load_task(row["record"])
    kernel = Kernel(row["id"], row["target"], row["text"])
    return Stone(kernel, task.id, task.name, task.signature, tuple(row["features"].split()), row["speedup_low"])
