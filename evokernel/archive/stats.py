"""Counts over the archive, and who made the difference: how far runs' best kernels rose by each operator and each stepping stone."""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ..records import Status
from .database import Database
from .runs import Confirmed, Judged, read_events


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


_ATTEMPTS = (
    "SELECT seq, run_id, number, operator, status, input_tokens + output_tokens AS tokens, cost_usd FROM attempts "
    "WHERE coalesce(?, run_id) = run_id ORDER BY run_id, number"
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
    attempts = database.rows(_ATTEMPTS, run_id)
    fitness = {run: _fitness(database, run) for run in {row["run_id"] for row in attempts}}
    rises: dict[int, float] = {}
    best: dict[str, float] = {}
    for row in attempts:
        before = best.get(row["run_id"], 0.0)
        rises[row["seq"]] = max(fitness[row["run_id"]].get(row["number"], -math.inf) - before, 0.0)
        best[row["run_id"]] = before + rises[row["seq"]]
    rows = {row["seq"]: row for row in attempts}
    uses = database.rows("SELECT stone, attempt FROM uses")
    by_stone = [(use["stone"], rows[use["attempt"]]) for use in uses if use["attempt"] in rows]
    return _summed(((row["operator"], row) for row in attempts), rises), _summed(by_stone, rises)


def _fitness(database: Database, run_id: str) -> dict[int, float]:
    """The fitness of a run's attempts by their numbers: by the last verdict that the run's own log has of each kernel, so that nothing measured
    later, elsewhere or under other versions mixes in, and kernels that were pruned still count."""
    made: dict[int, str] = {}
    fitness: dict[str, float] = {}
    for logged in read_events(database, run_id):
        if isinstance(logged.event, Judged):
            made[logged.event.number] = logged.event.verdict.kernel_id
        if isinstance(logged.event, Judged | Confirmed):
            fitness[logged.event.verdict.kernel_id] = logged.event.verdict.fitness
    return {number: fitness[kernel_id] for number, kernel_id in made.items()}


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
