"""Lessons: what verdicts teach, one line each, distilled without a model, and condensed by one where a run has one (search/condensing.py).

A *win* is a kernel that gained at least `GAIN` over its parent even at the ends of both 99 % intervals that speak against it, both measured in one
place under one set of rules. A *trap* is a kind of failure: one status, and one message but for its numbers and folders. The same lesson is kept once
and its evidence counted; it fades with the time since it was last seen. A *condensed* lesson is a model's sentence about some of these: it is shown
in place of those that rest on a kernel that it names. Texts come from kernels, compilers and models: show them to a model as data only.
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace

from ..errors import ArchiveError
from ..records import Kernel, Status, Verdict, digest
from . import words
from .database import Database
from .verdicts import PROVEN, load

WIN, TRAP, CONDENSED = "win", "trap", "condensed"
GAIN = 1.05
HALF_LIFE_DAYS = 60.0
SHOWN = 6  # lines for a model
_KEPT = 16  # of each kind, task and target
_NAMED = 4  # kernels that a lesson rests on, the first ones
_NEAR = 4  # similar tasks whose lessons are shown too, at half their weight
_TEXT = 240  # characters
_DIFF_LINES, _DIFF_BYTES = 40, 2_000  # of a pair that is shown
_EDGES = 1_000  # of a task, those that gained most


@dataclass(frozen=True)
class Lesson:
    """One lesson. `gain`: the least factor of a win, the largest seen. `evidence`: how often it was seen. Times are Unix times. `kernels`: those
    that taught it, the first few; of a condensed one all that the model named. That has the largest gain and all evidence of what it stands for."""

    id: str
    kind: str
    target: str
    task_id: str
    text: str
    gain: float | None
    evidence: int
    first_seen: float
    last_seen: float
    kernels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.evidence < 1 or not (self.gain is None or 1 <= self.gain < math.inf):
            raise ValueError(f"lesson {self.id} cannot be: it gains {self.gain}x, seen {self.evidence} times")

    def weight(self, now: float) -> float:
        """What it is worth now: a win its log gain, a trap as much as a gain of 10 %, more with evidence, half after each half-life."""
        strength = math.log(self.gain) if self.gain else math.log(1.1)
        return strength * (1 + math.log2(self.evidence)) * math.exp2(-max(now - self.last_seen, 0.0) / (HALF_LIFE_DAYS * 86_400))

    @property
    def line(self) -> str:
        """For a person or a model."""
        times = f" (seen {self.evidence} times)" if self.evidence > 1 else ""
        return f"{f'gained at least {self.gain:.2f}x, ' if self.gain else 'failed, '}{' '.join(self.text.split())}{times}"


@dataclass(frozen=True)
class Pair:
    """A kernel and the faster one that was made of it, on one task in one place. `gain`: the least factor, as of a win."""

    task_id: str
    operator: str
    slow: Kernel
    fast: Kernel
    diff: str
    verdicts: tuple[Verdict, Verdict]
    gain: float
    seen: float


# CROSS JOIN keeps SQLite to this order: the task's verdicts, then the few edges of each.
_GAINED = (
    "SELECT e.child, e.parent, e.diff, c.target, c.text, p.text AS parent_text, cv.record, pv.record AS parent_record, cv.created, a.operator "
    "FROM verdicts cv CROSS JOIN builds cb ON cb.id = cv.build_id CROSS JOIN edges e ON e.child = cb.kernel_id "
    "CROSS JOIN builds pb ON pb.kernel_id = e.parent AND pb.architecture = cb.architecture AND pb.compiler = cb.compiler "
    "CROSS JOIN verdicts pv ON pv.build_id = pb.id AND pv.task_id = cv.task_id AND pv.device = cv.device AND pv.protocol = cv.protocol "
    "AND pv.versions = cv.versions AND pv.imported = cv.imported "
    "JOIN kernels c ON c.id = e.child JOIN kernels p ON p.id = e.parent LEFT JOIN attempts a ON a.seq = e.attempt "
    f"WHERE cv.task_id = ? AND cv.status = '{Status.VERIFIED}' AND pv.status = '{Status.VERIFIED}' AND cv.speedup_low >= {GAIN} * pv.speedup_low "
    f"AND {PROVEN.format('cv')} AND c.quarantined IS NULL AND p.quarantined IS NULL ORDER BY cv.speedup_low / pv.speedup_low DESC, cv.seq LIMIT ?"
)
_FAILED = (
    "SELECT k.id, k.target, v.status, v.record, v.created FROM verdicts v JOIN builds b ON b.id = v.build_id JOIN kernels k ON k.id = b.kernel_id "
    f"WHERE v.task_id = ? AND v.status != '{Status.VERIFIED}' ORDER BY v.seq"
)


def pairs(database: Database, task_id: str, target: str | None = None) -> list[Pair]:
    """What became faster by at least GAIN, the largest gain first, each pair once."""
    found: list[Pair] = []
    for row in database.rows(_GAINED, task_id, _EDGES):
        slow, fast = load(row["parent_record"]), load(row["record"])
        if not slow.speedup or not fast.speedup or target not in (None, row["target"]) or fast.speedup.low < GAIN * slow.speedup.high:
            continue
        kernels = Kernel(row["parent"], row["target"], row["parent_text"]), Kernel(row["child"], row["target"], row["text"])
        gain = fast.speedup.low / slow.speedup.high
        found.append(Pair(task_id, row["operator"] or "import", *kernels, row["diff"], (slow, fast), gain, row["created"]))
    found.sort(key=lambda p: p.gain)
    return sorted({(p.slow.id, p.fast.id): p for p in found}.values(), key=lambda p: -p.gain)


def distil(database: Database, task_ids: Iterable[str]) -> None:
    """Bring the lessons of these tasks up to date with their verdicts. Those whose evidence was pruned stay as they were."""
    found = [lesson for task_id in task_ids for lesson in _merged([*_wins(database, task_id), *_traps(database, task_id)])]
    if found:
        with database.write() as connection:
            for lesson in found:
                store(connection, lesson)
            for place in sorted({(lesson.task_id, lesson.target, lesson.kind) for lesson in found}):
                _forget(connection, _placed(connection, *place)[_KEPT:])


def store(connection: sqlite3.Connection, lesson: Lesson) -> None:
    """Write a lesson; of one that was there the larger evidence and gain count, so that nothing is counted twice."""
    connection.execute(
        "INSERT INTO lessons VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (id) DO UPDATE SET text = CASE WHEN excluded.gain > gain THEN excluded.text ELSE text END, "
        "kernels = CASE WHEN excluded.evidence >= evidence AND excluded.kernels != '' THEN excluded.kernels ELSE kernels END, "
        "gain = max(gain, excluded.gain), evidence = max(evidence, excluded.evidence), "
        "first_seen = min(first_seen, excluded.first_seen), last_seen = max(last_seen, excluded.last_seen)",
        (*astuple(lesson)[:-1], " ".join(lesson.kernels)),
    )


def condensed(text: str, named: Iterable[str], lessons: Sequence[Lesson]) -> Lesson | None:
    """A model's sentence in place of those of the `lessons` (of one task and target) that rest on a kernel it names; None where none does."""
    kernels = set(named)
    covered = [lesson for lesson in lessons if not kernels.isdisjoint(lesson.kernels)]
    said = " ".join(text.encode("utf-8", "replace").decode().split())
    if not covered or not said:
        return None
    whole = _joined(covered)
    known = dict.fromkeys(k for lesson in covered for k in lesson.kernels if k in kernels)
    key = digest(CONDENSED, whole.target, whole.task_id, _normal(said), *sorted(known))
    return replace(whole, id=key, kind=CONDENSED, text=f"{CONDENSED}: {_short(said)}", kernels=tuple(known))


