"""What leaves the archive: which kernels and verdicts, under whose licence, and what is left out and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from .. import codec
from ..archive.database import Database
from ..archive.verdicts import load
from ..records import Status, Task
from .columns import Source

_PAGE = 128
# --licence speaks for what was made here, never for what came from elsewhere.
LICENCE = "iif(k.licence != '' OR k.origin NOT IN ('run', 'user'), k.licence, ?)"
_FROM = "FROM kernels k LEFT JOIN builds b ON b.kernel_id = k.id LEFT JOIN verdicts v ON v.build_id = b.id"


@dataclass(frozen=True)
class Selection:
    """`licence`: of the user's own kernels ("": not known). `everything`: also kernels of unknown licence, quarantined ones and those without a
    verdict. `verified`: only verdicts that are."""

    target: str | None = None
    device: str | None = None
    licence: str = ""
    everything: bool = False
    verified: bool = False


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
        return codec.loads(Task, row["record"])

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
    """How many kernels are left out, by the reason."""
    if selection.everything:
        return {}
    reasons: dict[str, tuple[str, list[str]]] = {
        "licence not known (--licence states that of your own)": (f"{LICENCE} = ''", [selection.licence]),
        "quarantined": ("k.quarantined IS NOT NULL", []), "never judged": ("v.seq IS NULL", []),
    }  # fmt: skip
    of_target = selection.target or "%"
    counted = {
        why: int(database.rows(f"SELECT count(DISTINCT k.id) {_FROM} WHERE k.target LIKE ? AND {rule}", of_target, *values)[0][0])
        for why, (rule, values) in reasons.items()
    }
    return {why: number for why, number in counted.items() if number}


def _where(selection: Selection) -> tuple[str, list[object]]:
    parts, values = ["1"], list[object]()
    for column, value in (("k.target = ?", selection.target), ("v.device = ?", selection.device)):
        if value is not None:
            parts.append(column)
            values.append(value)
    if selection.verified:
        parts.append(f"v.status = '{Status.VERIFIED}'")
    if not selection.everything:
        parts += ["v.seq IS NOT NULL", "k.quarantined IS NULL", f"{LICENCE} != ''"]
        values.append(selection.licence)
    return " AND ".join(parts), values
