"""Kill a search's processes at random moments and see what is lost or left.

    python experiments/faults.py [--kills 200] [--target cpp|cuda] [--seed N] [--limit S] [--write | --add]

Searches of a small task run as `evokernel evolve`, one after another, each with an archive of its own. A killer picks a kind of process (the loop,
its judge, the zygote, a runner, a baseline, a compiler), waits for a moment (as it appears, soon after, right after an event was stored) and sends
SIGKILL, SIGSEGV, or SIGSTOP and later SIGKILL. A session that has ended is gone on with by `evokernel resume`. Nothing may be lost: what the
archive held right before a kill is compared with what it holds later. Nothing may be left: everything a session started is below this process (a
child subreaper), in folders of its own. Exit code 1 where something was lost or left.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import report

from evokernel.runner.processes import become_subreaper, children

COMMAND = (sys.executable, "-c", "from evokernel.cli import main; main()")
SHARES = {"runner": 56, "judge": 36, "loop": 38, "zygote": 34, "baseline": 28, "compiler": 8}  # of 200 kills
SHORT_LIVED = ("runner", "compiler")  # there are many of them in a search that is up, and none before
COMPILERS = (b"cc1plus", b"nvrtc_worker", b"g++", b"collect2", b"/ld", b"objdump")
NEW_TEXT = 4  # in every so many rounds the kernel is one that no compiler has seen
FINISHED = re.compile(r"(prelude-)?[0-9a-f]{16}(\.(so|json|cubin))?")  # what a cache may hold
APPEARS_S, ROUND_S = 60.0, 900.0  # how long to wait for a process of a kind, and for a search that nobody disturbs any more
TASK = """import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) + 1


def get_inputs():
    return [torch.randn(64, 128)]
"""
KERNELS = {
    "cpp": """// @tune CHUNK = 8 in 2 4 8 16 32 64
// @tune STEP = 1 in 1 2
// @launch f(x, out, x.numel)
void f(const float* x, float* y, int64_t n)
{{
    for (int64_t i = 0; i < n; i += CHUNK * STEP)
        for (int64_t j = i; j < n && j < i + CHUNK * STEP; ++j) y[j] = (x[j] > {0}e-30f ? x[j] : 0) + 1;
}}
""",
    "cuda": """// @tune BLOCK = 256 in 32 64 128 256 512
