"""Kernels, builds and verdicts as rows. One row a measurement's key; of several measurements of one key the lowest counts."""

from __future__ import annotations

import difflib
import json
import sqlite3
import time
from dataclasses import dataclass, replace
from typing import TypeVar

from .. import codec
from ..errors import ArchiveError
from ..records import Environment, Kernel, Status, Task, Verdict, config_key, digest
from . import words
from .database import Database

_WIDTHS = (0.03, 0.1, 0.3)  # of 99 % intervals, as parts of their middle: what GPUs, quiet and busy CPUs measure

PROVEN = "instr({}.versions, '\"forced\"') = 0"  # of a table of verdicts: not by force

T = TypeVar("T")


@dataclass(frozen=True)
class Origin:
    """Where a kernel came from. `kind`: run, shipped, user or import; `source`: the run, the file, or a link."""

    kind: str
    licence: str = ""
    source: str = ""


def insert_kernel(connection: sqlite3.Connection, kernel: Kernel, origin: Origin) -> bool:
    """Store a kernel; False when it was there (its first origin stays, but one that was imported takes a licence where none was known)."""
    new = connection.execute(
        "INSERT INTO kernels (id, target, text, strategy, origin, licence, provenance, created) VALUES (?, ?, ?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (id) DO NOTHING RETURNING seq",
        (kernel.id, kernel.target, kernel.text, words.strategy(kernel.text), origin.kind, origin.licence, origin.source, time.time()),
    ).fetchone()
    if new is None:
        sql = "UPDATE kernels SET licence = ? WHERE id = ? AND licence = '' AND origin = 'import'"
        connection.execute(sql, (origin.licence, kernel.id))
        return False
    words.index_kernel(connection, new["seq"], kernel.text, "")
    return True


def insert_task(connection: sqlite3.Connection, task: Task) -> bool:
    """Store a task; False when it was there."""
    new = connection.execute(
        "INSERT INTO tasks (id, name, record, created) VALUES (?, ?, ?, ?) ON CONFLICT (id) DO NOTHING RETURNING seq",
        (task.id, task.name, codec.dumps(task), time.time()),
    ).fetchone()
    if new is None:
        return False
    words.index_task(connection, new["seq"], task)
    return True


def insert_edges(connection: sqlite3.Connection, child: Kernel, parents: tuple[str, ...], attempt: int | None) -> None:
    """Store from which kernels a new one was made, with the changes. Edges always lead to a newer row, so there are no cycles.

    Raises:
        ArchiveError: a parent is not in the archive.
    """
    for parent in dict.fromkeys(parents):
        row = connection.execute("SELECT text FROM kernels WHERE id = ?", (parent,)).fetchone()
        if row is None:
            raise ArchiveError(f"kernel {child.id} names the parent {parent}, which is not in the archive; nothing was stored")
        diff = "\n".join(difflib.unified_diff(row["text"].splitlines(), child.text.splitlines(), parent, child.id, lineterm=""))
        connection.execute("INSERT INTO edges VALUES (?, ?, ?, ?)", (child.id, parent, attempt, diff))


def versions_key(environment: Environment) -> str:
    """One text per set of versions, whatever their order; with the mark of verdicts by force, which so are compared with no others."""
    return json.dumps(environment.versions | ({"forced": "yes"} if environment.forced else {}), sort_keys=True)


def lower(first: Verdict, second: Verdict) -> Verdict:
    """Of two measurements the one that counts: the lower, but one that noise has put into a wider class of `_WIDTHS` says less, and gives way.
    A failure counts before any time. Each is placed by itself alone, so of several the same one stands in whatever order they come."""
    return min(first, second, key=_standing)


def _standing(verdict: Verdict) -> tuple[int, float, str]:
    speedup = verdict.speedup
    width = (speedup.high - speedup.low) / speedup.mid if speedup else 0.0
    return sum(width > edge for edge in _WIDTHS), verdict.fitness, codec.dumps(verdict)  # the text: equal ones too have an order


def known(database: Database, kernel_id: str, task_id: str, environment: Environment) -> Verdict | None:
    """The verdict of exactly this kernel text, measured here under the same rules and versions."""
    # CROSS JOIN keeps SQLite to this order: builds of a kernel are few, verdicts on a task are many.
    row = database.row(
        "SELECT v.record FROM builds b CROSS JOIN verdicts v ON b.id = v.build_id WHERE b.kernel_id = ? AND b.architecture = ? AND b.compiler = ? "
        "AND v.task_id = ? AND v.device = ? AND v.protocol = ? AND v.versions = ? AND v.imported = 0 ORDER BY v.seq DESC",
        kernel_id, environment.architecture, environment.compiler,
        task_id, environment.device, environment.protocol, versions_key(environment),
    )  # fmt: skip
    return load(row["record"]) if row else None


