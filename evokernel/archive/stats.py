"""Counts over the archive, and who made the difference: how far runs' best kernels rose by each operator and each stepping stone."""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ..records import Status
from .database import Database


@dataclass(frozen=True)
class Contribution:
    """What attempts by one operator (or from one stepping stone: `name` is its kernel's id) did. `gain`: the factor by which they raised the speedup
    of runs' best kernels, from the baseline's 1 on, the geometric mean over the runs that they are of."""

    name: str
    attempts: int
    verified: int
    raised: int
    gain: float
    tokens: int
    cost_usd: float


@dataclass(frozen=True)
class Stats:
    """Counts over the whole archive. `statuses` counts verdicts, `targets` and `origins` kernels, `devices`, `tasks_by_name` and `techniques` (the
    40 most frequent) verified verdicts."""

    tasks: int
    kernels: int
    quarantined: int
    runs: int
    attempts: int
    lessons: int
    cost_usd: float
    statuses: dict[str, int]
    targets: dict[str, int]
    origins: dict[str, int]
    devices: dict[str, int]
    tasks_by_name: dict[str, int]
    techniques: dict[str, int]
    operators: tuple[Contribution, ...]


# The verdict of an attempt's kernel on the run's task and device: of several the lowest.
_ATTEMPTS = (
    "SELECT a.run_id, a.operator, a.status, a.input_tokens + a.output_tokens AS tokens, a.cost_usd, a.seq, min(v.speedup_low) AS speedup_low "
    "FROM attempts a CROSS JOIN events s ON s.run_id = a.run_id AND s.number = 0 LEFT JOIN builds b ON b.kernel_id = a.kernel_id "
    "LEFT JOIN verdicts v ON v.build_id = b.id AND v.task_id = a.task_id AND v.status = ? AND a.status = v.status "
    "AND v.device = json_extract(s.record, '$.event.device.name') "
    "WHERE coalesce(?, a.run_id) = a.run_id GROUP BY a.seq ORDER BY a.run_id, a.number"
)
_VERIFIED = f"FROM verdicts v JOIN builds b ON b.id = v.build_id JOIN tasks t ON t.id = v.task_id WHERE v.status = '{Status.VERIFIED}'"
_TECHNIQUES = 40
_CONDENSED = "(SELECT total(json_extract(record, '$.event.cost_usd')) FROM events WHERE kind = 'Condensed')"


def stats(database: Database) -> Stats:
    """Counts over the whole archive."""

    def count(rest: str) -> int:
        return int(database.rows(f"SELECT count(*) FROM {rest}")[0][0])

    def by(column: str, rest: str) -> dict[str, int]:
        return {r[0]: r[1] for r in database.rows(f"SELECT {column}, count(*) {rest} GROUP BY 1 ORDER BY 2 DESC, 1")}

    features = Counter(feature for row in database.rows(f"SELECT v.features {_VERIFIED}") for feature in row["features"].split())
    return Stats(
        count("tasks"), count("kernels"), count("kernels WHERE quarantined IS NOT NULL"), count("runs"), count("attempts"), count("lessons"),
        database.rows(f"SELECT total(cost_usd) + {_CONDENSED} FROM attempts")[0][0], by("status", "FROM verdicts"), by("target", "FROM kernels"),
        by("origin", "FROM kernels"), by("v.device", _VERIFIED), by("t.name", _VERIFIED), dict(features.most_common(_TECHNIQUES)),
        contributions(database)[0],
    )  # fmt: skip


def contributions(database: Database, run_id: str | None = None) -> tuple[tuple[Contribution, ...], tuple[Contribution, ...]]:
    """By operator and by stepping stone, what the attempts of a run (None: of all) did, what gained most first."""
    attempts = database.rows(_ATTEMPTS, Status.VERIFIED.value, run_id)
    rises: dict[int, float] = {}
    best: dict[str, float] = {}
    for row in attempts:
        low = row["speedup_low"] or 0.0
        rises[row["seq"]] = max(math.log(low) - best.get(row["run_id"], 0.0), 0.0) if low > 0 else 0.0
        best[row["run_id"]] = best.get(row["run_id"], 0.0) + rises[row["seq"]]
    rows = {row["seq"]: row for row in attempts}
    uses = database.rows("SELECT stone, attempt FROM uses")
    by_stone = [(use["stone"], rows[use["attempt"]]) for use in uses if use["attempt"] in rows]
    return _summed(((row["operator"], row) for row in attempts), rises), _summed(by_stone, rises)


def _summed(named: Iterable[tuple[str, sqlite3.Row]], rises: dict[int, float]) -> tuple[Contribution, ...]:
    groups: dict[str, list[sqlite3.Row]] = {}
    for name, row in named:
        groups.setdefault(name, []).append(row)
    found = []
    for name, rows in groups.items():
        gain = math.exp(sum(rises[r["seq"]] for r in rows) / len({r["run_id"] for r in rows}))
        raised = sum(rises[r["seq"]] > 0 for r in rows)
        verified = sum(r["status"] == Status.VERIFIED for r in rows)
        found.append(Contribution(name, len(rows), verified, raised, gain, sum(r["tokens"] for r in rows), sum(r["cost_usd"] for r in rows)))
    return tuple(sorted(found, key=lambda c: (-c.gain, -c.raised, c.name)))
