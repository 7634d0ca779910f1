"""What `evokernel archive check` does: find everything that is wrong with the file, rebuild what is derived, and repair on request.

A repair never guesses: rows that cannot be read or that point nowhere are removed, columns are made from their record again, and a kernel whose text
is not the one that was judged stays readable but is quarantined. What was shipped is imported again when the archive is next opened.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from sqlite3 import Row

from .. import codec
from ..errors import ArchiveError
from ..kernelfile import KernelFileError, make_kernel
from ..records import Status, Task, Verdict, config_key
from . import runs, words
from .database import Database
from .verdicts import columns, load_task

_ROUNDS = 4
_ALTERED = "its text is not the one that was judged"
# What may go where its parent row is missing: the rest (runs, attempts without their run) is somebody's history.
_REMOVABLE = ("builds", "verdicts", "edges", "uses", "lessons")
# What may be empty: it is derived, or only helps.
_REPLACEABLE = ("lessons", "vectors", "uses", "imports", "task_words", "kernel_words")


@dataclass(frozen=True)
class Finding:
    """One problem in words, and the statement that repairs it; None where nothing here can."""

    problem: str
    repair: tuple[str, tuple[object, ...]] | None = None


def check(database: Database, *, repair: bool = False) -> list[str]:
    """One sentence a problem; an empty list means that the file is sound. The word index is rebuilt from the rows.

    `repair`: the sentences say what was repaired, or that it could not be; look again to know what is left.
    """
    database.forgive()
    found = list(_findings(database))
    try:
        if repair:
            database.rows("PRAGMA foreign_keys = OFF")  # otherwise nothing could be removed that another row points to
            found += _mended(database, found)
        if not any(_missing(database)):
            _rebuild_words(database)
    except ArchiveError as error:
        found.append(Finding(str(error)))
    finally:
        if repair:
            database.rows("PRAGMA foreign_keys = ON")
    ends = {True: ": repaired", False: ": cannot be repaired here; go back to a copy"} if repair else dict.fromkeys((True, False), "")
    return list(dict.fromkeys(f.problem + ends[f.repair is not None] for f in found))


def _mended(database: Database, findings: list[Finding]) -> list[Finding]:
    """Repair what can be, and what that lays open: removing a row may leave others pointing to it. Those further findings."""
    more: list[Finding] = []
    for _ in range(_ROUNDS):
        repairs = dict.fromkeys(f.repair for f in findings if f.repair)
        if not repairs:
            break
        with database.write() as connection:
            for statement, values in repairs:
                connection.execute(statement, values)
            connection.execute("DELETE FROM imports")
        findings = list(_findings(database))
        more += findings
    return more


def _findings(database: Database) -> Iterator[Finding]:
    """All that is wrong; where a table is missing, or cannot be read, what could be found until then."""
    try:
        yield from _unreadable(database)
        missing = list(_missing(database))
        yield from missing
        if not missing:
            for look in (_dangling, _wrong_tasks, _wrong_ids, _wrong_records, _wrong_runs, _wrong_derived, _wrong_edges):
                yield from look(database)
    except ArchiveError as error:
        yield Finding(str(error))


def _unreadable(database: Database) -> Iterator[Finding]:
    for row in database.rows("PRAGMA integrity_check"):
        if row[0] != "ok":
            yield Finding(f"SQLite: {row[0]}", ("REINDEX", ()) if "index" in row[0] else None)
    yield from (Finding(text, (repair, ())) for text, repair in database.undecodable())


@cache
def _objects() -> dict[str, tuple[str, str]]:
    """What a sound file has: of each table and index its table and the statement that makes it where it is missing."""
    # Not SQLite's own, nor the parts of a word index, which is made anew as a whole.
    made_by_us = "sql IS NOT NULL AND name NOT LIKE 'sqlite_%' AND name NOT LIKE '%words_%'"
    with closing(Database(Path(":memory:"))) as sound:
        rows = sound.rows(f"SELECT name, tbl_name, sql FROM sqlite_master WHERE {made_by_us} ORDER BY rowid")
    return {name: (table, made) for name, table, made in map(tuple, rows)}


def _missing(database: Database) -> Iterator[Finding]:
    there = {row["name"]: row["sql"] for row in database.rows("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")}
    for name, (table, statement) in _objects().items():
        called = f"the {'table' if table == name else 'index'} {name}"
        if there.get(name, statement) != statement:
            yield Finding(f"{called} is not the one that this version makes")
        elif name not in there and (table == name or table in there):
            yield Finding(f"{called} is missing", (statement, ()) if table != name or name in _REPLACEABLE else None)


def _wrong_edges(database: Database) -> Iterator[Finding]:
    older = "SELECT child, parent FROM edges e JOIN kernels c ON c.id = e.child JOIN kernels p ON p.id = e.parent WHERE p.seq >= c.seq"
    for row in database.rows(older):
        text = f"lineage: kernel {row['child']} is older than its parent {row['parent']}"
        yield Finding(text, ("DELETE FROM edges WHERE child = ? AND parent = ?", (row["child"], row["parent"])))


def _dangling(database: Database) -> Iterator[Finding]:
    rows = database.rows("PRAGMA foreign_key_check")
    keys = {(table, key["id"]): key for table in {r["table"] for r in rows} for key in database.rows(f"PRAGMA foreign_key_list({table})")}
    for table, number, parent in sorted({(r["table"], r["fkid"], r["parent"]) for r in rows}):
        column, to = keys[table, number]["from"], keys[table, number]["to"]
        missing = f"{column} IS NOT NULL AND {column} NOT IN (SELECT {to} FROM {parent})"
        repair = None
        if (table, column) in (("attempts", "kernel_id"), ("edges", "attempt")):
            repair = f"UPDATE {table} SET {column} = NULL WHERE {missing}"
        elif table in _REMOVABLE:
            repair = f"DELETE FROM {table} WHERE {missing}"
        yield Finding(f"{table}: a row points to a missing row of {parent}", (repair, ()) if repair else None)


def _wrong_tasks(database: Database) -> Iterator[Finding]:
    for row in database.rows("SELECT seq, id, name, record, EXISTS (SELECT 1 FROM runs WHERE task_id = t.id) AS run FROM tasks t"):
        try:
            task = codec.loads(Task, row["record"])
            wrong = "is another task's" if task.id != row["id"] else ""
            if task.name != row["name"]:
                name = ("UPDATE tasks SET name = ? WHERE seq = ?", (task.name, row["seq"]))
                yield Finding(f"task {row['name']} ({row['id']}): its record has another name", name)
        except ValueError as error:
            wrong = f"cannot be read: {error}"
        if wrong:
            text = f"task {row['name']} ({row['id']}): its record {wrong}; `evokernel evolve` with its file writes it anew"
            yield Finding(text, None if row["run"] else ("DELETE FROM tasks WHERE seq = ?", (row["seq"],)))


def _wrong_ids(database: Database) -> Iterator[Finding]:
    # What was imported as material is no kernel file of ours: its importer made its id.
    for row in database.rows("SELECT id, target, text, quarantined FROM kernels WHERE NOT (origin = 'import' AND quarantined IS NOT NULL)"):
        try:
            right = make_kernel(row["text"], row["target"]).id == row["id"]
        except KernelFileError:
            right = False
        if not right and row["quarantined"] != _ALTERED:
            kept = ("UPDATE kernels SET quarantined = ? WHERE id = ?", (_ALTERED, row["id"]))
            yield Finding(f"kernel {row['id']}: its text no longer matches its id", kept)


def _wrong_records(database: Database) -> Iterator[Finding]:
    build = "b.kernel_id, b.config, b.architecture, b.compiler, b.code_hash"
    for row in database.rows(f"SELECT {build}, v.* FROM verdicts v JOIN builds b ON b.id = v.build_id"):
        gone = ("DELETE FROM verdicts WHERE seq = ?", (row["seq"],))
        try:
            verdict = codec.loads(Verdict, row["record"])
        except ValueError as error:
            yield Finding(f"verdict {row['seq']}: its record cannot be read: {error}", gone)
            continue
        right, there = columns(verdict), verdict.environment
        if (verdict.kernel_id, config_key(verdict.config), there.architecture, there.compiler) != tuple(row)[:4]:
            yield Finding(f"verdict {row['seq']}: its record and its columns disagree", gone)
        elif right != {name: row[name] for name in right}:
            anew = f"UPDATE verdicts SET {', '.join(f'{name} = ?' for name in right)} WHERE seq = ?"
            yield Finding(f"verdict {row['seq']}: its record and its columns disagree", (anew, (*right.values(), row["seq"])))
        if verdict.code_hash and not row["code_hash"]:  # those of several versions of evokernel may differ
            filled = ("UPDATE builds SET code_hash = ? WHERE id = ?", (verdict.code_hash, row["build_id"]))
            yield Finding(f"build {row['build_id']}: its code hash is missing", filled)


def _wrong_runs(database: Database) -> Iterator[Finding]:
    counted = "SELECT r.*, count(e.number) AS events, max(e.number) AS last FROM runs r LEFT JOIN events e ON e.run_id = r.id GROUP BY r.id"
    for run in database.rows(counted):
        try:
            runs.held(run)
        except ArchiveError:
            yield Finding(f"run {run['id']}: its lease cannot be read", ("UPDATE runs SET holder = NULL WHERE id = ?", (run["id"],)))
        if run["last"] is None or run["last"] + 1 != run["events"]:
            yield Finding(f"run {run['id']}: events are missing from its log")
            continue
        try:
            events = [logged.event for logged in runs.read_events(database, run["id"])]
        except ArchiveError as error:
            yield Finding(str(error))
        else:
            yield from _wrong_copies(database, run, events)


def _wrong_copies(database: Database, run: Row, events: Sequence[runs.Event]) -> Iterator[Finding]:
    """Rows that are missing, or do not say what the run's log does."""
    judged = [e for e in events if isinstance(e, runs.Judged)]
    best = max((e.verdict.fitness for e in judged if e.verdict.status is Status.VERIFIED), default=None)
    # The logarithm's last digits are the machine's own.
    if not math.isclose(*(-math.inf if x is None else x for x in (best, run["best_fitness"])), abs_tol=1e-9):
        anew: tuple[str, tuple[object, ...]] = ("UPDATE runs SET best_fitness = ? WHERE id = ?", (best, run["id"]))
        yield Finding(f"run {run['id']}: its best fitness is not what its log says", anew)
    copies: list[tuple[str, str, int, tuple[str, ...]]] = [("events", "kind", number, (type(e).__name__,)) for number, e in enumerate(events)]
    copies += [("attempts", "placement, status", e.number, (e.placement.value, e.verdict.status.value)) for e in judged]
    for table, names, number, right in copies:
        row = database.row(f"SELECT {names} FROM {table} WHERE run_id = ? AND number = ?", run["id"], number)
        if row is None or tuple(row) != right:
            anew = (f"UPDATE {table} SET ({names}) = ({', '.join('?' * len(right))}) WHERE run_id = ? AND number = ?", (*right, run["id"], number))
            yield Finding(f"run {run['id']}: number {number} of its {table} is not what its log says", anew if row else None)