// @tune EACH = 1 in 1 2 4
// @launch f<<<cdiv(x.numel, BLOCK * EACH), BLOCK>>>(x, out, x.numel)
__global__ void f(const float* x, float* y, int64_t n)
{{
    int64_t i = (blockIdx.x * (int64_t)BLOCK + threadIdx.x) * EACH;
    for (int64_t end = i + EACH; i < n && i < end; ++i) y[i] = (x[i] > {0}e-30f ? x[i] : 0) + 1;
}}
""",
}
PHASES = {"importing": "import", "computing": "truth", "compiling": "baselines", "ready": "judging", "#": "judging", "after a second": "proof"}


@dataclass
class Seen:
    """What an archive held at some moment: events and attempts by run and number, verdicts by their key."""

    events: dict[tuple[str, int], str] = field(default_factory=dict)
    attempts: dict[tuple[str, int], tuple[object, ...]] = field(default_factory=dict)
    verdicts: dict[tuple[object, ...], str] = field(default_factory=dict)


@dataclass(frozen=True)
class Kill:
    """One strike. `moment`: what it waited for; `phase`: what the search was doing; `at`: the latest event then stored."""

    kind: str
    by: str
    moment: str
    phase: str
    at: str


def read(file: Path) -> Seen:
    """The committed contents of an archive, without writing to it."""
    seen = Seen()
    if not file.exists():
        return seen
    with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as base:
        base.execute("BEGIN")
        if not base.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            return seen  # killed before it had tables
        seen.events = {(r, n): e for r, n, e in base.execute("SELECT run_id, number, record FROM events ORDER BY run_id, number")}
        attempts = base.execute("SELECT run_id, number, task_id, kernel_id, operator, status, placement FROM attempts")
        seen.attempts = {(a[0], a[1]): a[2:] for a in attempts}
        found = base.execute("SELECT build_id, task_id, device, protocol, versions, imported, record FROM verdicts")
        seen.verdicts = {row[:-1]: row[-1] for row in found}
    return seen


def verified(file: Path) -> bool:
    """Whether some kernel of an archive has been verified in it."""
    return any("verified" in attempt for attempt in read(file).attempts.values())


def event_of(record: str) -> dict[str, Any]:
    """An event as it is stored: its kind under "kind", and its fields."""
    event: dict[str, Any] = json.loads(record)["event"]
    return event


def lost(before: Seen, after: Seen) -> list[str]:
    """What was stored and is not any more, or is another now. A verdict may change only to one that an event says."""
    said = {json.dumps(v, sort_keys=True) for record in after.events.values() if (v := event_of(record).get("verdict"))}
    problems = [f"event {key}" for key, record in before.events.items() if after.events.get(key) != record]
    problems += [f"attempt {key}" for key, row in before.attempts.items() if after.attempts.get(key) != row]
    for key, record in before.verdicts.items():
        now = after.verdicts.get(key)
        if now is None or (now != record and json.dumps(json.loads(now), sort_keys=True) not in said):
            problems.append(f"verdict {key}")
    return problems


def inconsistent(seen: Seen) -> list[str]:
    """Gaps in numbers, proposals judged twice or not at all, attempts without an event and the other way round."""
    problems = []
    for run in {run for run, _ in seen.events}:
        numbers = sorted(n for r, n in seen.events if r == run)
        if numbers != list(range(len(numbers))):
            problems.append(f"run {run}: events have the numbers {numbers}")
        judged = [e["number"] for n in numbers if "placement" in (e := event_of(seen.events[run, n]))]
        if sorted(judged) != list(range(len(judged))):
            problems.append(f"run {run}: the proposals judged are {judged}")
        attempts = sorted(n for r, n in seen.attempts if r == run)
        if attempts != sorted(judged):
            problems.append(f"run {run}: attempts {attempts}, judged {judged}")
    return problems


class Session:
    """One `evokernel evolve` or `resume`, with everything below it."""

    def __init__(self, folder: Path, arguments: list[str], environ: dict[str, str]) -> None:
        self.log = folder / "log.txt"
        self.before_bytes = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([*COMMAND, *arguments], cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def said(self) -> list[str]:
        """Its lines so far."""
        with self.log.open("rb") as log:
            log.seek(self.before_bytes)
            return [line for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]

    def phase(self) -> str:
        """What it is doing, by what it said last."""
        for line in reversed(self.said()):
            for start, name in PHASES.items():
                if line.startswith(start):
                    return name
        return "start"


def command_line(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def comm(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def state(pid: int) -> str:
    """R, S, T, Z ... and X once it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "X"


def below(pid: int) -> list[int]:
    """All processes below one, zombies left out."""
    found, queue = [], [pid]
    while queue:
        for child in children(queue.pop()):
            queue.append(child)
            if state(child) not in "ZX":
                found.append(child)
    return found


def kind_of(pid: int, loop: int) -> str:
    """Which part of a search a process is."""
    if pid == loop:
        return "loop"
    line = command_line(pid)
    if b"evokernel.judge" in line:
        return "judge"
    if b"evokernel.runner.zygote" in line:
        return {"runner.main": "runner", "judge.baselines": "baseline"}.get(comm(pid), "zygote")
    program = line.split(b"\0")[0] if b"nvrtc_worker.py" not in line else b"nvrtc_worker"
    return "compiler" if any(name in program for name in COMPILERS) else "other"


def of_kind(kind: str, session: Session) -> list[int]:
    loop = session.process.pid
    return [pid for pid in ([loop] if kind == "loop" else below(loop)) if kind_of(pid, loop) == kind]


def reap() -> None:
    """Collect orphans that have ended; the session's own process is its Popen's."""
    for pid in children(os.getpid()):
        if state(pid) == "Z" and pid not in OWN:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


OWN: set[int] = set()


