"""Whether searches find what their words mean: nDCG@10 of words, text vectors and their fusion over judged queries, and the same kernel written anew.

    python experiments/retrieval_quality.py [--write]

The archive holds the shipped kernels and four variants of each (renamed, reformatted, tuned anew, described in other words), with the shipped
verdicts and other times. Queries and the written rule of their grades are in retrieval_queries.json. nDCG@10 (gain 2^grade - 1) is given twice:
over all kernels, and over distinct ones, where of a kernel and its variants only the first that is found counts. Intervals: 95 %, bootstrap over
queries; differences are paired. Then every shipped kernel renamed, reformatted and tuned anew is looked for by its code alone: how often is it
found first?
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import report

sys.path.insert(0, str(Path(__file__).parent.parent))
from evokernel.archive import embed, retrieval, verdicts, words
from evokernel.archive.retrieval import Question, by_kernel, by_words
from evokernel.archive.search import Filters
from evokernel.archive.shipped import ManifestEntry, read_manifest, shipped_root
from evokernel.archive.store import Archive
from evokernel.archive.verdicts import Origin
from evokernel.kernelfile import make_kernel
from evokernel.records import Interval
from tests.archive.test_vectors import reformatted, renamed, retuned

QUERIES = Path(__file__).parent / "retrieval_queries.json"
RESAMPLES = 10_000
LIKENESS = retrieval._ALIKE  # the default
OTHER_WORDS = {
    "one pass": "a single sweep", "the row": "a line", "rows": "lines", "blocks": "thread blocks", "registers": "the register file",
    "at the end": "last", "in flight": "under way", "non-temporal": "streaming", "prefetched": "fetched ahead", "memory": "DRAM",
    "parts": "pieces", "fused": "in one kernel",
}  # fmt: skip


@dataclass(frozen=True)
class Known:
    """A kernel of the archive: the shipped file that it is a variant of, its grade's facts."""

    file: str
    op: str
    target: str
    techniques: frozenset[str]


def grade(query: dict[str, Any], kernel: Known) -> int:
    """0 to 3 by the rule in the queries' file."""
    techniques = set(query["techniques"])
    shared = len(techniques & kernel.techniques)
    if query["ops"]:
        right, every = kernel.op in query["ops"], bool(techniques) and shared == len(techniques)
        found = 3 if right and (every or not techniques) else 2 if right else 1 if kernel.op in query["related"] or every else 0
    else:
        found = 3 if shared == len(techniques) else 1 if 2 * shared >= len(techniques) else 0
    return max(0, found - (query["target"] not in (None, kernel.target)))


def reworded(text: str) -> str:
    """The leading comment with other words and its sentences in another order."""
    strategy = words.strategy(text)
    sentences = re.split(r"(?<=[.:])\s", strategy)
    said = " ".join(sentences[::-1])
    for old, new in OTHER_WORDS.items():
        said = re.sub(rf"\b{old}\b", new, said, flags=re.IGNORECASE)
    return f"// {said}\n//\n" + text[text.index("// @") :]


VARIANTS = {"renamed": renamed, "reformatted": reformatted, "retuned": retuned, "reworded": reworded}


def build(archive: Archive, entries: list[ManifestEntry], root: Path, techniques: dict[str, list[str]], rng: random.Random) -> dict[str, Known]:
    """The shipped kernels and their variants with verdicts; what each kernel id is."""
    known = {}
    for entry in entries:
        text = (root / entry.file).read_text("utf-8")
        facts = Known(entry.file, entry.file.split("/")[0], entry.target, frozenset(techniques[entry.file]))
        for change in (None, *VARIANTS.values()):
            kernel = make_kernel(change(text) if change else text, entry.target)
            archive.add_task(entry.task)
            archive.add_kernel(kernel, Origin("user", source=entry.file))
            with archive.database.write() as connection:
                verdicts.store(connection, slower(entry, kernel.id, rng.uniform(0.5, 1.0) if change else 1.0), entry.task, imported=False)
            known[kernel.id] = facts
    return known


def slower(entry: ManifestEntry, kernel_id: str, factor: float) -> Any:
    """The shipped verdict with another speedup, so that originals and variants do not lie in one order."""
    timing = entry.verdict.timing
    assert timing
    modes = tuple(
        replace(m, baselines=tuple(
            replace(b, speedup=Interval(b.speedup.low * factor, b.speedup.mid * factor, b.speedup.high * factor)) for b in m.baselines))
        for m in timing.modes
    )  # fmt: skip
    return replace(entry.verdict, kernel_id=kernel_id, timing=replace(timing, modes=modes))


def ndcg(found: list[int], possible: list[int]) -> float:
    """nDCG@10 of grades in the order found, against all grades there are."""
    def gain(grades: list[int]) -> float:
        return sum((2**g - 1) / np.log2(place + 2) for place, g in enumerate(grades[:10]))

    return float(gain(found) / gain(sorted(possible, reverse=True)))


