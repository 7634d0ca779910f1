"""Lifecycle: what to judge again, what may go, and two archives made one."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import ArchiveError, UsageError
from ..records import PROTOCOL, Kernel, Placement, Status, Task
from . import lessons, verdicts, words
from .check import check
from .database import Database
from .verdicts import Origin, load, load_task, offer


@dataclass(frozen=True)
class Here:
    """Where verdicts would be made now. `versions`: those that are known without a judge; others do not count."""

    device: str
    architecture: str
    compiler: str
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Due:
    """A kernel to judge again on a task that it was verified on under other rules, elsewhere, or with other versions."""

    kernel: Kernel
    task: Task


@dataclass(frozen=True)
class Pruned:
    """Kernels that go (with their verdicts, edges, words and vectors), and how many stay. `done`: whether they are gone."""

    kernels: tuple[str, ...]
    kept: int
    done: bool


@dataclass(frozen=True)
class Merged:
    """Rows that the other archive had and this one had not. `replaced`: verdicts of the same key where the other's stands now. `parted`: runs that
    went on differently there, whose events and attempts were left out."""

    tasks: int
    kernels: int
    verdicts: int
    replaced: int
    edges: int
    runs: int
    attempts: int
    lessons: int
    parted: tuple[str, ...] = ()


def due(database: Database, target: str, here: Here, task: str | None = None, limit: int | None = None) -> list[Due]:
    """What to judge again here, task by task, the fastest first. What has any verdict from here and now is done, so an interrupted job goes on where
    it was. `task`: an id's first digits or a name.
    """
    current = database.rows(
        "SELECT b.kernel_id, v.task_id, v.versions FROM verdicts v JOIN builds b ON b.id = v.build_id WHERE v.imported = 0 AND v.device = ? "
        "AND v.protocol = ? AND b.architecture = ? AND b.compiler = ?", here.device, PROTOCOL, here.architecture, here.compiler,
    )  # fmt: skip
    done = {(r["kernel_id"], r["task_id"]) for r in current if here.versions.items() <= json.loads(r["versions"]).items()}
    rows = database.rows(
        "SELECT k.id, k.target, k.text, v.task_id, t.record, max(v.speedup_low) AS low FROM verdicts v JOIN builds b ON b.id = v.build_id "
        "JOIN kernels k ON k.id = b.kernel_id JOIN tasks t ON t.id = v.task_id WHERE v.status = ? AND k.quarantined IS NULL AND k.target = ? "
        "AND (? IS NULL OR t.name = ? OR substr(t.id, 1, length(?)) = ?) GROUP BY k.id, v.task_id ORDER BY t.seq, low DESC, k.seq",
        Status.VERIFIED.value, target, task, task, task, task,
    )  # fmt: skip
    waiting = [r for r in rows if (r["id"], r["task_id"]) not in done]
    return [Due(Kernel(r["id"], r["target"], r["text"]), load_task(r["record"])) for r in waiting[:limit]]


# Never removed by themselves: what was shipped, what must stay known as bad, the steps by which runs got better, what unfinished runs go on with.
_ALWAYS_KEPT = (
    "SELECT id FROM kernels WHERE origin = 'shipped' OR quarantined IS NOT NULL OR created > ? "
    f"UNION SELECT kernel_id FROM attempts WHERE placement = '{Placement.NEW_BEST}' AND kernel_id IS NOT NULL "
    "UNION SELECT a.kernel_id FROM attempts a JOIN runs r ON r.id = a.run_id WHERE r.ended IS NULL AND a.kernel_id IS NOT NULL "
    "UNION SELECT json_extract(s.value, '$.kernel_id') FROM runs r JOIN events e ON e.run_id = r.id AND e.number = 0, "
    "json_each(e.record, '$.event.stones') s WHERE r.ended IS NULL"
)
_BEST = (
    "SELECT id FROM (SELECT b.kernel_id AS id, "
    "row_number() OVER (PARTITION BY v.task_id, k.target, v.device ORDER BY max(v.speedup_low) DESC, k.seq) AS place "
    "FROM verdicts v JOIN builds b ON b.id = v.build_id JOIN kernels k ON k.id = b.kernel_id "
    "WHERE v.status = ? GROUP BY b.kernel_id, v.task_id, v.device) WHERE place <= ?"
)
_REMOVALS = (
    "DELETE FROM uses WHERE stone IN (SELECT id FROM gone)",
    "DELETE FROM edges WHERE child IN (SELECT id FROM gone)",
    "DELETE FROM verdicts WHERE build_id IN (SELECT id FROM builds WHERE kernel_id IN (SELECT id FROM gone))",
    "DELETE FROM builds WHERE kernel_id IN (SELECT id FROM gone)",
    "UPDATE attempts SET kernel_id = NULL WHERE kernel_id IN (SELECT id FROM gone)",
    "DELETE FROM kernels WHERE id IN (SELECT id FROM gone)",
)


def prune(database: Database, older_than_s: float, keep: int, *, apply: bool = False) -> Pruned:
    """Remove kernels that are older and not among the `keep` fastest of any task, target and device, nor an ancestor of one that stays.

    What they taught stays as lessons, and what runs did as their logs. Without `apply` nothing is changed.
    """
    if keep < 1 or not older_than_s >= 0:
        raise UsageError(f"at least 1 kernel a task is kept, not {keep}" if keep < 1 else f"an age is at least 0, not {older_than_s}")
    if apply:
        lessons.distil(database, [r["id"] for r in database.rows("SELECT id FROM tasks")])
    with database.write() as connection:
        kept = {r[0] for r in connection.execute(_ALWAYS_KEPT, (time.time() - older_than_s,)) if r[0]}
        kept |= {r[0] for r in connection.execute(_BEST, (Status.VERIFIED.value, keep))}
        proved = connection.execute("SELECT record FROM events WHERE kind = 'Confirmed'").fetchall()
        kept |= {json.loads(r["record"])["event"]["verdict"]["kernel_id"] for r in proved}
        parents: dict[str, list[str]] = {}
        for child, parent in connection.execute("SELECT child, parent FROM edges"):
            parents.setdefault(child, []).append(parent)
        waiting = list(kept)
        while waiting:
            fresh = [p for p in parents.get(waiting.pop(), ()) if p not in kept]
            kept.update(fresh)
            waiting += fresh
        gone = [(r["seq"], r["id"]) for r in connection.execute("SELECT seq, id FROM kernels ORDER BY seq") if r["id"] not in kept]
        if apply and gone:
            connection.execute("CREATE TEMP TABLE gone (seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE)")
            connection.executemany("INSERT INTO gone VALUES (?, ?)", gone)
            for seq, _ in gone:
                words.forget_kernel(connection, seq)
            for statement in _REMOVALS:
                connection.execute(statement)
            connection.execute("DROP TABLE gone")
    if apply and gone:
        with suppress(ArchiveError):  # another process reads just now; the space is used again anyway
            database.rows("VACUUM")
    return Pruned(tuple(kernel_id for _, kernel_id in gone), len(kept), apply)


def merge(database: Database, other: Path, *, own: bool = False) -> Merged:
    """Add all that another archive file has and this one has not; the file is read only, and may be of an older version.

    `own`: its verdicts were measured on this machine and count as such; otherwise they count as measured elsewhere. A run that both know goes on by
    the events that are missing here. Edges come with new kernels only, so that lineage has no cycles.

    Raises:
        UsageError: no such file, or this one itself.
        ArchiveError: it is no archive, or damaged.
    """
    if not other.is_file() or other.resolve() == database.path.resolve():
        raise UsageError(f"{other} is {'this archive itself' if other.is_file() else 'no file'}; name another archive's file")
    with closing(Database(other, copied=True)) as theirs:
        if problems := check(theirs):
            raise ArchiveError(f"{other}: {'; '.join(problems[:3])}; `evokernel archive check --repair --archive {other}` repairs what can be")
        with database.write() as connection:
            tasks = sum(verdicts.insert_task(connection, load_task(row["record"])) for row in theirs.rows("SELECT record FROM tasks ORDER BY seq"))
            new = [row["id"] for row in theirs.rows("SELECT * FROM kernels ORDER BY seq") if _merge_kernel(connection, row)]
            judged = theirs.rows("SELECT v.*, t.record AS task FROM verdicts v JOIN tasks t ON t.id = v.task_id ORDER BY v.seq")
            found = [offer(connection, load(r["record"]), load_task(r["task"]), imported=bool(r["imported"]) or not own) for r in judged]
            runs, attempts, parted = _merge_runs(connection, theirs)
            edges = _merge_edges(connection, theirs, set(new), parted)
            count = "SELECT count(*) FROM lessons"
            before = connection.execute(count).fetchone()[0]
            for lesson in lessons.listed(theirs):
                lessons.store(connection, lesson)
            added = connection.execute(count).fetchone()[0] - before
            return Merged(tasks, len(new), found.count("new"), found.count("lower"), edges, runs, attempts, added, tuple(parted))


def _merge_kernel(connection: sqlite3.Connection, row: sqlite3.Row) -> bool:
    kernel = Kernel(row["id"], row["target"], row["text"])
    new = verdicts.insert_kernel(connection, kernel, Origin(row["origin"], row["licence"], row["provenance"]))
    older = "UPDATE kernels SET quarantined = coalesce(quarantined, ?), created = min(created, ?) WHERE id = ?"
    connection.execute(older, (row["quarantined"], row["created"], row["id"]))
    return new


_RUN = ("id", "task_id", "target", "best_fitness", "ended", "heartbeat", "created")
_ATTEMPT = (
    "run_id", "number", "task_id", "kernel_id", "operator", "model", "prompt_hash", "input_tokens", "output_tokens", "cost_usd",
    "status", "placement", "created",
)  # fmt: skip


def _merge_runs(connection: sqlite3.Connection, theirs: Database) -> tuple[int, int, list[str]]:
    """Runs with their events, attempts and uses; how many runs and attempts are new here, and which runs went on differently."""
    runs = attempts = 0
    parted: list[str] = []
    for row in theirs.rows("SELECT * FROM runs ORDER BY seq"):
        run_id = row["id"]
        columns = "run_id, number, kind, record, created"
        events = [tuple(e) for e in theirs.rows(f"SELECT {columns} FROM events WHERE run_id = ? ORDER BY number", run_id)]
        ours = connection.execute(f"SELECT {columns} FROM events WHERE run_id = ? ORDER BY number", (run_id,)).fetchall()
        if any(mine["record"] != record for mine, (*_, record, _) in zip(ours, events, strict=False)):
            parted.append(run_id)
        if len(ours) >= len(events) or run_id in parted:
            continue
        runs += _insert(connection, "runs", _RUN, row)
        connection.execute("UPDATE runs SET best_fitness = ?, ended = ? WHERE id = ?", (row["best_fitness"], row["ended"], run_id))
        connection.executemany(f"INSERT INTO events ({columns}) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", events)
        for attempt in theirs.rows("SELECT * FROM attempts WHERE run_id = ? ORDER BY number", run_id):
            attempts += _insert(connection, "attempts", _ATTEMPT, attempt)
        for use in theirs.rows("SELECT stone, stage, improved, a.number FROM uses u JOIN attempts a ON a.seq = u.attempt WHERE a.run_id = ?", run_id):
            connection.execute(
                "INSERT INTO uses SELECT ?, seq, ?, ? FROM attempts WHERE run_id = ? AND number = ? ON CONFLICT DO NOTHING",
                (*tuple(use)[:3], run_id, use["number"]),
            )
    return runs, attempts, parted


def _insert(connection: sqlite3.Connection, table: str, columns: tuple[str, ...], row: sqlite3.Row) -> int:
    sql = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))}) ON CONFLICT DO NOTHING"
    return connection.execute(sql, [row[c] for c in columns]).rowcount


def _merge_edges(connection: sqlite3.Connection, theirs: Database, new: set[str], parted: list[str]) -> int:
    rows = theirs.rows("SELECT e.*, a.run_id, a.number FROM edges e LEFT JOIN attempts a ON a.seq = e.attempt")
    fresh = [row for row in rows if row["child"] in new]
    for row in fresh:
        connection.execute(
            "INSERT INTO edges VALUES (?, ?, (SELECT seq FROM attempts WHERE run_id = ? AND number = ?), ?)",
            # the attempt of that number here is another one where the run went on differently
            (row["child"], row["parent"], None if row["run_id"] in parted else row["run_id"], row["number"], row["diff"]),
        )
    return len(fresh)