def condense(connection: sqlite3.Connection, made: Sequence[Lesson]) -> None:
    """Store condensed lessons of one task and target; an older one that rests on no other kernels than these do goes."""
    kernels = {k for lesson in made for k in lesson.kernels}
    for place in {(lesson.task_id, lesson.target, CONDENSED) for lesson in made}:
        _forget(connection, [older for older in _placed(connection, *place) if kernels.issuperset(older.kernels)])
        for lesson in made:
            store(connection, lesson)
        _forget(connection, _placed(connection, *place)[_KEPT:])


def standing(lessons: Sequence[Lesson]) -> list[Lesson]:
    """Of the lessons of a task and target those to be shown: condensed ones, last seen when any that they stand for was, and all others."""
    raw = [lesson for lesson in lessons if lesson.kind != CONDENSED]
    seen = {k: max(lesson.last_seen for lesson in raw if k in lesson.kernels) for k in {k for lesson in raw for k in lesson.kernels}}
    made = [replace(x, last_seen=max([x.last_seen, *(seen[k] for k in x.kernels if k in seen)])) for x in lessons if x.kind == CONDENSED]
    covered = {k for lesson in made for k in lesson.kernels}
    return made + [lesson for lesson in raw if covered.isdisjoint(lesson.kernels)]


def listed(database: Database, task_id: str | None = None, target: str | None = None) -> list[Lesson]:
    """The lessons of a task and target (None: of all), what weighs most first."""
    rows = database.rows("SELECT * FROM lessons WHERE coalesce(?, task_id) = task_id AND coalesce(?, target) = target", task_id, target)
    return _weighed(rows)


