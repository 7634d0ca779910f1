"""One SQLite file in WAL mode, with our errors and our transactions.

Committed transactions survive `kill -9` of the process at any moment; a power cut may take the last seconds but leaves a sound file.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from ..errors import ArchiveError
from .schema import migrate, version

BUSY_TIMEOUT_S = 30.0


class Database:
    """A connection to one archive file, for one thread. `copied`: to a copy in memory; the file itself is only read.

    Raises:
        ArchiveError: the file cannot be opened, is not an archive, or is newer than this program.
    """

    def __init__(self, path: Path, *, copied: bool = False) -> None:
        self.path, self._advice = path, "name another file, or go back to a copy"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(":memory:" if copied else path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise ArchiveError(f"cannot open the archive {path}: {error}; name a file in a folder that you may write to") from error
        try:
            if copied:
                # Without a log nobody has the file open: it is read as it is, in a folder that takes no files too, and none are left beside it.
                logged = any(Path(f"{path}{end}").exists() for end in ("-wal", "-journal"))
                how = "mode=ro" if logged else "immutable=1"
                with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?{how}", uri=True)) as source:
                    source.backup(self._connection)
            self._open()
        except (sqlite3.Error, ArchiveError) as error:
            self._connection.close()
            raise self._wrapped(error) from error

    def _open(self) -> None:
        self._connection.row_factory = sqlite3.Row
        self._connection.create_function("readable", 1, _readable, deterministic=True)
        version(self._connection, str(self.path))  # before anything is written: it may be another program's file
        _use_wal(self._connection)
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.execute("PRAGMA foreign_keys = ON")
        migrate(self._connection, str(self.path))
        self._advice = "`evokernel archive check` tells whether the file is sound"

    def close(self) -> None:
        self._connection.close()

    def rows(self, sql: str, *values: object) -> list[sqlite3.Row]:
        """All rows of a query.

        Raises:
            ArchiveError: SQLite failed.
        """
        try:
            return self._connection.execute(sql, values).fetchall()
        except (sqlite3.Error, UnicodeEncodeError) as error:
            raise self._wrapped(error) from error

    def row(self, sql: str, *values: object) -> sqlite3.Row | None:
        """The first row of a query, or None."""
        return next(iter(self.rows(sql, *values)), None)

    @contextlib.contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """One write transaction: all of it is committed, or (on any exception) nothing.

        Raises:
            ArchiveError: SQLite failed, or a text is not valid Unicode.
        """
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        except (sqlite3.Error, UnicodeEncodeError) as error:
            raise self._wrapped(error) from error

    def forgive(self) -> None:
        """For a check: from now on texts that are not UTF-8 are read as well as can be, and failures do not advise a check."""
        self._connection.text_factory, self._advice = _readable, "go back to a copy"

    def undecodable(self) -> Iterator[tuple[str, str]]:
        """Each text that is not UTF-8, in words with what stands in the first column of its row, and the statement that makes it readable."""
        texts = "SELECT t.name, c.name, f.name FROM sqlite_master t, pragma_table_info(t.name) c, pragma_table_info(t.name) f"
        for table, column, first in map(tuple, self.rows(f"{texts} WHERE t.sql LIKE '%STRICT%' AND c.type = 'TEXT' AND f.cid = 0")):
            mended = f"readable(CAST({column} AS BLOB))"
            for row in self.rows(f"SELECT readable(CAST({first} AS BLOB)) FROM {table} WHERE {column} IS NOT {mended}"):
                repair = f"UPDATE OR IGNORE {table} SET {column} = {mended} WHERE {column} IS NOT {mended}"
                yield f"{table}: {column} of the row with the {first} {row[0]} is not UTF-8", repair

    def _wrapped(self, error: Exception) -> ArchiveError:
        if isinstance(error, ArchiveError):
            return error
        if isinstance(error, UnicodeEncodeError):
            return ArchiveError(f"a text for the archive is not valid Unicode ({error.reason} at character {error.start}); nothing was stored")
        if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
            return ArchiveError(f"the archive {self.path} stayed locked for {BUSY_TIMEOUT_S:.0f} s by another process; try again when it is done")
        if self.path.is_file() and re.search("readonly|unable to open", str(error)):
            advice = "copy it, and its -wal if it has one, to a folder that you may write to"
            return ArchiveError(f"the archive {self.path} cannot be used where it is ({error}); {advice}")
        if isinstance(error, sqlite3.IntegrityError):
            return ArchiveError(f"the archive {self.path} refused a row: {error}")
        if "decode to UTF-8" in str(error):
            what, _ = next(self.undecodable(), (str(error), ""))
            return ArchiveError(f"the archive {self.path} is damaged, {what}; `evokernel archive check --repair` mends it, keep a copy first")
        return ArchiveError(f"the archive {self.path} failed: {error}; {self._advice}")


def _readable(data: bytes | None) -> str | None:
    return data if data is None else data.decode("utf-8", "replace")


def _use_wal(connection: sqlite3.Connection) -> None:
    # The switch to WAL does not wait for the busy timeout: two processes that create one file at once would fail here.
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
