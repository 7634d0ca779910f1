"""The innovation archive: what every run learned, in one SQLite file, kept across runs, tasks and devices.

    with Archive("archive.db") as archive:
        archive.add_task(task)
        archive.search("softmax rows", Filters(target="cpp"))

Everything here raises ArchiveError when the file cannot be used, and never imports torch, networkx or an index library by itself.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from .. import codec
from ..errors import ArchiveError, UsageError
from ..records import Attempt, Environment, Kernel, Placement, Status, Task, Verdict
from . import check, lessons, lifecycle, runs, search, stones, verdicts, words
from .database import Database
from .lessons import Lesson, Pair
from .lifecycle import Due, Here, Merged, Pruned
from .retrieval import Question, Retrieval, by_words
from .runs import Condensed, Confirmed, Judged, Logged, RunLog, RunRow, Started
from .search import Entry, Filters, Hit
from .stats import Contribution, Stats, contributions, stats
from .stones import Stone
from .verdicts import Origin

if TYPE_CHECKING:
    import networkx as nx

    from .embed import TextModel
    from .index import Indexes
    from .vectors import Filled


class Archive:
    """One archive file, opened (and created) by one thread of one process; several processes may have it open and write.

    Raises:
        ArchiveError: the file cannot be opened, is not an archive, or is newer than this program.
    """

    def __init__(self, path: str | Path) -> None:
        self.database = Database(Path(path))
        self._indexes: Indexes | None = None

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.database.close()

    def add_task(self, task: Task) -> Placement:
        """Store a task: KEPT, or DUPLICATE when it was there (its file may have moved: its new name and path are stored)."""
        with self.database.write() as connection:
            if verdicts.insert_task(connection, task):
                return Placement.KEPT
            sql = "UPDATE tasks SET name = ?, record = ? WHERE id = ? RETURNING seq"
            words.index_task(connection, connection.execute(sql, (task.name, codec.dumps(task), task.id)).fetchone()["seq"], task)
            return Placement.DUPLICATE

    def add_kernel(self, kernel: Kernel, origin: Origin) -> Placement:
        """Store a kernel without a verdict: KEPT, or DUPLICATE when it was there."""
        with self.database.write() as connection:
            return Placement.KEPT if verdicts.insert_kernel(connection, kernel, origin) else Placement.DUPLICATE

    def quarantine(self, kernel_id: str, reason: str) -> None:
        """Keep a kernel from ever seeding a search or being the best; it stays readable.

        Raises:
            UsageError: no such kernel.
        """
        with self.database.write() as connection:
            if not connection.execute("UPDATE kernels SET quarantined = ? WHERE id = ?", (reason, kernel_id)).rowcount:
                raise UsageError(f"there is no kernel {kernel_id} in {self.database.path}")

    def record(self, attempt: Attempt, task: Task, log: RunLog, elapsed_s: float) -> Logged:
        """Store a judged attempt: kernel, edges, verdict and the run's event in one transaction.

        Returns the event, a Judged. The same text or the same code measured here before makes it a DUPLICATE, which counts with the lower of the
        two measurements. Edges are kept only for a kernel's first making, so that lineage has no cycles.

        Raises:
            ArchiveError: nothing was stored: lease lost, this proposal was judged before, unknown parent, invalid Unicode.
        """
        with self.database.write() as connection:
            verdict, duplicate, new = attempt.verdict, False, False
            if attempt.kernel:
                new = verdicts.insert_kernel(connection, attempt.kernel, Origin("run", source=log.run_id))
                verdict, duplicate = verdicts.shared(self.database, verdict, task)
                verdicts.store(connection, verdict, task, imported=False)
            best = connection.execute("SELECT best_fitness FROM runs WHERE id = ?", (log.run_id,)).fetchone()[0]
            placement = _place(connection, log.run_id, verdict, duplicate)
            row = _insert_attempt(connection, attempt, task, log.run_id, placement, verdict.status)
            if attempt.kernel:
                # The first kernel of a run has improved it where it is faster than the baseline.
                stones.note_uses(connection, attempt.proposal, log.run_id, row, improved=verdict.fitness > (0.0 if best is None else best))
            if new and attempt.kernel:
                verdicts.insert_edges(connection, attempt.kernel, attempt.proposal.parents, row)
            return log.append_within(connection, Judged(attempt.proposal.number, placement, verdict), elapsed_s)

    def confirm(self, verdict: Verdict, task: Task, log: RunLog, elapsed_s: float) -> Logged:
        """Store a second measurement of a kernel. Returns the event, a Confirmed with the lower of the two, which stands from now on."""
        with self.database.write() as connection:
            before = verdicts.known(self.database, verdict.kernel_id, task.id, verdict.environment)
            standing = verdicts.lower(before, verdict) if before else verdict
            verdicts.store(connection, standing, task, imported=False)
            return log.append_within(connection, Confirmed(standing), elapsed_s)

    def known(self, kernel_id: str, task_id: str, environment: Environment) -> Verdict | None:
        """The stored verdict of this kernel, measured here on the same device with the same protocol, compiler and versions."""
        return verdicts.known(self.database, kernel_id, task_id, environment)

    def start_run(self, started: Started) -> RunLog:
        """A new run, held by this process; release the log at the end.

        Raises:
            ArchiveError: its task is not in the archive, or SQLite failed.
        """
        return runs.create(self.database, started)

    def acquire_run(self, run_id: str) -> RunLog:
        """The log of an existing run, to go on with it.

        Raises:
            UsageError: no such run.
            ArchiveError: a live process drives it.
        """
        return runs.acquire(self.database, run_id)

    def events(self, run_id: str) -> list[Logged]:
        """The events of a run, oldest first."""
        return list(runs.read_events(self.database, run_id))

    def runs(self) -> list[RunRow]:
        """All runs, newest first."""
        return runs.list_runs(self.database)

    def find_run(self, id_prefix: str) -> str:
        """The id of the newest run whose id begins so.

        Raises:
            UsageError: there is none.
        """
        row = self.database.row("SELECT id FROM runs WHERE substr(id, 1, length(?)) = ? ORDER BY seq DESC", id_prefix, id_prefix)
        if row is None:
            raise UsageError(f"there is no run {id_prefix!r} in {self.database.path}; `evokernel archive runs` lists them")
        return str(row["id"])

    def task(self, task_id: str) -> Task:
        """Raises:
        UsageError: no such task.
        """
        row = self.database.row("SELECT record FROM tasks WHERE id = ?", task_id)
        if row is None:
            raise UsageError(f"there is no task {task_id} in {self.database.path}")
        return verdicts.load_task(row["record"])

    def task_names(self) -> dict[str, str]:
        """The names of all tasks by id."""
        return {row["id"]: row["name"] for row in self.database.rows("SELECT id, name FROM tasks ORDER BY seq")}

    def find_tasks(self, task: str) -> list[str]:
        """The ids of the tasks that have this name, or whose id begins so.

        Raises:
            UsageError: there is none.
        """
        found = [task_id for task_id, name in self.task_names().items() if name == task or (task and task_id.startswith(task))]
        if not found:
            raise UsageError(f"there is no task {task!r} in {self.database.path}; `evokernel archive stats` names those with verified kernels")
        return found

    def find(self, id_prefix: str) -> Kernel:
        """The one kernel whose id begins so.

        Raises:
            UsageError: no kernel, or several.
        """
        # As a range, which the index serves: ids are hexadecimal, and "g" follows all that can come after the prefix.
        first = id_prefix.lower()
        rows = self.database.rows("SELECT id, target, text FROM kernels WHERE id >= ? AND id < ? LIMIT 9", first, f"{first}g")
        if not id_prefix or not rows:
            raise UsageError(f"no kernel in {self.database.path} has an id that begins with {id_prefix!r}; `evokernel archive search` lists ids")
        if len(rows) > 1:
            raise UsageError(f"{id_prefix!r} begins several ids: {', '.join(r['id'] for r in rows)}; give more digits")
        return Kernel(rows[0]["id"], rows[0]["target"], rows[0]["text"])

    def best(self, task_id: str, target: str, device: str | None = None) -> Entry | None:
        """The fastest kernel verified here for a task (by the lower bound of its speedup), or None."""
        return search.fastest(self.database, task_id, target, device)

    def entries(self, filters: Filters, limit: int = 50) -> list[Entry]:
        """Kernels with their verdicts, one entry a verdict, the fastest first."""
        return search.list_entries(self.database, filters, limit)

    def search(self, question: str | Question, filters: Filters, limit: int = 20, model: TextModel | None = None) -> list[Hit]:
        """Kernels found by words, by the meaning of words (with a model), or by code like a kernel's, the best match first. See retrieval.py."""
        if isinstance(question, str):
            question = by_words(question)
        if self._indexes is None:
            from .index import Indexes

            self._indexes = Indexes(self.database)
        return Retrieval(self.database, self._indexes, model).search(question, filters, limit)

    def fill(self, model: TextModel | None = None, budget_s: float | None = None) -> Filled:
        """Make the vectors that are missing, those of text with a model; see vectors.py."""
        from .vectors import fill

        return fill(self.database, model, budget_s)

    def stones(self, task: Task, target: str, limit: int = 16, device: str | None = None) -> tuple[Stone, ...]:
        """Stepping stones for a task, in the order in which to try them; those measured on `device` (its name) are preferred."""
        return stones.retrieve(self.database, task, target, limit, device)

    def stone(self, kernel_id: str, task_id: str) -> Stone | None:
        """One stepping stone with its task; None when it may not seed (any more)."""
        return stones.load(self.database, kernel_id, task_id)

    def lineage(self, kernel_id: str) -> nx.DiGraph:
        """The kernel and all its ancestors as a DAG (see lineage.py for the attributes)."""
        from .lineage import graph

        return graph(self.database, kernel_id)

    def contributions(self, run_id: str | None = None) -> tuple[tuple[Contribution, ...], tuple[Contribution, ...]]:
        """By operator and by stepping stone, how much they raised the best kernels of a run (None: of all runs)."""
        return contributions(self.database, run_id)

    def stats(self) -> Stats:
        """Counts over the whole archive."""
        return stats(self.database)

    def usefulness(self, kernel_ids: Iterable[str], stage: str) -> dict[str, float]:
        """How often a kernel helped as a parent in runs that had it from the archive, in the stage "early" or "late"."""
        return stones.usefulness(self.database, kernel_ids, stage)

    def lessons(self, task_id: str | None = None, target: str | None = None) -> list[Lesson]:
        """What the verdicts on a task (None: on all) teach, brought up to date, what weighs most first."""
        lessons.distil(self.database, [task_id] if task_id else [r["id"] for r in self.database.rows("SELECT id FROM tasks")])
        return lessons.listed(self.database, task_id, target)

    def condense(self, made: Sequence[Lesson], tokens: int, cost_usd: float, log: RunLog, elapsed_s: float) -> Logged:
        """Store condensed lessons and the run's event, a Condensed, in one transaction."""
        with self.database.write() as connection:
            lessons.condense(connection, made)
            return log.append_within(connection, Condensed(tuple(lesson.text for lesson in made), tokens, cost_usd), elapsed_s)

    def advice(self, task_id: str, target: str, near: Sequence[str] = ()) -> tuple[str, ...]:
        """The few lessons of a task, and of those near it, that prompts show."""
        return lessons.advice(self.database, task_id, near, target)

    def pairs(self, task_id: str, target: str | None = None) -> list[Pair]:
        """Kernels with the clearly faster ones that were made of them, with the diff, the largest gain first."""
        return lessons.pairs(self.database, task_id, target)

    def due(self, target: str, here: Here, task: str | None = None, limit: int | None = None) -> list[Due]:
        """Kernels whose verdicts come from other rules, another device or other versions, to be judged again here."""
        return lifecycle.due(self.database, target, here, task, limit)

    def rejudged(self, verdict: Verdict, task: Task) -> None:
        """Store a verdict that belongs to no run, under its own key beside older ones. Cheating found now quarantines the kernel."""
        before = verdicts.known(self.database, verdict.kernel_id, task.id, verdict.environment)
        with self.database.write() as connection:
            verdicts.store(connection, verdicts.lower(before, verdict) if before else verdict, task, imported=False)
            if verdict.status is Status.CHEATING:
                reason = f"judged again: {verdict.message}"
                connection.execute("UPDATE kernels SET quarantined = coalesce(quarantined, ?) WHERE id = ?", (reason, verdict.kernel_id))

    def prune(self, older_than_s: float, keep: int, *, apply: bool = False) -> Pruned:
        """Remove old kernels that are no longer among the fastest, never an ancestor of one that stays; see lifecycle.py."""
        return lifecycle.prune(self.database, older_than_s, keep, apply=apply)

    def merge(self, other: Path, *, own: bool = False) -> Merged:
        """Add what another archive file has and this one has not; see lifecycle.py."""
        return lifecycle.merge(self.database, other, own=own)

    def check(self, *, repair: bool = False) -> list[str]:
        """Everything that is wrong with the file, in words (empty: sound); rebuilds what is derived (the word index). `repair`: what was done
        about each."""
        return check.check(self.database, repair=repair)