def until(condition: Callable[[], object], limit_s: float) -> bool:
    """Whether it comes true in time; looks every 2 ms."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


class Killer:
    """Strikes at a search, and remembers how it went."""

    def __init__(self, kills: int, limit_s: float, rng: random.Random) -> None:
        self.deadline = time.monotonic() + limit_s
        self.left = collections.Counter({kind: -(-kills * share // sum(SHARES.values())) for kind, share in SHARES.items()})
        self.total = kills
        self.rng = rng
        self.kills: list[Kill] = []
        self.gone_s: list[float] = []
        self.problems: list[str] = []
        self.missed: collections.Counter[str] = collections.Counter()

    def done(self) -> bool:
        return len(self.kills) >= self.total or time.monotonic() > self.deadline

    def strike(self, session: Session, archive: Path) -> Seen | None:
        """Kill one process; what the archive held right before it. None where the session ended, or no such process appeared."""
        kind = self._choose(session, archive)
        loop = session.process
        moment = self._await_moment(kind, session, archive)
        candidates = of_kind(kind, session)
        if loop.poll() is not None or not moment or not candidates:
            self.missed[kind] += loop.poll() is None
            return None
        pid, phase = self.rng.choice(candidates), session.phase()
        how = self.rng.choices(("SIGKILL", "SIGSEGV", "SIGSTOP, SIGKILL"), (7, 1, 2))[0]
        before = read(archive)
        last = type_of(list(before.events.values())[-1]) if before.events else "nothing"
        with contextlib.suppress(ProcessLookupError):
            if how == "SIGSTOP, SIGKILL":
                os.kill(pid, signal.SIGSTOP)
                time.sleep(self.rng.uniform(0.05, 1.5))
            os.kill(pid, signal.SIGSEGV if how == "SIGSEGV" else signal.SIGKILL)
            if how == "SIGSEGV" and not until(lambda: state(pid) in "ZX", 0.3):
                os.kill(pid, signal.SIGKILL)  # the first process of a PID namespace does not mind other signals
        self.left[kind] -= 1
        self.kills.append(Kill(kind, how, moment, phase, last))
        return before

    def _choose(self, session: Session, archive: Path) -> str:
        """A kind that has not had its share. Some sessions are left alone until they are up, others hardly get past their start."""
        if session.phase() == "judging" and not verified(archive) and self.rng.random() < 0.6:
            until(lambda: session.process.poll() is not None or verified(archive), APPEARS_S / 4)  # then there is something to tune
        short = self.rng.random() < (0.8 if verified(archive) and session.phase() in ("judging", "proof") else 0.2)
        kinds = [k for k, n in self.left.items() if n > 0]
        suited = [k for k in kinds if (k in SHORT_LIVED) == short] or kinds
        return self.rng.choices(suited, [self.left[k] for k in suited])[0]

    def _await_moment(self, kind: str, session: Session, archive: Path) -> str:
        """Wait for what was chosen; its name, or nothing where it did not come."""
        loop = session.process
        after_an_event = 2 if kind in ("loop", "judge", "zygote") else 0
        moment = self.rng.choices(("as it appears", "soon after", "after an event"), (6, 2, after_an_event))[0]
        if moment == "after an event":
            count = len(read(archive).events)
            if not until(lambda: loop.poll() is not None or len(read(archive).events) > count, APPEARS_S):
                return ""
            time.sleep(self.rng.choice((0.0, self.rng.uniform(0, 0.05))))
            return moment
        old = set(of_kind(kind, session)) if kind in ("runner", "compiler") else set()
        if not until(lambda: loop.poll() is not None or set(of_kind(kind, session)) - old, APPEARS_S):
            return ""
        spread_s = {"runner": 0.4, "compiler": 0.1}.get(kind, 8.0 if moment == "soon after" else 0.3)
        until(lambda: loop.poll() is not None, self.rng.uniform(0, spread_s))
        return moment

    def check_gone(self, what: str, limit_s: float = 10.0) -> None:
        """That nothing of a session that has ended still runs."""
        start = time.monotonic()
        if until(all_gone, limit_s):
            self.gone_s.append(time.monotonic() - start)
            return
        for pid in below(os.getpid()):
            self.problems.append(f"left after {what}: process {pid} {comm(pid)} {command_line(pid)[:200]!r}")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def all_gone() -> bool:
    """Whether nothing that a session started runs any more."""
    reap()
    return not below(os.getpid())


def type_of(record: str) -> str:
    """The kind of an event by its fields: all that the moment of a kill needs to be told by."""
    event = event_of(record)
    for name, kind in (("placement", "judged"), ("reply", "answered"), ("proposal", "asked"), ("verdict", "confirmed"), ("settings", "started")):
        if name in event:
            return kind
    return "failed or ended"


def run_round(number: int, target: str, place: Path, environ: dict[str, str], killer: Killer) -> Counts:
    """One search from its start to its end, killed and resumed on the way."""
    folder = place / f"round{number}"
    folder.mkdir()
    (folder / "task.py").write_text(TASK)
    suffix = {"cpp": "cpp", "cuda": "cu"}[target]
    (folder / f"kernel.{suffix}").write_text(KERNELS[target].format(max(number, 0) // NEW_TEXT))
    archive = folder / "a.db"
    counts: Counts = collections.Counter()
    idle = 0
    while True:
        held = read(archive)
        runs = {run for run, _ in held.events}
        if any("reason" in event_of(record) for record in held.events.values()):
            break
        start = ["evolve", "task.py", "--target", target, "--start", f"kernel.{suffix}", "--candidates", "8", "--seed", str(number)]
        arguments = ["resume", next(iter(runs))] if runs else start
        session = Session(folder, [*arguments, "--archive", "a.db", "--out", f"best.{suffix}"], environ)
        OWN.add(session.process.pid)
        struck = len(killer.kills)
        snapshots = list(strikes(session, archive, killer))
        code = finish(session, killer)
        counts["sessions"] += 1
        counts["sessions that said they failed"] += code not in (0, 1) and code >= 0
        killer.check_gone(f"session {counts['sessions']} of round {number}")
        after = read(archive)
        killer.problems += [f"lost in round {number}: {what}" for before in (held, *snapshots) for what in lost(before, after)]
        idle = 0 if len(killer.kills) > struck else idle + 1
        if idle > 2:
            killer.problems.append(f"round {number} does not end: exit code {code}, {' / '.join(session.said()[-3:])}")
            break
    return counts + close(folder, archive, killer)


Counts = collections.Counter[str]


def strikes(session: Session, archive: Path, killer: Killer) -> Iterator[Seen]:
    """Strike until the session has ended or no kills are left."""
    while not killer.done() and session.process.poll() is None:
        before = killer.strike(session, archive)
        if before is not None:
            yield before


def finish(session: Session, killer: Killer) -> int:
    """Wait for the session's end; its exit code."""
    try:
        return session.process.wait(ROUND_S)
    except subprocess.TimeoutExpired:
        killer.problems.append(f"a session hung: {' / '.join(session.said()[-3:])}")
        session.process.kill()
        return session.process.wait()
    finally:
        OWN.discard(session.process.pid)


