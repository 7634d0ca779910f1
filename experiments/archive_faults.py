"""Kill processes that insert into, fill, search, index, merge and prune one archive at random moments; and let two insert the same kernels. What is
lost or twice?

    python experiments/archive_faults.py [--kills 100] [--live 60] [--kernels 5000] [--seed N] [--write]

A worker inserts kernels with verdicts (each acknowledged once it is committed), makes vectors, answers questions, or makes indexes anew; it is killed
with SIGKILL after a random time, and the archive is looked at: every acknowledged kernel is there once, the file is sound, every vector belongs to
a row and is there once, and the indexes that a new process opens hold exactly the rows.

Then `--live` commands `evokernel archive merge` and `archive prune --apply` are killed while a run of the same archive is on, which is killed as
well now and then and resumed. The loop, the archive and the commands are the real ones; the run's judge and model are doubles that answer at once.
After each kill the merge or removal is there as a whole or not at all; all that the run was told to be stored is in its log once; an unfinished run
has all its kernels; words, vectors and indexes agree with the rows. At the end the run is resumed to its end.

At last two processes insert `--kernels` each, a fifth of them the same, while a third fills and a fourth searches. The text model is a double
(hashed words), so that nothing waits for it. Exit code 1 where anything was wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import report

sys.path.insert(0, str(Path(__file__).parent.parent))
from evokernel.archive import structure, vectors, verdicts
from evokernel.archive.index import Indexes
from evokernel.archive.retrieval import by_kernel, by_words
from evokernel.archive.runs import Judged, Logged, RunSettings
from evokernel.archive.search import Filters
from evokernel.archive.store import Archive
from evokernel.archive.verdicts import Origin
from evokernel.models import CallSettings, Completion, Prompt
from evokernel.records import Kernel, Task, Verdict
from evokernel.search.run import resume, run_search
from evokernel.search.state import State
from tests.search.fake_judge import FakeJudge, failed, kernel_text, make, make_task, verified

TASKS = [make_task(name, f"return {name}(x)") for name in ("softmax", "layer_norm", "relu", "cumsum")]
WORDS = ("online", "streaming", "registers", "shared", "vector", "rows", "prefetch", "tiles")
WORKERS = ("insert", "insert", "fill", "search", "rebuild")
MODEL = "openai/double@http://127.0.0.1:1/v1"
RUN, JUDGED_S, NUMBERS = 150, 0.02, 100_000  # candidates of a run, the time that one takes, and numbers of kernels that a process may use
KEPT = 3  # kernels of a task that pruning keeps
OF_KERNELS = (  # kernels, their verdicts and edges; each begins with the kernel's id
    "SELECT id FROM kernels UNION SELECT b.kernel_id || ' on ' || v.task_id FROM verdicts v JOIN builds b ON b.id = v.build_id "
    "UNION SELECT child || ' of ' || parent FROM edges"
)
EVOKERNEL = (sys.executable, "-c", "from evokernel.cli import main; main()", "archive")


class HashedWords:
    """The double of a text model."""

    id, dimension = "hashed@1/64/whole", 64

    def parts(self, text: str) -> list[str]:
        return [text]

    def embed(self, texts: Sequence[str]) -> Any:
        made = np.full((len(texts), 64), 1e-3, np.float32)
        for row, text in zip(made, texts, strict=True):
            for word in re.findall(r"\w+", text.lower()):
                row[zlib.crc32(word.encode()) % 64] += 1
        return made / np.linalg.norm(made, axis=1, keepdims=True)


class Writer:
    """The double of a model that writes kernels: those from `first` on."""

    def __init__(self, first: int) -> None:
        self._numbers = itertools.count(first)

    def complete(self, prompt: Prompt, settings: CallSettings) -> Completion:
        return Completion(f"```cpp\n{kernel(next(self._numbers)).text}```\n", input_tokens=1000, output_tokens=300)


def kernel(number: int) -> Any:
    """The kernel of a number: its code and words depend on nothing else."""
    rng = random.Random(number)
    body = " ".join(f"a[{n}] {rng.choice('+-*')}= {rng.choice(WORDS)}[{n}];" for n in range(rng.randrange(3, 12)))
    extra = f"int n{number}[{number}]; void g{number}() {{ {body} }}"
    return make(kernel_text(300 + number % 600, extra=extra, strategy=" ".join(rng.choices(WORDS, k=5))))


def insert(archive: Archive, numbers: Sequence[int]) -> None:
    """Kernels with a verdict each; a number is printed once it is committed."""
    for number in numbers:
        made, task = kernel(number), TASKS[number % len(TASKS)]
        with archive.database.write() as connection:
            verdicts.insert_task(connection, task)
            verdicts.insert_kernel(connection, made, Origin("user"))
            verdict = verified(made, 300 + number % 600, features=("avx2",) if number % 2 else ("fma",))
            verdicts.store(connection, verdict, task, imported=False)
        sys.stdout.write(f"{number}\n")  # one call, one line: other workers write to the same file
        sys.stdout.flush()


class Quick(FakeJudge):
    """The double of a judge, which knows only kernels of its own kind: of stepping stones that were shipped it says that they fail."""

    pause_s = 0.0

    def judge(self, kernel: Kernel, *, incumbent_us: float | None = None, patience: float = 1.0) -> Verdict:
        time.sleep(self.pause_s)
        return super().judge(kernel) if "BASE" in kernel.text else failed(kernel)


def drive(archive: Archive, task: Task, first: int, *, aloud: bool = True) -> None:
    """Go on with the run that is not over, or begin one. `aloud`: a line a judged proposal, once it is committed."""
    unfinished = [r.id for r in archive.runs() if r.ended is None]

    def say(logged: Logged, state: State) -> None:
        if isinstance(logged.event, Judged) and aloud:
            unfinished[:] = unfinished or [r.id for r in archive.runs() if r.ended is None]
            sys.stdout.write(f"{unfinished[0]} {logged.event.number}\n")
            sys.stdout.flush()

    models, judge = {MODEL: Writer(first)}, Quick(task)
    judge.pause_s = JUDGED_S if aloud else 0.0
    if unfinished:
        resume(archive, judge, unfinished[0], say, models)
    else:
        run_search(archive, judge, RunSettings("cpp", RUN, models=(MODEL,)), say, models)


def work(kind: str, path: Path, first: int, count: int) -> None:
    """What a worker does, until it is done or killed."""
    model, rng = HashedWords(), random.Random(first)
    with Archive(path) as archive:
        if kind == "insert":
            insert(archive, range(first, first + count))
        if kind == "run":
            drive(archive, TASKS[0], first)
        while kind not in ("insert", "run"):
            if kind == "fill":
                archive.fill(model)
            elif kind == "search":
                question = by_kernel(kernel(rng.randrange(first + 1))) if rng.random() < 0.5 else by_words(" ".join(rng.choices(WORDS, k=3)))
                archive.search(question, Filters(), 10, model)
            else:
                for file in vectors.index_folder(path).glob("*.faiss"):
                    file.unlink(missing_ok=True)
                for view in ((structure.MODEL, "code", structure.DIMENSION), (model.id, "strategy", 64), (model.id, "task", 64)):
                    Indexes(archive.database).get(*view)


def start(kind: str, path: Path, first: int, count: int) -> subprocess.Popen[str]:
    """A worker as a process of its own; its acknowledgements are in its stdout."""
    log = (path.parent / "acknowledged").open("a")
    return subprocess.Popen([sys.executable, __file__, "--worker", kind, str(path), str(first), str(count)], stdout=log, text=True)


def wrong(path: Path, *, whole: bool) -> list[str]:
    """What is not as it should be. `whole`: every vector is to be there as well, and each kernel is to be found by its own code."""
    log = path.parent / "acknowledged"
    numbers = {int(line) for line in (log.read_text().splitlines() if log.exists() else []) if line}
    problems = []
    with Archive(path) as archive:
        problems += archive.check()
        rows = archive.database.rows("SELECT seq, id, text FROM kernels")
        have = {row["id"] for row in rows}
        problems += [f"kernel {n} was committed and is gone" for n in numbers if kernel(n).id not in have]
        problems += ["a kernel is there twice"] * (len(rows) != len(have))
        judged = archive.database.rows("SELECT count(*) AS n, count(DISTINCT build_id) AS builds FROM verdicts")[0]
        problems += [f"{len(rows)} kernels, {judged['builds']} builds, {judged['n']} verdicts"] * (not len(rows) == judged["n"] == judged["builds"])
        orphans = "SELECT count(*) FROM vectors WHERE kind != 'task' AND item NOT IN (SELECT seq FROM kernels)"
        problems += [f"{archive.database.rows(orphans)[0][0]} vectors of nothing"] * (archive.database.rows(orphans)[0][0] > 0)
        problems += unlike(archive, whole=whole)
    return problems


def unlike(archive: Archive, *, whole: bool) -> list[str]:
    """Where vectors and indexes do not agree with the rows. `whole`: none is missing, and kernels are found by their own code."""
    problems = []
    rows = archive.database.rows("SELECT seq, id, text FROM kernels")
    if whole:
        filled = archive.fill(HashedWords())
        problems += [f"filling ended early: {filled.why}"] * (not filled.complete)
    for model, kind, size in ((structure.MODEL, "code", structure.DIMENSION), (HashedWords.id, "strategy", 64)):
        stored = archive.database.rows("SELECT count(*), count(DISTINCT item) FROM vectors WHERE model = ? AND kind = ?", model, kind)[0]
        index = Indexes(archive.database).get(model, kind, size)
        problems += [f"{kind}: {stored[0]} vectors of {stored[1]} kernels"] * (stored[0] != stored[1] or (whole and stored[1] != len(rows)))
        problems += [f"{kind}: {stored[0]} rows, {len(index)} in the index"] * (stored[0] != len(index))
    code = Indexes(archive.database).get(structure.MODEL, "code", structure.DIMENSION)
    for row in random.Random(len(rows)).sample(rows, min(len(rows), 50)) if whole else ():
        found = code.search(structure.embed(row["text"]), 1)[0]
        problems += [f"kernel {row['id']} is not found by its own code"] * (max(found.values(), default=0) < 0.999)
    return problems


def kills(path: Path, count: int, rng: random.Random) -> list[str]:
    """Kill that many workers, two of which are at work at a time."""
    problems: list[str] = []
    first, at_work = 0, []
    for number in range(count):
        while len(at_work) < 2:
            kind = rng.choice(WORKERS) if first else "insert"
            at_work.append(start(kind, path, first, 100_000))
            first += 1000 if kind == "insert" else 0
        time.sleep(rng.uniform(0.2, 1.4))
        victim = at_work.pop(rng.randrange(2))
        problems += [f"a worker ended with {victim.returncode}"] * (victim.poll() is not None)
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        if number % 50 == 49 or number == count - 1:
            for other in at_work:
                other.kill()
                other.wait()
            at_work.clear()
            found = wrong(path, whole=number == count - 1)
            problems += found
            print(f"{number + 1} kills: {'; '.join(found) or 'nothing wrong'}", flush=True)
    return problems


@dataclass
class Live:
    """An archive `path` with a run on, commands that are killed beside it, and what was wrong."""

    path: Path
    rng: random.Random
    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    writing_s: dict[str, float] = field(default_factory=lambda: {"merge": 0.2, "prune": 0.2})  # as measured last, from the first write on
    started: int = 0

    def __post_init__(self) -> None:
        self.other, self.log = self.path.parent / "other.db", self.path.parent / "acknowledged"
        self.log.touch()
        with Archive(self.other) as archive:
            for number, task in enumerate(TASKS[:2], 1):
                drive(archive, task, number * NUMBERS // 10, aloud=False)
            archive.lessons()
            self.rows = {row[0] for row in archive.database.rows(OF_KERNELS)}
            self.runs = {run.id for run in archive.runs()}
        self.bytes = hashlib.sha256(self.other.read_bytes()).hexdigest()
        Archive(self.path).close()

    def command(self, kind: str) -> list[str]:
        options = [str(self.other)] if kind == "merge" else ["--apply", "--older-than", "0", "--keep", str(KEPT)]
        return [*EVOKERNEL, kind, *options, "--archive", str(self.path)]

    def begin(self, kind: str) -> subprocess.Popen[str]:
        """The command as a process that has begun to write, or has ended."""
        command = subprocess.Popen(self.command(kind), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        while command.poll() is None and not _writes(command.pid):
            time.sleep(0.001)
        return command

    def undisturbed(self, kind: str) -> None:
        """The command from start to end, and how long it writes."""
        command, began = self.begin(kind), time.perf_counter()
        _, said = command.communicate()
        self.writing_s[kind] = time.perf_counter() - began
        self.problems += [f"{kind} ended with {command.returncode}: {said}"] * (command.returncode != 0)

    def run(self) -> subprocess.Popen[str]:
        """A process that goes on with the run and has judged something; where the run is over, another one is begun."""
        self.started += 1
        told = self.log.stat().st_size
        running = start("run", self.path, self.started * NUMBERS, 0)
        while running.poll() is None and self.log.stat().st_size == told:
            time.sleep(0.001)
        return running

    def seen_to(self, running: subprocess.Popen[str]) -> subprocess.Popen[str]:
        """The process, or another one where its run came to an end."""
        if running.poll() is None:
            return running
        self.problems += [f"the run ended with {running.returncode}"] * (running.returncode != 0)
        self.counts["runs that came to their end"] += 1
        return self.run()

    def kill_one(self, kind: str) -> None:
        """Begin a merge or a removal and kill it; it must have done all or nothing."""
        had, could_go, on = self._rows()
        if self.theirs() <= had if kind == "merge" else not could_go:  # there would be nothing to do
            self.undisturbed("prune" if kind == "merge" else "merge")
            had, could_go, on = self._rows()
        victim = self.begin(kind)
        time.sleep(self.rng.uniform(0, self.writing_s[kind]))
        if victim.poll() is None:
            victim.send_signal(signal.SIGSTOP)  # so that what is seen is what is killed
            self.counts[f"killed {kind}"] += 1
            self.counts[f"killed amid a write of {kind}"] += _writes(victim.pid)
            victim.kill()
        _, said = victim.communicate()
        self.problems += [f"{kind} ended with {victim.returncode}: {said}"] * (victim.returncode not in (0, -signal.SIGKILL))
        have, can_go, still_on = self._rows()
        if kind == "merge":
            theirs = self.theirs()
            half = bool(theirs & (have ^ had)) and not theirs <= have
            self.problems += [f"half a merge: {len(theirs & have)} of {len(theirs)} rows, {len(theirs & had)} before"] * half
        else:
            half = bool(had - have and could_go & can_go) and on == still_on  # what a run needs may go when it has ended
            self.problems += [f"half a removal: {len(had - have)} rows went, {len(could_go & can_go)} did not"] * half

    def theirs(self) -> set[str]:
        """What the other archive has of kernels, but for those that a run here has made too: of the same parents an operator makes the same."""
        with Archive(self.path) as archive:
            made = archive.database.rows("SELECT id, provenance FROM kernels WHERE origin = 'run'")
        here = {row["id"] for row in made if row["provenance"] not in self.runs}
        return {row for row in self.rows if row[:16] not in here}

    def _rows(self) -> tuple[set[str], set[str], list[str]]:
        """What there is of kernels, what of it could be removed, and the runs that are not over."""
        with Archive(self.path) as archive:
            there, could_go = {row[0] for row in archive.database.rows(OF_KERNELS)}, set(archive.prune(0.0, KEPT).kernels)
            return there, {row for row in there if row[:16] in could_go}, [run.id for run in archive.runs() if run.ended is None]

    def look(self) -> None:
        """Note what is wrong while nobody is at work."""
        told = {(run_id, int(number)) for run_id, number in (line.split() for line in self.log.read_text().splitlines())}
        found = [f"{self.other} has changed"] * (hashlib.sha256(self.other.read_bytes()).hexdigest() != self.bytes)
        with Archive(self.path) as archive:
            rows = archive.database.rows
            for table in ("kernel", "task"):  # before the check, which makes the word indexes anew
                both = f"SELECT rowid FROM {table}_words", f"SELECT seq FROM {table}s"
                found += [f"{len(rows(sql))} rows of {sql}" for sql in map(" EXCEPT ".join, (both, both[::-1])) if rows(sql)]
            found += archive.check()
            judged = Counter((r["run_id"], r["n"]) for r in rows("SELECT run_id, record ->> '$.event.number' AS n FROM events WHERE kind = 'Judged'"))
            found += [f"proposal {n} of run {r} was committed and is gone" for r, n in told - set(judged)]
            found += [f"proposal {n} of run {r} is there {count} times" for (r, n), count in judged.items() if count > 1]
            attempts = {(r["run_id"], r["number"]) for r in rows("SELECT run_id, number FROM attempts")}
            found += [f"{len(attempts ^ set(judged))} attempts without an event, or the other way round"] * (attempts != set(judged))
            needed = rows(
                "SELECT e.run_id, e.record ->> '$.event.verdict.kernel_id' AS kernel FROM events e JOIN runs r ON r.id = e.run_id "
                "WHERE r.ended IS NULL AND e.kind = 'Judged' AND kernel != '' AND NOT EXISTS (SELECT 1 FROM kernels WHERE id = kernel)"
            )
            found += [f"the unfinished run {r['run_id']} lacks the kernel {r['kernel']}" for r in needed]
            found += unlike(archive, whole=True)
        self.problems += found
        print(f"{dict(self.counts)}: {'; '.join(self.problems) or 'nothing wrong'}", flush=True)


def _writes(pid: int) -> bool:
    """Whether a process is in a write transaction: SQLite's lock for that is byte 120 of the -shm file."""
    return any(line.split()[3:5] == ["WRITE", str(pid)] and line.split()[6] == "120" for line in Path("/proc/locks").read_text().splitlines())


