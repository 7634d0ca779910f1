"""What `evokernel archive check` does: find everything that is wrong with the file, rebuild what is derived, and repair on request.

A repair never guesses: rows that cannot be read or that point nowhere are removed, columns are made from their record again, and a kernel whose text
is not the one that was judged stays readable but is quarantined.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .. import codec
from ..errors import ArchiveError
from ..kernelfile import KernelFileError, make_kernel
from ..records import Task
from . import runs, words
from .database import Database
from .verdicts import columns, load

_ROUNDS = 4
_ALTERED = "its text is not the one that was judged"
# What may go where its parent row is missing: the rest (runs, attempts without their run) is somebody's history.
_REMOVABLE = ("builds", "verdicts", "edges", "uses", "lessons")


@dataclass(frozen=True)
class Finding:
    """One problem in words, and the statement that repairs it; None where nothing here can."""

    problem: str
    repair: tuple[str, tuple[object, ...]] | None = None


def check(database: Database, *, repair: bool = False) -> list[str]:
    """One sentence a problem; an empty list means that the file is sound. The word index is rebuilt from the rows.

    `repair`: the sentences say what was repaired, or that it could not be; look again to know what is left.

    Raises:
        ArchiveError: the file cannot be read at all.
    """
    found = list(_findings(database))
    if repair:
        database.rows("PRAGMA foreign_keys = OFF")  # otherwise nothing could be removed that another row points to
        try:
            found += _mended(database, found)
        finally:
            database.rows("PRAGMA foreign_keys = ON")
    _rebuild_words(database)
    ends = {True: ": repaired", False: ": cannot be repaired here; go back to a copy"} if repair else dict.fromkeys((True, False), "")
    return list(dict.fromkeys(f.problem + ends[f.repair is not None] for f in found))


def _mended(database: Database, findings: list[Finding]) -> list[Finding]:
    """Repair what can be, and what that lays open: removing a row may leave others pointing to it. Those further findings."""
    more: list[Finding] = []
    for _ in range(_ROUNDS):
        with database.write() as connection:
            for statement, values in dict.fromkeys(f.repair for f in findings if f.repair):
                connection.execute(statement, values)
        findings = [f for f in _findings(database) if f.repair]
        more += findings
        if not findings:
            break
    return more


def _findings(database: Database) -> Iterator[Finding]:
    for row in database.rows("PRAGMA integrity_check"):
        if row[0] != "ok":
            yield Finding(f"SQLite: {row[0]}", ("REINDEX", ()) if "index" in row[0] else None)
    yield from _dangling(database)
    yield from _wrong_ids(database)
    yield from _wrong_records(database)
    yield from _wrong_events(database)
    yield from _wrong_vectors(database)
    for row in database.rows(
        "SELECT child, parent FROM edges e JOIN kernels c ON c.id = e.child JOIN kernels p ON p.id = e.parent WHERE p.seq >= c.seq"
    ):
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


def _wrong_ids(database: Database) -> Iterator[Finding]:
    # What was imported as material is no kernel file of ours: its importer made its id.
    for row in database.rows("SELECT id, target, text, quarantined FROM kernels WHERE NOT (origin = 'import' AND quarantined IS NOT NULL)"):
        if _id(row["text"], row["target"]) != row["id"] and row["quarantined"] != _ALTERED:
            yield Finding(
                f"kernel {row['id']}: its text no longer matches its id", ("UPDATE kernels SET quarantined = ? WHERE id = ?", (_ALTERED, row["id"]))
            )


def _id(text: str, target: str) -> str | None:
    try:
        return make_kernel(text, target).id
    except KernelFileError:
        return None


def _wrong_records(database: Database) -> Iterator[Finding]:
    for row in database.rows("SELECT b.kernel_id, v.* FROM verdicts v JOIN builds b ON b.id = v.build_id"):
        gone = ("DELETE FROM verdicts WHERE seq = ?", (row["seq"],))
        try:
            verdict = load(row["record"])
        except ArchiveError as error:
            yield Finding(f"verdict {row['seq']}: {error}", gone)
            continue
        right = columns(verdict)
        if verdict.kernel_id != row["kernel_id"]:
            yield Finding(f"verdict {row['seq']}: its record and its columns disagree", gone)
        elif right != {name: row[name] for name in right}:
            anew = f"UPDATE verdicts SET {', '.join(f'{name} = ?' for name in right)} WHERE seq = ?"
            yield Finding(f"verdict {row['seq']}: its record and its columns disagree", (anew, (*right.values(), row["seq"])))


def _wrong_events(database: Database) -> Iterator[Finding]:
    counted = "SELECT r.id, count(e.number) AS events, max(e.number) AS last FROM runs r LEFT JOIN events e ON e.run_id = r.id GROUP BY r.id"
    for run in database.rows(counted):
        if run["last"] is None or run["last"] + 1 != run["events"]:
            yield Finding(f"run {run['id']}: events are missing from its log")
            continue
        try:
            for _ in runs.read_events(database, run["id"]):
                pass
        except ArchiveError as error:
            yield Finding(str(error))


def _wrong_vectors(database: Database) -> Iterator[Finding]:
    tables = f"CASE kind WHEN '{words.TASK}' THEN (SELECT 1 FROM tasks t WHERE t.seq = item) ELSE (SELECT 1 FROM kernels k WHERE k.seq = item) END"
    for row in database.rows(f"SELECT seq FROM vectors WHERE {tables} IS NULL"):
        yield Finding(f"vector {row['seq']}: what it is of is not there", ("DELETE FROM vectors WHERE seq = ?", (row["seq"],)))
    lengths = "SELECT seq, length(vector) AS size, max(length(vector)) OVER (PARTITION BY model, kind) AS largest FROM vectors"
    for row in database.rows(f"SELECT seq FROM ({lengths}) WHERE size != largest OR size % 4 OR size = 0"):
        yield Finding(f"vector {row['seq']}: it is cut off", ("DELETE FROM vectors WHERE seq = ?", (row["seq"],)))


def _rebuild_words(database: Database) -> None:
    built = "SELECT b.kernel_id, v.features FROM verdicts v JOIN builds b ON b.id = v.build_id WHERE v.features != '' ORDER BY v.seq"
    techniques = {row["kernel_id"]: row["features"] for row in database.rows(built)}
    with database.write() as connection:
        connection.execute("DELETE FROM task_words")
        connection.execute("DELETE FROM kernel_words")
        for row in connection.execute("SELECT seq, record FROM tasks").fetchall():
            words.index_task(connection, row["seq"], codec.loads(Task, row["record"]))
        for row in connection.execute("SELECT seq, id, text FROM kernels").fetchall():
            words.index_kernel(connection, row["seq"], row["text"], techniques.get(row["id"], ""))
