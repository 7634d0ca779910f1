"""How the archive behaves when it is large: inserts, searches by stage, recall of its indexes, memory, file sizes, rebuilding.

    python experiments/archive_scale.py [--sizes 10000 30000 100000] [--vectors 200000 1000000] [--write]

The kernels are not real ones but varied real ones: a shipped kernel file with some names and lines changed, its description mixed with that of
another one of the target, on one of 200 tasks that are shipped tasks under other names and shapes; verdicts are the shipped ones with other times.
The first thousand kernels of a size and the last go through Archive.record, as in a run (rates are of these); those between are written many a
transaction, with a piece of text for the diff to a parent. Text vectors are those of the shipped descriptions with noise, one a kernel, because the
model would take hours; so are the vectors of code that 20 s are too short for. The million vectors alone are made in the same way. Queries are
those of retrieval_queries.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import report

sys.path.insert(0, str(Path(__file__).parent.parent))
from evokernel.archive import embed, index, structure, vectors, verdicts, words
from evokernel.archive.index import Indexes
from evokernel.archive.retrieval import Retrieval, by_kernel, by_words
from evokernel.archive.runs import RunLog, RunSettings, Started
from evokernel.archive.search import Filters
from evokernel.archive.shipped import ManifestEntry, read_manifest, shipped_root
from evokernel.archive.store import Archive
from evokernel.archive.verdicts import Origin
from evokernel.kernelfile import make_kernel
from evokernel.records import Attempt, Device, Interval, Kernel, Placement, Proposal, Reply, Task, Verdict, digest
from evokernel.view.tables import hits_text

os.environ.setdefault("OMP_NUM_THREADS", "1")  # as `evokernel archive search` does
QUERIES = Path(__file__).parent / "retrieval_queries.json"
TASKS, RECORDED, CODE_S = 200, 1000, 20.0
NOISE = (0.2, 0.5, 0.8)  # length of the noise on a vector of length 1


@dataclass
class Maker:
    """Makes kernels, tasks and verdicts by varying the shipped ones."""

    seed: int = 0
    rng: random.Random = field(init=False)
    entries: list[ManifestEntry] = field(init=False)
    texts: list[str] = field(init=False)
    tasks: list[Task] = field(init=False)

    def __post_init__(self) -> None:
        root = shipped_root()
        assert root
        self.rng = random.Random(self.seed)
        self.entries = read_manifest(root)
        self.texts = [(root / e.file).read_text("utf-8") for e in self.entries]
        self.tasks = [self._task(n) for n in range(TASKS)]

    def _task(self, number: int) -> Task:
        origin = self.entries[number % len(self.entries)].task
        name = origin.name if number < len(self.entries) else f"{origin.name}_{number}"
        source = re.sub(r"\b(\d{3,})\b", lambda m: str(int(m[1]) // 2 * self.rng.choice((1, 2, 3))), origin.source) + f"\n# {number}\n"
        return replace(origin, id=digest(name, source), name=name, source=source, path=f"{name}.py")

    def kernel(self, number: int, *, checked: bool = True) -> tuple[Kernel, Task, int]:
        """A new kernel, its task and the seed that it varies. Not `checked`: with an id that is quicker to compute."""
        origin = self.rng.randrange(len(self.entries))
        text, entry = self.texts[origin], self.entries[origin]
        names = self.rng.sample(sorted(set(re.findall(r"\b[a-z_]{3,}\b", text))), 3)
        code = re.sub(r"\b(" + "|".join(names) + r")\b", lambda m: f"{m[1]}_{number}", text[text.index("@") :])
        lines = [line for line in code.split("\n") if line.startswith("//") or self.rng.random() > 0.03]
        other = self.rng.choice([t for t, e in zip(self.texts, self.entries, strict=True) if e.target == entry.target])
        sentences = [*re.split(r"(?<=[.:])\s", words.strategy(text)), *re.split(r"(?<=[.:])\s", words.strategy(other))[:2]]
        said = " ".join(self.rng.sample(sentences, min(len(sentences), 4)))
        changed = f"// {said}\n// " + "\n".join(lines)
        made = make_kernel(changed, entry.target) if checked else Kernel(digest(entry.target, changed), entry.target, changed)
        return made, self.tasks[(origin + len(self.entries) * self.rng.randrange(8)) % TASKS], origin

    def verdict(self, kernel: Kernel, origin: int) -> Verdict:
        """The seed's verdict with other times."""
        before = self.entries[origin].verdict
        factor = self.rng.uniform(0.3, 1.2)
        assert before.timing
        modes = tuple(replace(m, baselines=tuple(replace(b, speedup=scaled(b.speedup, factor)) for b in m.baselines)) for m in before.timing.modes)
        return replace(before, kernel_id=kernel.id, code_hash=kernel.id, timing=replace(before.timing, modes=modes))


