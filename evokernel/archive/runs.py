"""Runs: an append-only log of events in the archive, and the lease that lets one process at a time write it.

A lease names its process so exactly (host, boot, process namespace, id and start time) that the lease of a dead one is taken over at
once. Where the holder cannot be looked up (another machine or container), it counts as dead `STALE_S` after its last event. Every append checks
the lease in its own transaction, so a process that lost it can never write again.
"""

from __future__ import annotations

import secrets
import socket
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .. import codec
from ..errors import ArchiveError, UsageError
from ..records import Device, Placement, Proposal, Reply, Verdict
from .database import Database

STALE_S = 900.0
CONDENSING = -1  # in place of a proposal's number: the call that condenses lessons


@dataclass(frozen=True)
class RunSettings:
    """What a run was asked to do; stored with it. `candidates`: kernels measured (duplicates are free). `seconds`: wall time over all
    sessions. `start`: text of the kernel to begin with. `policy`: a name from search/policy.py. `models`: specs with weights, none for a search by
    the archive's own operators; `prices`: the user's own, as given. Budgets count calls in flight and calls that were killed. `force`:
    judge a task that admission refuses."""

    target: str
    candidates: int = 40
    seconds: float | None = None
    seed: int = 0
    start: str | None = None
    policy: str = "ranked"
    models: tuple[str, ...] = ()
    effort: str = "medium"
    budget_usd: float | None = None
    budget_tokens: int | None = None
    prices: tuple[str, ...] = ()
    force: bool = False

    def __post_init__(self) -> None:
        if self.candidates < 1:
            raise UsageError(f"a run needs at least 1 candidate, not {self.candidates}")
        if self.seconds is not None and not self.seconds > 0:
            raise UsageError(f"a run needs a positive number of seconds, not {self.seconds}")
        if any(budget is not None and not budget > 0 for budget in (self.budget_usd, self.budget_tokens)):
            raise UsageError(f"a budget is more than 0, not {self.budget_usd} USD, {self.budget_tokens} tokens")


@dataclass(frozen=True)
class StoneRef:
    """A stepping stone that a run may try: an archived kernel and the task it was made for. `late`: how often it helped runs that were under way."""

    kernel_id: str
    task_id: str
    late: float = 0.5


@dataclass(frozen=True)
class Started:
    """The run's first event. `stones` are in the order in which they are to be tried. `task_path`: the task's file, for a later session.
    `lessons`: of earlier runs, for prompts."""

    task_id: str
    device: Device
    settings: RunSettings
    stones: tuple[StoneRef, ...]
    task_path: str
    lessons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Asked:
    """The policy decided; no operator has answered yet."""

    proposal: Proposal


@dataclass(frozen=True)
class Called:
    """A model is about to be called for proposal `number`, or as CONDENSING; the most that this can cost is spent until the answer says what it did.
    `model`: the one that is asked, which is another than the proposal's while that does not answer."""

    number: int
    tokens: int
    usd: float
    prompt_hash: str = ""
    model: str = ""


@dataclass(frozen=True)
class Uncalled:
    """The last call for proposal `number` came to nothing and cost nothing."""

    number: int


@dataclass(frozen=True)
class Answered:
    """An operator answered proposal `number`; its kernel, if any, has not been judged yet."""

    number: int
    reply: Reply


@dataclass(frozen=True)
class Judged:
    """Proposal `number` is done. `verdict` is the one that counts: the stored one for a duplicate. Without a kernel its `kernel_id` is empty."""

    number: int
    placement: Placement
    verdict: Verdict


@dataclass(frozen=True)
class Confirmed:
    """A kernel was measured again in a fresh judge process with new inputs; `verdict` is the lower of the two."""

    verdict: Verdict


@dataclass(frozen=True)
class Condensed:
    """A model was asked, as number CONDENSING, to condense the lessons of the task, with what it cost. `lessons`: what was kept of its answer."""

    lessons: tuple[str, ...]
    tokens: int
    cost_usd: float


@dataclass(frozen=True)
class Failed:
    """We failed, not a candidate: the session ended with this exception and can be resumed."""

    kind: str
    message: str


@dataclass(frozen=True)
class Paused:
    """The user interrupted the session; it can be resumed."""


@dataclass(frozen=True)
class Ended:
    """The run is over, for the reason given in words."""

    reason: str


Event = Started | Asked | Called | Uncalled | Answered | Judged | Confirmed | Condensed | Failed | Paused | Ended


@dataclass(frozen=True)
class Logged:
    """One event with the wall time of the run, over all its sessions, when it was written (seconds)."""

    elapsed_s: float
    event: Event


@dataclass(frozen=True)
class RunRow:
    """One run in a list. `ended` is the reason, or None while it can be resumed; `running`: a live process holds its lease."""

    id: str
    task_id: str
    task_name: str
    target: str
    ended: str | None
    running: bool
    created: float


@dataclass(frozen=True)
class Holder:
    """One process, named so that no other can be taken for it. `start`: its start time in clock ticks since boot."""

    host: str
    boot: str
    namespace: str
    pid: int
    start: int