def score(archive: Archive, query: dict[str, Any], question: Question, known: dict[str, Known], model: Any) -> tuple[float, float]:
    """nDCG@10 over all kernels and over distinct ones."""
    hits = archive.search(question, Filters(), 20, model)
    facts = [known[hit.entry.kernel.id] for hit in hits]
    every = ndcg([grade(query, k) for k in facts], [grade(query, k) for k in known.values()])
    seen: set[str] = set()
    once = []
    for k in facts[:10]:
        once.append(0 if k.file in seen else grade(query, k))
        seen.add(k.file)
    return every, ndcg(once, [grade(query, k) for k in {k.file: k for k in known.values()}.values()])


class Remembering:
    """A text model that computes each text once."""

    def __init__(self, model: embed.TextModel) -> None:
        self.id, self.dimension, self.parts, self._model = model.id, model.dimension, model.parts, model
        self._known: dict[str, Any] = {}

    def embed(self, texts: Sequence[str]) -> Any:
        new = [t for t in dict.fromkeys(texts) if t not in self._known]
        self._known |= dict(zip(new, self._model.embed(new), strict=True)) if new else {}
        return np.stack([self._known[t] for t in texts])


def interval(values: Any) -> dict[str, float]:
    """The mean with its 95 % bootstrap interval."""
    rng = np.random.default_rng(0)
    means = values[rng.integers(len(values), size=(RESAMPLES, len(values)))].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return {"mean": round(float(values.mean()), 4), "low": round(float(low), 4), "high": round(float(high), 4)}


def same_kernel(archive: Archive, entries: list[ManifestEntry], root: Path) -> dict[str, Any]:
    """How often the shipped kernel comes first where its changed code is asked for, among shipped kernels; words are not asked."""
    result: dict[str, Any] = {}
    for name in ("renamed", "reformatted", "retuned"):
        missed = []
        for entry in entries:
            changed = VARIANTS[name]((root / entry.file).read_text("utf-8"))
            hits = archive.search(replace(by_kernel(make_kernel(changed, entry.target)), words=()), Filters(), 1)
            if not hits or hits[0].entry.kernel.id != entry.kernel_id:
                missed.append(entry.file)
        result[name] = {"kernels": len(entries), "first": round(1 - len(missed) / len(entries), 4), "missed": missed}
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--queries", action="store_true", help="also print each query's scores")
    arguments = parser.parse_args()
    asked = json.loads(QUERIES.read_text())
    model = Remembering(embed.open_text_model())
    root = shipped_root()
    assert root
    entries = read_manifest(root)
    with tempfile.TemporaryDirectory() as place, Archive(Path(place) / "a.db") as archive:
        known = build(archive, entries, root, asked["kernels"], random.Random(0))
        archive.fill(model)
        queries = [q for q in asked["queries"] if any(grade(q, k) == 3 for k in known.values())]
        methods = {
            "words": (lambda q: Question(by_words(q).words), None), "text vectors": (lambda q: Question((), q), model),
            "fusion": (by_words, model),
        }  # fmt: skip
        rows: dict[str, Any] = {}
        scores: dict[tuple[str, float], Any] = {}
        for weight in sorted({0.0, 0.15, 0.3, 0.6, LIKENESS}):
            retrieval._ALIKE = weight
            for name, (ask, with_model) in methods.items():
                scores[name, weight] = np.array([score(archive, q, ask(q["text"]), known, with_model) for q in queries])
                every, distinct = scores[name, weight].T
                rows[f"{name}, likeness costs {weight}"] = {"all": interval(every), "distinct": interval(distinct)}
                print(f"{name:13} likeness {weight:4}: all {interval(every)}  distinct {interval(distinct)}", flush=True)
        default = scores["fusion", LIKENESS]
        paired = {f"fusion minus {n}": interval((default - scores[n, LIKENESS])[:, 1]) for n in ("words", "text vectors")}
        if arguments.queries:
            for q, *row in zip(queries, *(scores[n, LIKENESS][:, 1] for n in methods), strict=True):
                print(*(f"{x:.2f}" for x in row), q["text"])
        print(json.dumps(paired))
    with tempfile.TemporaryDirectory() as place, Archive(Path(place) / "a.db") as archive:
        for entry in entries:
            archive.add_kernel(make_kernel((root / entry.file).read_text("utf-8"), entry.target), Origin("user", source=entry.file))
        archive.fill()
        same = same_kernel(archive, entries, root)
    print(json.dumps(same))
    if arguments.write:
        result = {
            "text_model": model.id, "kernels": len(known), "queries": len(queries), "left_out": len(asked["queries"]) - len(queries),
            "ndcg_at_10": rows, "distinct_paired_differences": paired, "same_kernel_found_first": same,
        }  # fmt: skip
        print(report.write("retrieval_quality", result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