def scaled(speedup: Interval, factor: float) -> Interval:
    return Interval(speedup.low * factor, speedup.mid * factor, speedup.high * factor)


def noisy(base: Any, count: int, seed: int) -> Any:
    """`count` vectors of length 1 around those of `base`, with noise of several lengths."""
    rng = np.random.default_rng(seed)
    made = base[rng.integers(len(base), size=count)]
    noise = rng.standard_normal(made.shape, dtype=np.float32)
    noise *= rng.choice(np.array(NOISE, np.float32), size=(count, 1)) / np.linalg.norm(noise, axis=1, keepdims=True)
    made = made + noise
    return (made / np.linalg.norm(made, axis=1, keepdims=True)).astype(np.float32)


def insert(archive: Archive, maker: Maker, count: int) -> dict[str, float]:
    """Grow the archive to `count` kernels; the rates at which the first and the last of them were recorded."""
    have = archive.stats().kernels
    known = [row["id"] for row in archive.database.rows("SELECT id FROM kernels ORDER BY seq DESC LIMIT 1000")]
    for task in maker.tasks if not have else ():
        archive.add_task(task)
    rates = {"inserts_per_second_at_first": record(archive, maker, have, known)}
    number, end = have + RECORDED, count - RECORDED
    while number < end:
        batch = [maker.kernel(n, checked=False) for n in range(number, min(number + 500, end))]
        with archive.database.write() as connection:
            for kernel, task, origin in batch:
                verdicts.insert_kernel(connection, kernel, Origin("user"))
                connection.execute("INSERT INTO edges VALUES (?, ?, NULL, ?)", (kernel.id, maker.rng.choice(known), kernel.text[:2000]))
                verdicts.store(connection, maker.verdict(kernel, origin), task, imported=False)
        number += len(batch)
    return rates | {"inserts_per_second_at_last": record(archive, maker, max(number, end), known)}


def record(archive: Archive, maker: Maker, first: int, known: list[str]) -> float:
    """RECORDED kernels through Archive.record; how many a second."""
    made = [maker.kernel(first + n) for n in range(RECORDED)]
    judged = [maker.verdict(kernel, origin) for kernel, _, origin in made]
    task = made[0][1]
    log: RunLog = archive.start_run(Started(task.id, Device("none", "cpp", "none", 1), RunSettings("cpp"), (), "task.py"))
    began = time.perf_counter()
    for n, ((kernel, task, _), verdict) in enumerate(zip(made, judged, strict=True)):
        parents = (maker.rng.choice(known),) if known else ()
        logged = archive.record(Attempt(Proposal(n, "mutate", parents), Reply(kernel.text), kernel, verdict), task, log, 1.0)
        assert logged.event.placement is not Placement.REJECTED  # type: ignore[union-attr]
        if not known:
            known.append(kernel.id)
    seconds = time.perf_counter() - began
    log.release()
    known.extend(kernel.id for kernel, _, _ in made)
    return RECORDED / seconds


def fill(archive: Archive, model: embed.TextModel, base: Any, count: int) -> dict[str, float]:
    """Give all kernels their vectors: real ones of some code and of tasks, noisy ones otherwise."""
    result = {}
    database = archive.database
    if not database.row("SELECT 1 FROM vectors WHERE kind = 'code'"):
        began = time.perf_counter()
        items = archive.fill(budget_s=CODE_S).items
        result["code_vectors_per_second"] = items / (time.perf_counter() - began)
    code = np.frombuffer(b"".join(r[0] for r in database.rows("SELECT vector FROM vectors WHERE kind = 'code' LIMIT 10000")), "<f4").reshape(-1, 512)
    for kind, name, source in (("code", structure.MODEL, code), ("strategy", model.id, base)):
        without = "SELECT seq FROM kernels k WHERE NOT EXISTS (SELECT 1 FROM vectors WHERE kind = ? AND item = k.seq AND model = ?)"
        items = [r[0] for r in database.rows(without, kind, name)]
        if items:
            made = noisy(source, len(items), count)
            with database.write() as connection:
                rows = ((name, kind, item, 0, vector.tobytes()) for item, vector in zip(items, made, strict=True))
                connection.executemany("INSERT INTO vectors (model, kind, item, part, vector) VALUES (?, ?, ?, ?, ?)", rows)
    archive.fill(model)  # the tasks
    return result