class RunLog:
    """The held lease of one run: reads and appends its events.

    Get one from `create` or `acquire`, and `release` it.
    """

    def __init__(self, database: Database, run_id: str, holder: Holder) -> None:
        self.run_id = run_id
        self._database = database
        self._holder = codec.dumps(holder)

    def events(self) -> Iterator[Logged]:
        """All events so far, oldest first."""
        return read_events(self._database, self.run_id)

    def append(self, event: Event, elapsed_s: float) -> Logged:
        """Write one event.

        Raises:
            ArchiveError: the lease was lost, or SQLite failed.
        """
        with self._database.write() as connection:
            return self.append_within(connection, event, elapsed_s)

    def append_within(self, connection: sqlite3.Connection, event: Event, elapsed_s: float) -> Logged:
        """`append` as a part of the caller's write transaction."""
        held = connection.execute(
            "UPDATE runs SET heartbeat = ?, ended = coalesce(?, ended) WHERE id = ? AND holder = ?",
            (time.time(), event.reason if isinstance(event, Ended) else None, self.run_id, self._holder),
        )
        if held.rowcount != 1:
            raise ArchiveError(f"run {self.run_id} was taken over by another process; this one stops without writing")
        logged = Logged(elapsed_s, event)
        connection.execute(
            "INSERT INTO events SELECT ?, coalesce(max(number), -1) + 1, ?, ?, ? FROM events WHERE run_id = ?",
            (self.run_id, type(event).__name__, codec.dumps(logged), time.time(), self.run_id),
        )
        return logged

    def release(self) -> None:
        """Give the lease back; a lease that was lost stays with its new holder."""
        with self._database.write() as connection:
            connection.execute("UPDATE runs SET holder = NULL WHERE id = ? AND holder = ?", (self.run_id, self._holder))


def create(database: Database, started: Started) -> RunLog:
    """A new run with its first event, held by this process."""
    run_id = time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + secrets.token_hex(3)
    log = RunLog(database, run_id, this_process())
    with database.write() as connection:
        connection.execute(
            "INSERT INTO runs (id, task_id, target, holder, heartbeat, created) VALUES (?, ?, ?, ?, ?, ?)",
            (run_id, started.task_id, started.settings.target, codec.dumps(this_process()), time.time(), time.time()),
        )
        log.append_within(connection, started, 0.0)
    return log


def acquire(database: Database, run_id: str) -> RunLog:
    """The lease of an existing run, taken from a dead holder if need be.

    Raises:
        UsageError: no such run.
        ArchiveError: a live process holds it.
    """
    with database.write() as connection:
        row = connection.execute("SELECT id, holder, heartbeat FROM runs WHERE id = ?", (run_id,)).fetchone()
        if row is None:
            raise UsageError(f"there is no run {run_id} in {database.path}")
        if holder := held(row):
            raise ArchiveError(f"run {run_id} is being driven by process {holder.pid} on {holder.host}; wait for it, or end it and resume")
        log = RunLog(database, run_id, this_process())
        connection.execute("UPDATE runs SET holder = ?, heartbeat = ? WHERE id = ?", (codec.dumps(this_process()), time.time(), run_id))
    return log


def read_events(database: Database, run_id: str) -> Iterator[Logged]:
    """The events of a run, oldest first, whoever drives it.

    Raises:
        ArchiveError: an event that this version cannot read.
    """
    page, last = "SELECT number, record FROM events WHERE run_id = ? AND number > ? ORDER BY number LIMIT 500", -1
    while rows := database.rows(page, run_id, last):  # page by page: a long run's events would take more memory than the run
        for row in rows:
            last = row["number"]
            try:
                yield codec.loads(Logged, row["record"])
            except ValueError as error:
                raise ArchiveError(f"event {last} of run {run_id} in {database.path} cannot be read: {error}") from error


def list_runs(database: Database) -> list[RunRow]:
    """All runs, newest first."""
    rows = database.rows("SELECT r.*, t.name FROM runs r JOIN tasks t ON t.id = r.task_id ORDER BY r.seq DESC")
    return [RunRow(r["id"], r["task_id"], r["name"], r["target"], r["ended"], held(r) is not None, r["created"]) for r in rows]


def held(run: sqlite3.Row) -> Holder | None:
    """The live process that holds the lease of a run (its id, holder and heartbeat).

    Raises:
        ArchiveError: the lease cannot be read.
    """
    try:
        holder = codec.loads(Holder, run["holder"]) if run["holder"] else None
    except ValueError as error:
        raise ArchiveError(f"the lease of run {run['id']} cannot be read: {error}; `evokernel archive check --repair` ends it") from error
    return holder if holder and alive(holder, run["heartbeat"]) else None


def this_process() -> Holder:
    """The calling process."""
    pid = int(Path("/proc/self").readlink().name)
    return Holder(socket.gethostname(), _boot(), _namespace(), pid, _start_time(pid) or 0)


def alive(holder: Holder, heartbeat: float) -> bool:
    """Whether the process still runs; `heartbeat` (Unix time of its last event) decides only where it cannot be looked up from here."""
    if holder.boot == _boot() and holder.namespace == _namespace():
        return _start_time(holder.pid) == holder.start
    if holder.host == socket.gethostname() and holder.boot != _boot():
        return False
    return time.time() - heartbeat < STALE_S


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _namespace() -> str:
    return str(Path("/proc/self/ns/pid").readlink())


def _start_time(pid: int) -> int | None:
    """Clock ticks from boot to the start of a process; None when it is gone or only waits to be reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])