def _place(connection: sqlite3.Connection, run_id: str, verdict: Verdict, duplicate: bool) -> Placement:
    if verdict.status is not Status.VERIFIED:
        return Placement.DUPLICATE if duplicate else Placement.REJECTED
    better = connection.execute(
        "UPDATE runs SET best_fitness = ? WHERE id = ? AND (best_fitness IS NULL OR best_fitness < ?)", (verdict.fitness, run_id, verdict.fitness)
    ).rowcount
    if duplicate:
        return Placement.DUPLICATE
    return Placement.NEW_BEST if better else Placement.KEPT


def _insert_attempt(connection: sqlite3.Connection, attempt: Attempt, task: Task, run_id: str, placement: Placement, status: Status) -> int:
    proposal, reply = attempt.proposal, attempt.reply
    try:
        row = connection.execute(
            "INSERT INTO attempts (run_id, number, task_id, kernel_id, operator, model, prompt_hash, input_tokens, output_tokens, cost_usd, "
            "status, placement, created) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING seq",
            (
                run_id, proposal.number, task.id, attempt.kernel.id if attempt.kernel else None, proposal.operator, proposal.model,
                proposal.prompt_hash, reply.input_tokens, reply.output_tokens, reply.cost_usd, status.value, placement.value, time.time(),
            ),
        ).fetchone()  # fmt: skip
    except sqlite3.IntegrityError as error:
        raise ArchiveError(f"proposal {proposal.number} of run {run_id} cannot be stored (judged before, or its task is unknown): {error}") from error
    return int(row["seq"])