def close(folder: Path, archive: Path, killer: Killer) -> Counts:
    """Check an archive whose run is over; what is in it."""
    seen = read(archive)
    killer.problems += [f"{folder.name}: {what}" for what in inconsistent(seen)]
    check = subprocess.run([*COMMAND, "archive", "check", "--archive", "a.db"], cwd=folder, capture_output=True, text=True, check=False)
    if check.returncode:
        killer.problems.append(f"{folder.name}: archive check: {check.stdout.strip()} {check.stderr.strip()}")
    counts: Counts = collections.Counter({"searches": 1, "events": len(seen.events), "attempts": len(seen.attempts)})
    for _, status in ((k, a[3]) for k, a in seen.attempts.items()):
        counts[f"attempts {status}"] += 1
    return counts


def leftovers(place: Path) -> list[str]:
    """Files of ours outside the content-addressed caches, shared memory, semaphores."""
    caches = ("builds", "baselines", "inductor", "native", "roofline")
    cache = place / "cache" / "evokernel"
    found = [p for p in cache.iterdir() if p.name not in caches] + [p for p in (place / "tmp").iterdir() if not p.name.startswith("torchinductor_")]
    found += [p for name in ("builds", "baselines", "native") for p in (cache / name).glob("*") if not FINISHED.fullmatch(p.name)]
    return [str(p.relative_to(place)) for p in found]