def same_code(database: Database, verdict: Verdict, task_id: str) -> Verdict | None:
    """The first verdict of another kernel whose compiled code is the same, measured here under the same rules and versions."""
    if not verdict.code_hash:
        return None
    environment = verdict.environment
    row = database.row(
        "SELECT v.record FROM builds b CROSS JOIN verdicts v ON b.id = v.build_id WHERE b.code_hash = ? AND b.kernel_id != ? AND b.architecture = ? "
        "AND v.task_id = ? AND v.device = ? AND v.protocol = ? AND v.versions = ? AND v.imported = 0 ORDER BY v.seq",
        verdict.code_hash, verdict.kernel_id, environment.architecture,
        task_id, environment.device, environment.protocol, versions_key(environment),
    )  # fmt: skip
    return load(row["record"]) if row else None


def _build(verdict: Verdict, task: Task) -> tuple[str, ...]:
    """The row of a verdict's build, without its code: the id, and what it is the digest of."""
    there = verdict.environment
    build = (verdict.kernel_id, config_key(verdict.config), digest(codec.dumps(task.variants)), there.architecture, there.compiler)
    return digest(*build), *build


def store(connection: sqlite3.Connection, verdict: Verdict, task: Task, *, imported: bool) -> None:
    """Write a verdict over whatever stood under its key."""
    build_id, *build = _build(verdict, task)
    connection.execute(
        "INSERT INTO builds VALUES (?, ?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (id) DO UPDATE SET code_hash = excluded.code_hash WHERE excluded.code_hash != ''",
        (build_id, *build, verdict.code_hash),
    )
    made = columns(verdict)
    connection.execute(
        f"INSERT INTO verdicts (build_id, task_id, imported, {', '.join(made)}, record, created) "
        f"VALUES (?, ?, ?, {', '.join('?' * len(made))}, ?, ?) ON CONFLICT (build_id, task_id, device, protocol, versions, imported) "
        "DO UPDATE SET status = excluded.status, time_us = excluded.time_us, speedup_low = excluded.speedup_low, features = excluded.features, "
        "record = excluded.record",
        (build_id, task.id, int(imported), *made.values(), codec.dumps(verdict), time.time()),
    )
    features = made["features"]
    if verdict.status is Status.VERIFIED and features:
        row = connection.execute("SELECT seq, text FROM kernels WHERE id = ?", (verdict.kernel_id,)).fetchone()
        words.index_kernel(connection, row["seq"], row["text"], str(features))


def offer(connection: sqlite3.Connection, verdict: Verdict, task: Task, *, imported: bool) -> str:
    """Store a verdict that comes from elsewhere, where it counts: of one key the lower one does, and what was measured here is not changed by what
    was not. What became of it: new, lower (than the one that stood under its key), or known.

    Raises:
        ArchiveError: the verdict that stands cannot be read.
    """
    made = columns(verdict)
    before = connection.execute(
        "SELECT record, imported FROM verdicts WHERE build_id = ? AND task_id = ? AND device = ? AND protocol = ? AND versions = ? "
        "AND imported <= ? ORDER BY imported",
        (_build(verdict, task)[0], task.id, made["device"], made["protocol"], made["versions"], int(imported)),
    ).fetchone()
    if before:
        standing = load(before["record"])
        if bool(before["imported"]) != imported or lower(standing, verdict) is standing:
            return "known"
    store(connection, verdict, task, imported=imported)
    return "lower" if before else "new"


def columns(verdict: Verdict) -> dict[str, str | int | float | None]:
    """What of a verdict's record stands in columns of its own."""
    there = verdict.environment
    return {
        "device": there.device, "protocol": there.protocol, "versions": versions_key(there), "status": verdict.status.value,
        "time_us": verdict.time_us, "speedup_low": verdict.speedup.low if verdict.speedup else None,
        "features": " ".join(verdict.resources.features) if verdict.resources else "",
    }  # fmt: skip


def shared(database: Database, verdict: Verdict, task: Task) -> tuple[Verdict, bool]:
    """The verdict that counts after this measurement, and whether the same text or the same code had been measured here before."""
    before = known(database, verdict.kernel_id, task.id, verdict.environment) or same_code(database, verdict, task.id)
    if before is None:
        return verdict, False
    own = replace(before, kernel_id=verdict.kernel_id, config=verdict.config, code_hash=verdict.code_hash or before.code_hash)
    return lower(own, verdict), True


def load(record: str) -> Verdict:
    """Raises:
    ArchiveError: not a verdict that this version can read.
    """
    return _loaded(Verdict, record)


def load_task(record: str) -> Task:
    """Raises:
    ArchiveError: not a task that this version can read.
    """
    return _loaded(Task, record)


def _loaded(kind: type[T], record: str) -> T:
    try:
        return codec.loads(kind, record)
    except ValueError as error:
        raise ArchiveError(f"a stored {kind.__name__.lower()} cannot be read: {error}; `evokernel archive check` names it") from error