@contextmanager
def timed(thing: Any, name: str, into: dict[str, list[float]], label: str) -> Iterator[None]:
    """Add up the milliseconds that calls of a method take."""
    method: Callable[..., Any] = getattr(thing, name)

    def measured(*args: Any) -> Any:
        began = time.perf_counter()
        try:
            return method(*args)
        finally:
            into[label][-1] += (time.perf_counter() - began) * 1e3

    setattr(thing, name, measured)
    try:
        yield
    finally:
        delattr(thing, name)


def search(archive: Archive, model: embed.TextModel, questions: list[Any], filters: Filters, again: int = 2) -> dict[str, Any]:
    """Warm searches: milliseconds by stage, p50 and p95 over the questions. The text model works beside the words of the channels, which wait for it
    at their end; "table" is not of the search: what a person is shown, for which the verdicts of the hits are decoded."""
    indexes = Indexes(archive.database)
    retrieval = Retrieval(archive.database, indexes, model)
    for question in questions[:5]:
        retrieval.search(question, filters, 20)
    stages = {
        "text model": "_vectors", "channels": "_ask", "rows and filters": "_rows", "similarities": "_complete", "diversity": "_apart", "hits": "_hit",
    }  # fmt: skip
    took: dict[str, list[float]] = {name: [] for name in (*stages, "vectors", "whole", "table")}
    opened = [indexes.get(structure.MODEL if kind == "code" else model.id, kind, 512 if kind == "code" else model.dimension)
              for kind in ("task", "strategy", "code")]  # fmt: skip
    for question in questions * again:
        for times in took.values():
            times.append(0.0)
        with ExitStack() as stack:
            for thing, method, stage in [*((retrieval, m, s) for s, m in stages.items()), *((o, "search", "vectors") for o in opened)]:
                stack.enter_context(timed(thing, method, took, stage))
            began = time.perf_counter()
            hits = retrieval.search(question, filters, 20)
            took["whole"][-1] = (time.perf_counter() - began) * 1e3
            hits_text(hits)
            took["table"][-1] = (time.perf_counter() - began) * 1e3 - took["whole"][-1]
    return {name: {"p50_ms": round(float(np.percentile(t, 50)), 2), "p95_ms": round(float(np.percentile(t, 95)), 2)} for name, t in took.items()}


def tenths(archive: Archive, queries: Any) -> Any:
    """The tenth best inner product of each query with all vectors."""
    best = np.full((len(queries), 0), 0, np.float32)
    last = 0
    while rows := archive.database.rows("SELECT seq, vector FROM vectors WHERE seq > ? ORDER BY seq LIMIT 50000", last):
        vectors_there = np.frombuffer(b"".join(r[1] for r in rows), "<f4").reshape(len(rows), -1)
        best = np.sort(np.concatenate([best, queries @ vectors_there.T], axis=1), axis=1)[:, -10:]
        last = rows[-1][0]
    return best[:, 0]


def recall(queries: Any, least: Any, tested: Any) -> dict[str, float]:
    """Recall@10 of an index against all inner products (an answer as good as the tenth counts), and milliseconds a search."""
    found, took = [], []
    for query, tenth in zip(queries, least, strict=True):
        began = time.perf_counter()
        scores = tested.search(query, 10)[0].values()
        took.append((time.perf_counter() - began) * 1e3)
        found.append(sum(s >= tenth - 1e-5 for s in scores) / 10)
    return {"recall_at_10": float(np.mean(found)), "p50_ms": float(np.percentile(took, 50)), "p95_ms": float(np.percentile(took, 95))}


def opened(archive: Archive, names: list[tuple[str, str, int]]) -> dict[str, float]:
    """Seconds to open indexes from their files, and to make them again from the rows."""
    result = {}
    for what in ("make", "open"):
        if what == "make":
            for file in vectors.index_folder(archive.database.path).glob("*.faiss"):
                file.unlink()
        began = time.perf_counter()
        indexes = Indexes(archive.database)
        for name in names:
            indexes.get(*name)
        result[f"{what}_indexes_s"] = round(time.perf_counter() - began, 3)
    return result