def shared_memory() -> set[str]:
    segments = {f"/dev/shm/{p.name}" for p in Path("/dev/shm").iterdir()}
    for name in ("shm", "sem", "msg"):
        with contextlib.suppress(OSError):
            segments |= {f"System V {name} {line.split()[1]}" for line in Path(f"/proc/sysvipc/{name}").read_text().splitlines()[1:]}
    return segments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--target", default="cpp", choices=("cpp", "cuda"))
    parser.add_argument("--seed", type=int, default=0, help="of the killer's choices; moments are never the same twice")
    parser.add_argument("--limit", type=float, default=1e9, metavar="S", help="no more kills after so many seconds")
    parser.add_argument("--write", action="store_true", help="write experiments/results/faults_TARGET.json")
    parser.add_argument("--add", action="store_true", help="as --write, with what the file already holds added: many short runs make a long one")
    arguments = parser.parse_args()
    become_subreaper()
    place = Path(tempfile.mkdtemp(prefix="evokernel-faults-"))
    for name in ("tmp", "cache", "data"):
        (place / name).mkdir()
    environ = {**os.environ, "TMPDIR": str(place / "tmp"), "XDG_CACHE_HOME": str(place / "cache"), "XDG_DATA_HOME": str(place / "data")}
    environ["EVOKERNEL_TEXT_MODEL"] = "none"  # a search would leave a process that makes vectors, on purpose
    killer = Killer(arguments.kills, arguments.limit, random.Random(arguments.seed))
    shared, gpu = shared_memory(), report.gpu_memory_mib() if arguments.target == "cuda" else 0
    start = time.monotonic()
    counts: Counts = collections.Counter()
    for number in itertools.count():
        counts += run_round(number, arguments.target, place, environ, killer)
        struck = dict(collections.Counter(k.kind for k in killer.kills))
        print(f"round {number}: {time.monotonic() - start:.0f} s, kills {struck}, {len(killer.problems)} problems", flush=True)
        if killer.done() or killer.problems[8:]:
            break
    killer.total = 0
    counts += run_round(-1, arguments.target, place, environ, killer)  # what a kill leaves until the next judge is not left for good
    left = leftovers(place)
    new_segments = sorted(shared_memory() - shared)
    gpu_freed = not gpu or until(lambda: report.gpu_memory_mib() <= gpu, 20.0)
    result: dict[str, Any] = {
        "runs": 1, "kills": len(killer.kills), **summary(killer.kills), "kinds_that_did_not_appear_in_time": dict(killer.missed),
        **dict(sorted(counts.items())),
        "lost_or_left": killer.problems, "files_left": left, "shared_memory_left": new_segments,
        "gpu_memory_left_mib": 0 if gpu_freed else report.gpu_memory_mib() - gpu,
        "session_not_gone_within_a_second": sum(s > 1.0 for s in killer.gone_s),
        "seconds": round(time.monotonic() - start),
    }  # fmt: skip
    for key, value in result.items():
        print(f"{key}: {value}")
    if arguments.write or arguments.add:
        name = f"faults_{arguments.target}"
        earlier = report.RESULTS / f"{name}.json"
        if arguments.add and earlier.exists():
            old = json.loads(earlier.read_text())
            result = added({n: v for n, v in old.items() if n != "measured"}, result)
        print(report.write(name, result, arguments.target))
    sound = not killer.problems and not left and not new_segments and gpu_freed
    if sound:
        shutil.rmtree(place)
    else:
        print(f"kept for a look: {place}")
    sys.exit(0 if sound else 1)


def summary(kills: list[Kill]) -> dict[str, dict[str, int]]:
    """Kills counted by each of their properties."""
    names = ("kind", "by", "moment", "phase", "at")
    return {f"kills_by_{name}": dict(collections.Counter(getattr(k, name) for k in kills).most_common()) for name in names}


def added(one: Any, other: Any) -> Any:
    """Two results as one: numbers added, lists joined, key by key."""
    if not isinstance(other, dict):
        return one + other
    return {n: added(one[n], other[n]) if n in one and n in other else {**one, **other}[n] for n in {**one, **other}}


if __name__ == "__main__":
    main()