def advice(database: Database, task_id: str, near: Sequence[str], target: str) -> tuple[str, ...]:
    """At most SHOWN entries for prompts, one line each but for the last, which may be a pair's diff: wins and traps of the task, and wins of
    similar ones (`near`, most similar first). Brings their lessons up to date."""
    tasks = [task_id, *(t for t in dict.fromkeys(near) if t != task_id)][: 1 + _NEAR]
    distil(database, tasks)
    now, shares = time.time(), {t: 1.0 if t == task_id else 0.5 for t in tasks}
    names = {row["id"]: row["name"] for t in tasks for row in database.rows("SELECT id, name FROM tasks WHERE id = ?", t)}
    # A failure on another task says little about this one.
    known = [lesson for t in tasks for lesson in standing(listed(database, t, target)) if t == task_id or lesson.gain]
    known.sort(key=lambda lesson: (-round(shares[lesson.task_id] * lesson.weight(now), 3), lesson.id))
    shown = _shown_pair([p for t in tasks for p in pairs(database, t, target)[:_KEPT]])
    room = SHOWN - len(shown)
    wins, traps = ([x for x in known if bool(x.gain) is won] for won in (True, False))
    traps = traps[: max(room // 2, room - len(wins))]
    chosen = wins[: room - len(traps)] + traps
    return (*(c.line + (f" (task {names[c.task_id]})" if c.task_id != task_id else "") for c in chosen), *shown)


def _shown_pair(found: list[Pair]) -> list[str]:
    """The change that gained most, of those that are short enough to be shown."""
    for pair in sorted(found, key=lambda p: (-p.gain, p.fast.id)):
        lines = pair.diff.splitlines()[2:]
        if len(lines) <= _DIFF_LINES and len(pair.diff.encode()) <= _DIFF_BYTES:
            return [f"gained at least {pair.gain:.2f}x, {pair.operator}, this change:\n" + "\n".join(lines)]
    return []


def _wins(database: Database, task_id: str) -> list[Lesson]:
    return [_win(pair) for pair in pairs(database, task_id)]


def _win(pair: Pair) -> Lesson:
    slow, fast = pair.verdicts
    before, after = (set(v.resources.features if v.resources else ()) for v in (slow, fast))
    tuned = sorted(n for n, value in fast.config.items() if slow.config.get(n, value) != value)
    comment = _short(_heading(pair.fast.text))
    features = [f"compiled code {v} {', '.join(sorted(f))}" for v, f in (("gained", after - before), ("lost", before - after)) if f]
    changes = (comment, *features, *(f"{n} {slow.config[n]!r} to {fast.config[n]!r}" for n in tuned))
    text = f"{pair.operator}: {'; '.join(change for change in changes if change)}"
    key = (WIN, pair.fast.target, pair.task_id, pair.operator, _normal(comment), *sorted(after - before), "-", *sorted(before - after), "-", *tuned)
    return Lesson(digest(*key), WIN, pair.fast.target, pair.task_id, text, pair.gain, 1, pair.seen, pair.seen, (pair.fast.id,))


def _traps(database: Database, task_id: str) -> list[Lesson]:
    found = []
    for row in database.rows(_FAILED, task_id):
        message = _short(json.loads(row["record"])["message"])  # a whole record takes a hundred times as long to read
        if message:
            key = (TRAP, row["target"], task_id, row["status"], _normal(" ".join(message.split())))
            text = f"{row['status']}: {message}"
            found.append(Lesson(digest(*key), TRAP, row["target"], task_id, text, None, 1, row["created"], row["created"], (row["id"],)))
    return found


def _merged(lessons: Sequence[Lesson]) -> list[Lesson]:
    groups: dict[str, list[Lesson]] = defaultdict(list)
    for lesson in lessons:
        groups[lesson.id].append(lesson)
    return [_joined(same) for same in groups.values()]


def _joined(lessons: Sequence[Lesson]) -> Lesson:
    """The one that gained most, with the evidence of all."""
    best, old = max(lessons, key=lambda lesson: lesson.gain or 0.0), sorted(lessons, key=lambda lesson: lesson.first_seen)
    kernels = tuple(dict.fromkeys(k for lesson in old for k in lesson.kernels))[:_NAMED]
    evidence, last = sum(lesson.evidence for lesson in lessons), max(lesson.last_seen for lesson in lessons)
    return replace(best, evidence=evidence, first_seen=old[0].first_seen, last_seen=last, kernels=kernels)


def _placed(connection: sqlite3.Connection, task_id: str, target: str, kind: str) -> list[Lesson]:
    sql = "SELECT * FROM lessons WHERE task_id = ? AND target = ? AND kind = ?"
    return _weighed(connection.execute(sql, (task_id, target, kind)).fetchall())


def _forget(connection: sqlite3.Connection, lessons: Iterable[Lesson]) -> None:
    connection.executemany("DELETE FROM lessons WHERE id = ?", [(lesson.id,) for lesson in lessons])


def _weighed(rows: Iterable[sqlite3.Row]) -> list[Lesson]:
    """Rows as lessons, what weighs most first. Raises ArchiveError where one is none."""
    now = time.time()
    try:
        found = [Lesson(*(*tuple(row)[1:-1], tuple(row["kernels"].split()))) for row in rows]
    except ValueError as error:
        raise ArchiveError(f"{error}; `evokernel archive check --repair` removes it") from error
    return sorted(found, key=lambda lesson: (-lesson.weight(now), lesson.id))


def _heading(text: str) -> str:
    """The first sentence of a kernel file, which says what it does."""
    return re.split(r"(?<=[.:;])\s", words.strategy(text), maxsplit=1)[0]


def _short(text: str) -> str:
    """The text without spare white space, cut; in its own lines, of which tables show the first."""
    short = "\n".join(" ".join(line.split()) for line in text.splitlines() if line.strip())
    return short if len(short) <= _TEXT else short[: _TEXT - 4] + " ..."


def _normal(text: str) -> str:
    """The text without what differs from one kernel to the next: folders and numbers."""
    return re.sub(r"0x[0-9a-fA-F]+|[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|\b(?:nan|inf)\b", "#", re.sub(r"\S*/", "", text)).lower()
