"""What leaves the archive: which kernels and verdicts, under whose licence, and what is left out and why."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..archive.database import Database
from ..archive.search import Filters, where
from ..archive.verdicts import PROVEN, load, load_task
from ..errors import UsageError
from ..records import Task
from .columns import Source

_PAGE = 128
# --licence speaks for what was made here, never for what came from elsewhere.
LICENCE = "iif(k.licence != '' OR k.origin NOT IN ('run', 'user'), k.licence, ?)"
_NAME = r"(?!(?:AND|OR|WITH)\b)[A-Za-z0-9.+-]+"
_SPDX = re.compile(rf"\(*{_NAME}\)*(?: (?:AND|OR|WITH) \(*{_NAME}\)*)*")
_FROM = "FROM kernels k LEFT JOIN builds b ON b.kernel_id = k.id LEFT JOIN verdicts v ON v.build_id = b.id"


@dataclass(frozen=True)
class Selection:
    """`licence`: of the user's own kernels ("": not known). `everything`: also kernels of unknown licence, quarantined ones, those without a
    verdict, and verdicts by force. `verified`: only verdicts that are."""

    target: str | None = None
    device: str | None = None
    licence: str = ""
    everything: bool = False
    verified: bool = False

    def __post_init__(self) -> None:
        check_licence(self.licence)


def check_licence(licence: str) -> None:
    """Raises: UsageError: not the form of an SPDX expression (names with AND, OR and WITH, in parentheses or not); "" (unknown) may pass."""
    if licence and (not _SPDX.fullmatch(licence) or licence.count("(") != licence.count(")")):
        raise UsageError(f"{licence!r} is no SPDX licence expression; write such as Apache-2.0, or MIT AND (BSD-3-Clause OR CC-BY-4.0)")


def sources(database: Database, selection: Selection) -> Iterator[Source]:
    """What is selected, kernel by kernel in the order in which they came (so parents first), with a page of rows in memory at a time."""
    attempts = database.rows("SELECT *, min(seq) FROM attempts WHERE kernel_id IS NOT NULL GROUP BY kernel_id")
    made = {row["kernel_id"]: row for row in attempts}
    parents: dict[str, list[str]] = {}
    for edge in database.rows("SELECT child, parent FROM edges ORDER BY child, parent"):
        parents.setdefault(edge["child"], []).append(edge["parent"])

    @cache
    def task(task_id: str) -> Task:
        (row,) = database.rows("SELECT record FROM tasks WHERE id = ?", task_id)
        return load_task(row["record"])

    condition, values = _where(selection)
    kernels = database.rows(f"SELECT DISTINCT k.seq {_FROM} WHERE {condition} ORDER BY k.seq", *values)
    for page in (kernels[i : i + _PAGE] for i in range(0, len(kernels), _PAGE)):
        rows = database.rows(
            f"SELECT k.*, {LICENCE} AS stated, v.task_id, v.record, coalesce(v.imported, 0) AS imported {_FROM} "
            f"WHERE k.seq BETWEEN ? AND ? AND {condition} ORDER BY k.seq, v.seq",
            selection.licence, page[0]["seq"], page[-1]["seq"], *values,
        )  # fmt: skip
        for row in rows:
            verdict = load(row["record"]) if row["record"] else None
            of = task(row["task_id"]) if row["task_id"] else None
            yield Source(row, row["stated"], of, verdict, bool(row["imported"]), made.get(row["id"]), parents.get(row["id"], []))


def left_out(database: Database, selection: Selection) -> dict[str, int]:
    """How many kernels of the target and device asked for are left out, by the first reason of each."""
    if selection.everything:
        return {}
    condition, values = where(Filters(target=selection.target, device=selection.device))
    rows = database.rows(
        f"SELECT CASE WHEN {LICENCE} = '' THEN 'licence not known (--licence states that of your own)' WHEN k.quarantined IS NOT NULL "
        f"THEN 'quarantined' WHEN max(v.seq) IS NULL THEN 'never judged' "
        f"WHEN NOT max({PROVEN.format('v')}) THEN 'judged by force only' END AS why {_FROM} WHERE {condition} GROUP BY k.seq",
        selection.licence, *values,
    )  # fmt: skip
    return dict(Counter(row["why"] for row in rows if row["why"]))


def _where(selection: Selection) -> tuple[str, list[object]]:
    condition, values = where(Filters(target=selection.target, device=selection.device, verified=selection.verified))
    if selection.everything:
        return condition, values
    return f"{condition} AND {PROVEN.format('v')} AND k.quarantined IS NULL AND {LICENCE} != ''", [*values, selection.licence]


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which takes the place of `folder` at the end: it appears whole or not at all.

    Raises:
        UsageError: it holds something already.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists already and is not empty; choose another name")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as work:
        new = Path(work) / "new"
        new.mkdir()
        yield new
        if folder.exists():
            folder.rmdir()
        new.rename(folder)
