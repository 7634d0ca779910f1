"""The tables of the archive, one migration a schema version, and the one place that applies them."""

from __future__ import annotations

import sqlite3

from ..errors import ArchiveError

APPLICATION_ID = 0x65766F6B  # "evok": tells our file from another program's SQLite database

_VERSION_1 = """
CREATE TABLE tasks (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, name TEXT NOT NULL, record TEXT NOT NULL, created REAL NOT NULL) STRICT;
CREATE TABLE kernels (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, target TEXT NOT NULL, text TEXT NOT NULL, strategy TEXT NOT NULL,
    origin TEXT NOT NULL, licence TEXT NOT NULL, provenance TEXT NOT NULL, quarantined TEXT, created REAL NOT NULL) STRICT;
CREATE TABLE builds (
    id TEXT PRIMARY KEY, kernel_id TEXT NOT NULL REFERENCES kernels(id), config TEXT NOT NULL, signature TEXT NOT NULL,
    architecture TEXT NOT NULL, compiler TEXT NOT NULL, code_hash TEXT NOT NULL) STRICT;
CREATE INDEX builds_by_kernel ON builds(kernel_id);
CREATE INDEX builds_by_code ON builds(code_hash);
CREATE TABLE verdicts (
    seq INTEGER PRIMARY KEY, build_id TEXT NOT NULL REFERENCES builds(id), task_id TEXT NOT NULL REFERENCES tasks(id),
    device TEXT NOT NULL, protocol INTEGER NOT NULL, versions TEXT NOT NULL, imported INTEGER NOT NULL,
    status TEXT NOT NULL, time_us REAL, speedup_low REAL, features TEXT NOT NULL, record TEXT NOT NULL, created REAL NOT NULL,
    UNIQUE (build_id, task_id, device, protocol, versions, imported)) STRICT;
CREATE INDEX verdicts_by_task ON verdicts(task_id, status, speedup_low);
CREATE TABLE runs (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, task_id TEXT NOT NULL REFERENCES tasks(id), target TEXT NOT NULL,
    best_fitness REAL, ended TEXT, holder TEXT, heartbeat REAL NOT NULL, created REAL NOT NULL) STRICT;
CREATE TABLE events (
    run_id TEXT NOT NULL REFERENCES runs(id), number INTEGER NOT NULL, kind TEXT NOT NULL, record TEXT NOT NULL,
    created REAL NOT NULL, PRIMARY KEY (run_id, number)) STRICT, WITHOUT ROWID;
CREATE TABLE attempts (
    seq INTEGER PRIMARY KEY, run_id TEXT NOT NULL REFERENCES runs(id), number INTEGER NOT NULL, task_id TEXT NOT NULL REFERENCES tasks(id),
    kernel_id TEXT REFERENCES kernels(id), operator TEXT NOT NULL, model TEXT, prompt_hash TEXT NOT NULL, input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL, cost_usd REAL NOT NULL, status TEXT NOT NULL, placement TEXT NOT NULL,
    created REAL NOT NULL, UNIQUE (run_id, number)) STRICT;
CREATE TABLE edges (
    child TEXT NOT NULL REFERENCES kernels(id), parent TEXT NOT NULL REFERENCES kernels(id), attempt INTEGER REFERENCES attempts(seq),
    diff TEXT NOT NULL, PRIMARY KEY (child, parent)) STRICT, WITHOUT ROWID;
CREATE INDEX edges_by_parent ON edges(parent);
CREATE TABLE imports (manifest TEXT PRIMARY KEY, created REAL NOT NULL) STRICT, WITHOUT ROWID;
CREATE VIRTUAL TABLE task_words USING fts5(name, source, tokenize = 'unicode61');
CREATE VIRTUAL TABLE kernel_words USING fts5(strategy, techniques, tokenize = 'unicode61')
"""