def sizes(path: Path) -> dict[str, float]:
    files = {"archive": path, "write_ahead_log": path.with_name(path.name + "-wal")}
    made = {f"{name}_mib": file.stat().st_size / 2**20 for name, file in files.items() if file.exists()}
    return made | {"indexes_mib": sum(f.stat().st_size for f in vectors.index_folder(path).glob("*.faiss")) / 2**20}


def cold(path: Path, *arguments: str) -> float:
    """Seconds of one `evokernel archive search` from start to end."""
    command = [sys.executable, "-c", "from evokernel.cli import main; main()", "archive", "search", *arguments, "--archive", str(path)]
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return round(time.perf_counter() - began, 2)


def full(path: Path, counts: list[int], model: embed.TextModel, base: Any) -> list[dict[str, Any]]:
    """One growing archive; a row a size."""
    maker, rows = Maker(), []
    asked = [by_words(q["text"]) for q in json.loads(QUERIES.read_text())["queries"]]
    for count in counts:
        row: dict[str, Any] = {"kernels": count}
        with Archive(path) as archive:
            row |= insert(archive, maker, count)
            row |= fill(archive, model, base, count)
            row |= opened(archive, [(structure.MODEL, "code", 512), (model.id, "strategy", model.dimension), (model.id, "task", model.dimension)])
            row["by_words"] = search(archive, model, asked, Filters())
            row["by_words_filtered"] = search(archive, model, asked, Filters(target="cuda", verified=True, min_speedup=1.2), 1)
            row["by_kernel"] = search(archive, model, [by_kernel(make_kernel(t, "cuda")) for t in maker.texts], Filters(), 1)
            row["resident_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        began = time.perf_counter()
        Archive(path).close()
        row["open_s"] = round(time.perf_counter() - began, 4)
        row["cold_search_s"] = cold(path, "fused softmax for long rows")
        row["cold_search_without_model_s"] = cold(path, "fused softmax for long rows", "--text-model", "none")
        row |= sizes(path)
        print(json.dumps(row, indent=1), flush=True)
        rows.append(row)
    return rows


def alone(path: Path, count: int, model: embed.TextModel, base: Any) -> dict[str, Any]:
    """Vectors alone, in batches; the index of them against all inner products, exact and by lists."""
    with Archive(path) as archive:
        began = time.perf_counter()
        for first in range(0, count, 20_000):
            made = noisy(base, min(20_000, count - first), first)
            with archive.database.write() as connection:
                rows = ((model.id, "strategy", first + n, 0, vector.tobytes()) for n, vector in enumerate(made))
                connection.executemany("INSERT INTO vectors (model, kind, item, part, vector) VALUES (?, ?, ?, ?, ?)", rows)
        row: dict[str, Any] = {"vectors": count, "inserts_per_second": count / (time.perf_counter() - began)}
        queries = np.concatenate([model.embed([q["text"] for q in json.loads(QUERIES.read_text())["queries"]][:40]), noisy(base, 60, 7)])
        row |= opened(archive, [(model.id, "strategy", model.dimension)])
        tested = Indexes(archive.database).get(model.id, "strategy", model.dimension)
        row["peak_mib_before_recall"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        least = tenths(archive, queries)
        for probes in (8, 16, 32) if count > index.EXACT else (0,):
            if probes:
                index._PROBES = probes
            row[f"probes_{probes}"] = recall(queries, least, tested)
        row |= sizes(path)
    print(json.dumps(row, indent=1), flush=True)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[10_000, 30_000, 100_000])
    parser.add_argument("--vectors", type=int, nargs="*", default=[200_000, 1_000_000])
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    model = embed.open_text_model()
    texts = [s for t in Maker().texts for s in re.split(r"(?<=[.:;,])\s", words.strategy(t)) if len(s) > 20]
    base = model.embed(texts)
    with tempfile.TemporaryDirectory() as place:
        result = {
            "text_model": model.id, "distinct_texts": len(texts),
            "vectors_alone": [alone(Path(place) / f"v{n}.db", n, model, base) for n in arguments.vectors],
            "full": full(Path(place) / "a.db", arguments.sizes, model, base),
        }  # fmt: skip
    if arguments.write:
        print(report.write("archive_scale", result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
