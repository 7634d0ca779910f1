"""Kill processes that insert into, fill, search and index one archive at random moments; and let two insert the same kernels. What is lost or twice?

    python experiments/archive_faults.py [--kills 100] [--kernels 5000] [--seed N] [--write]

A worker inserts kernels with verdicts (each acknowledged once it is committed), makes vectors, answers questions, or makes indexes anew; it is killed
with SIGKILL after a random time, and the archive is looked at: every acknowledged kernel is there once, the file is sound, every vector belongs to
a row and is there once, and the indexes that a new process opens hold exactly the rows. At the end two processes insert `--kernels` each, a
fifth of them the same, while a third fills and a fourth searches. The text model is a double (hashed words), so that nothing waits for it. Exit
code 1 where anything was wrong.
"""

from __future__ import annotations

import argparse
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import report

sys.path.insert(0, str(Path(__file__).parent.parent))
from evokernel.archive import structure, vectors, verdicts
from evokernel.archive.index import Indexes
from evokernel.archive.retrieval import by_kernel, by_words
from evokernel.archive.search import Filters
from evokernel.archive.store import Archive
from evokernel.archive.verdicts import Origin
from tests.search.fake_judge import kernel_text, make, make_task, verified

TASKS = [make_task(name, f"return {name}(x)") for name in ("softmax", "layer_norm", "relu", "cumsum")]
WORDS = ("online", "streaming", "registers", "shared", "vector", "rows", "prefetch", "tiles")
WORKERS = ("insert", "insert", "fill", "search", "rebuild")


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


def work(kind: str, path: Path, first: int, count: int) -> None:
    """What a worker does, until it is done or killed."""
    model, rng = HashedWords(), random.Random(first)
    with Archive(path) as archive:
        if kind == "insert":
            insert(archive, range(first, first + count))
        while kind != "insert":
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
        killed, both = Path(place) / "killed" / "a.db", Path(place) / "both" / "a.db"
        problems = []
        for path in (killed, both):
            path.parent.mkdir()
        if arguments.kills:
            problems += kills(killed, arguments.kills, random.Random(arguments.seed))
        with Archive(killed) as archive:
            survived = archive.stats().kernels
        found, seconds = together(both, arguments.kernels)
        problems += found
    if arguments.write:
        result = {
            "kills": arguments.kills, "seed": arguments.seed, "kernels_after_kills": survived, "kernels_each": arguments.kernels,
            "two_processes_s": seconds, "inserts_per_second_together": 2 * arguments.kernels / seconds, "problems": problems,
        }  # fmt: skip
        print(report.write("archive_faults", result))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