def _wrong_derived(database: Database) -> Iterator[Finding]:
    of = f"CASE kind WHEN '{words.TASK}' THEN (SELECT 1 FROM tasks t WHERE t.seq = item) ELSE (SELECT 1 FROM kernels k WHERE k.seq = item) END"
    lengths = "SELECT seq, length(vector) AS size, max(length(vector)) OVER (PARTITION BY model, kind) AS largest FROM vectors"
    for table, wrong, what in (
        ("vectors", f"{of} IS NULL", "what it is of is not there"),
        ("vectors", f"seq IN (SELECT seq FROM ({lengths}) WHERE size != largest OR size % 4 OR size = 0)", "it is cut off"),
        ("lessons", "evidence < 1 OR gain NOT BETWEEN 1 AND 1e308", "its gain or evidence cannot be"),
    ):
        for row in database.rows(f"SELECT seq FROM {table} WHERE {wrong}"):
            yield Finding(f"{table[:-1]} {row['seq']}: {what}", (f"DELETE FROM {table} WHERE seq = ?", (row["seq"],)))


def _rebuild_words(database: Database) -> None:
    built = "SELECT b.kernel_id, v.features FROM verdicts v JOIN builds b ON b.id = v.build_id WHERE v.features != '' ORDER BY v.seq"
    techniques = {row["kernel_id"]: row["features"] for row in database.rows(built)}
    with database.write() as connection:
        for table in ("task_words", "kernel_words"):
            connection.execute(f"DROP TABLE {table}")  # from a damaged index no row can be deleted
            connection.execute(_objects()[table][1])
        for row in connection.execute("SELECT seq, record FROM tasks").fetchall():
            with suppress(ArchiveError):  # a finding already
                words.index_task(connection, row["seq"], load_task(row["record"]))
        for row in connection.execute("SELECT seq, id, text FROM kernels").fetchall():
            words.index_kernel(connection, row["seq"], row["text"], techniques.get(row["id"], ""))