def beside_a_run(path: Path, count: int, rng: random.Random) -> Live:
    """Kill that many merges and removals while a run is on, which is killed as well now and then."""
    live = Live(path, rng)
    running = live.run()
    for number in range(count):
        live.kill_one(("merge", "prune")[number % 2])
        last = number % 20 == 19 or number == count - 1
        running = live.seen_to(running)
        if last or rng.random() < 0.3:
            running.kill()
            running.wait()
            live.counts["killed run"] += 1
            if last:
                live.look()
            running = live.run()
    live.problems += [f"the run could not be resumed: {running.returncode}"] * (running.wait() != 0)
    for added in (None, 0):  # the second time there is nothing to add
        said = subprocess.run(live.command("merge"), check=True, capture_output=True, text=True).stdout
        live.problems += [f"merged again: {said}"] * (added is not None and {int(n) for n in re.findall(r"\d+", said)} != {0})
    live.problems += ["a merge has not brought all"] * (not live.theirs() <= live._rows()[0])
    live.look()
    return live


def together(path: Path, count: int) -> tuple[list[str], float]:
    """Two insert `count` each, a fifth of them the same, while a third fills and a fourth searches. Returns what is wrong, and seconds."""
    began = time.perf_counter()
    others = [start(kind, path, count, 0) for kind in ("fill", "search")]
    both = [start("insert", path, first, count) for first in (0, count * 4 // 5)]
    ended = [process.wait() for process in both]
    seconds = time.perf_counter() - began
    problems = [f"an inserting process ended with {code}" for code in ended if code]
    for process in others:
        problems += [f"a process ended with {process.returncode}"] * (process.poll() is not None)
        process.kill()
        process.wait()
    problems += wrong(path, whole=True)
    with Archive(path) as archive:
        have = archive.stats().kernels
    problems += [f"{have} kernels, expected {count * 9 // 5}"] * (have != count * 4 // 5 + count)
    print(f"two processes: {have} kernels in {seconds:.1f} s; {'; '.join(problems) or 'nothing wrong'}", flush=True)
    return problems, seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--live", type=int, default=60)
    parser.add_argument("--kernels", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        kind, path, first, count = arguments.worker
        work(kind, Path(path), int(first), int(count))
        return 0
    with tempfile.TemporaryDirectory() as place:
        killed, lively, both = (Path(place) / name / "a.db" for name in ("killed", "live", "both"))
        problems, beside = [], Counter[str]()
        for path in (killed, lively, both):
            path.parent.mkdir()
        if arguments.kills:
            problems += kills(killed, arguments.kills, random.Random(arguments.seed))
        with Archive(killed) as archive:
            survived = archive.stats().kernels
        if arguments.live:
            live = beside_a_run(lively, arguments.live, random.Random(arguments.seed))
            problems, beside = problems + live.problems, live.counts
        found, seconds = together(both, arguments.kernels)
        problems += found
    if arguments.write:
        result = {
            "kills": arguments.kills, "seed": arguments.seed, "kernels_after_kills": survived, "beside_a_run": dict(beside),
            "kernels_each": arguments.kernels,
            "two_processes_s": seconds, "inserts_per_second_together": 2 * arguments.kernels / seconds, "problems": problems,
        }  # fmt: skip
        print(report.write("archive_faults", result))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
