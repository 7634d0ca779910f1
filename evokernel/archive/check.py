"""What `evokernel archive check` does: find everything that is wrong with the file, and rebuild what is derived."""

from __future__ import annotations

from .. import codec
from ..errors import ArchiveError
from ..kernelfile import KernelFileError, make_kernel
from ..records import Task
from . import words
from .database import Database
from .verdicts import load


def check(database: Database) -> list[str]:
    """One sentence a problem; an empty list means that the file is sound. The word index is rebuilt from the rows.

    Raises:
        ArchiveError: the file cannot be read at all.
    """
    problems = [f"SQLite: {row[0]}" for row in database.rows("PRAGMA integrity_check") if row[0] != "ok"]
    problems += [f"{row['table']}: a row points to a missing row of {row['parent']}" for row in database.rows("PRAGMA foreign_key_check")]
    problems += _wrong_ids(database) + _wrong_records(database)
    problems += [
        f"lineage: kernel {row['child']} is older than its parent {row['parent']}"
        for row in database.rows(
            "SELECT child, parent FROM edges e JOIN kernels c ON c.id = e.child JOIN kernels p ON p.id = e.parent WHERE p.seq >= c.seq"
        )
    ]
    _rebuild_words(database)
    return problems


def _wrong_ids(database: Database) -> list[str]:
    rows = database.rows("SELECT id, target, text FROM kernels")
    return [f"kernel {row['id']}: its text no longer matches its id" for row in rows if _id(row["text"], row["target"]) != row["id"]]


def _id(text: str, target: str) -> str | None:
    try:
        return make_kernel(text, target).id
    except KernelFileError:
        return None


def _wrong_records(database: Database) -> list[str]:
    problems = []
    for row in database.rows("SELECT b.kernel_id, v.seq, v.status, v.record FROM verdicts v JOIN builds b ON b.id = v.build_id"):
        try:
            verdict = load(row["record"])
        except ArchiveError as error:
            problems.append(f"verdict {row['seq']}: {error}")
            continue
        if (verdict.kernel_id, verdict.status.value) != (row["kernel_id"], row["status"]):
            problems.append(f"verdict {row['seq']}: its record and its columns disagree")
    return problems


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
