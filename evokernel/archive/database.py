"""One SQLite file in WAL mode, with our errors and our transactions.

Committed transactions survive `kill -9` of the process at any moment; a power cut may take the last seconds but leaves a sound file.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from ..errors import ArchiveError
from .schema import migrate

BUSY_TIMEOUT_S = 30.0


class Database:
    """A connection to one archive file, for one thread.

    Raises:
        ArchiveError: the file cannot be opened, is not an archive, or is newer than this program.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise ArchiveError(f"cannot open the archive {path}: {error}; name a file in a folder that you may write to") from error
        try:
            self._open()
        except (sqlite3.Error, ArchiveError) as error:
            self._connection.close()
            raise self._wrapped(error) from error

    def _open(self) -> None:
        self._connection.row_factory = sqlite3.Row
        _use_wal(self._connection)
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.execute("PRAGMA foreign_keys = ON")
        migrate(self._connection, str(self.path))

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
        found = self.rows(sql, *values)
        return found[0] if found else None

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

    def _wrapped(self, error: Exception) -> ArchiveError:
        if isinstance(error, ArchiveError):
            return error
        if isinstance(error, UnicodeEncodeError):
            return ArchiveError(f"a text for the archive is not valid Unicode ({error.reason} at character {error.start}); nothing was stored")
        if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
            return ArchiveError(f"the archive {self.path} stayed locked for {BUSY_TIMEOUT_S:.0f} s by another process; try again when it is done")
        if isinstance(error, sqlite3.IntegrityError):
            return ArchiveError(f"the archive {self.path} refused a row: {error}")
        return ArchiveError(f"the archive {self.path} failed: {error}; `evokernel archive check` tells whether the file is sound")


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