# `vectors`: of one view (`kind`) of a kernel or task (`item`, its seq), cut into parts, by one model; float32, little endian. No seq is ever given
# twice and no row changes, so that an index made from rows knows by count and last seq whether it is theirs.
# `uses`: a stepping stone that an attempt had as a parent, when in its run, and whether the run got better by it.
_VERSION_2 = """
CREATE TABLE vectors (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, model TEXT NOT NULL, kind TEXT NOT NULL, item INTEGER NOT NULL, part INTEGER NOT NULL,
    vector BLOB NOT NULL, UNIQUE (kind, item, model, part)) STRICT;
CREATE INDEX vectors_by_view ON vectors(model, kind);
CREATE TABLE uses (
    stone TEXT NOT NULL REFERENCES kernels(id), attempt INTEGER NOT NULL REFERENCES attempts(seq), stage TEXT NOT NULL,
    improved INTEGER NOT NULL, PRIMARY KEY (stone, attempt)) STRICT, WITHOUT ROWID;
CREATE TABLE lessons (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, target TEXT NOT NULL, task_id TEXT NOT NULL REFERENCES tasks(id),
    text TEXT NOT NULL, gain REAL, evidence INTEGER NOT NULL, first_seen REAL NOT NULL, last_seen REAL NOT NULL) STRICT;
CREATE INDEX lessons_by_task ON lessons(task_id)
"""

# `kernels`: ids of those that a lesson rests on, with blanks between them.
_VERSION_3 = "ALTER TABLE lessons ADD COLUMN kernels TEXT NOT NULL DEFAULT ''"

# Version 2 once made `vectors` otherwise, and the name of a task that was renamed stayed in its column: from here on all files are alike. Vectors are
# made anew, with seqs that no index from before knows.
_VERSION_4 = """
DROP TABLE IF EXISTS vectors;
CREATE TABLE vectors (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, model TEXT NOT NULL, kind TEXT NOT NULL, item INTEGER NOT NULL, part INTEGER NOT NULL,
    vector BLOB NOT NULL, UNIQUE (kind, item, model, part)) STRICT;
CREATE INDEX vectors_by_view ON vectors(model, kind);
INSERT INTO sqlite_sequence VALUES ('vectors', 1 << 32);
UPDATE tasks SET name = json_extract(record, '$.name') WHERE CASE WHEN json_valid(record) THEN json_type(record, '$.name') = 'text' END
"""

# Entry n leads from schema version n to n + 1; statements end with ";\n". What was released is never changed: files were made by it.
MIGRATIONS: tuple[str, ...] = (_VERSION_1, _VERSION_2, _VERSION_3, _VERSION_4)


def migrate(connection: sqlite3.Connection, path: str, migrations: tuple[str, ...] = MIGRATIONS) -> None:
    """Bring the database of an autocommit connection to the newest schema, all steps in one transaction.

    Raises:
        ArchiveError: written by a newer evokernel, or not an archive.
        sqlite3.Error: what SQLite says.
    """
    if version(connection, path, len(migrations)) == len(migrations):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # another process may have migrated while this one waited for the lock
        for step in migrations[version(connection, path, len(migrations)) :]:
            for statement in step.split(";\n"):
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(migrations)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def version(connection: sqlite3.Connection, path: str, newest: int = len(MIGRATIONS)) -> int:
    """The file's schema version, 0 of a new one; writes nothing.

    Raises:
        ArchiveError: written by a newer evokernel, or not an archive.
    """
    # In this order a file that another process creates just now is never taken for somebody else's.
    count, version, application = (
        int(connection.execute(query).fetchone()[0])
        for query in ("SELECT count(*) FROM sqlite_master", "PRAGMA user_version", "PRAGMA application_id")
    )
    if application != APPLICATION_ID and (application or version or count):
        raise ArchiveError(f"{path} is another program's SQLite database, not an evokernel archive; name another file")
    if version > newest:
        raise ArchiveError(
            f"{path} has schema version {version}, this evokernel knows {newest}: it was written by a newer version; "
            "update with `pip install -U evokernel-search`, or name another file"
        )
    return version
