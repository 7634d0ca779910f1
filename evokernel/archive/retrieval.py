"""Finding kernels: by words (FTS5), by the meaning of words (text vectors) and by the structure of code, fused by reciprocal rank.

Each channel gives its best few, and for tasks the kernels verified on them; filters come after, and where they leave too few, the channels are asked
for more. What each channel says is then completed for all that any of them found, so that a hit can say why it is there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ..records import Kernel, Status
from . import words
from .database import Database
from .search import COLUMNS, JOINS, Filters, Hit, entry, where
from .words import CODE, STRATEGY, TASK

if TYPE_CHECKING:
    from .embed import TextModel
    from .index import Indexes
    from .structure import Vector

# A word in a strategy or a task's name says more than one in a source or an instruction list.
# By the value of bm25 SQLite keeps the best few; by the column `rank` FTS5 sorts all that match.
_WORDS = "SELECT rowid, -bm25({0}, 2.0, 1.0) AS score FROM {0} WHERE {0} MATCH ? ORDER BY score DESC LIMIT ?"
_ROW = "k.seq, v.seq, t.seq, coalesce(v.speedup_low, 0)"
_OF_TASK = (  # CROSS JOIN keeps SQLite to this order, in which the index of verdicts by task and speedup serves
    "FROM tasks t CROSS JOIN verdicts v ON v.task_id = t.id CROSS JOIN builds b ON b.id = v.build_id CROSS JOIN kernels k ON k.id = b.kernel_id "
    "WHERE t.seq = ?"
)
_INDEXED = "LEFT JOIN kernel_words kw ON kw.rowid = k.seq LEFT JOIN task_words tw ON tw.rowid = t.seq"
_PLACES = ("the strategy", "the compiled code", "the task's name", "the task's source")  # their columns
_FIRST = 100  # what a channel is asked for at first
_DEEPER = 8  # how many times more, each time that filters leave too few
_A_TASK = 10  # of how many asked for, a task's kernels are looked at
_COMPLETED = 200  # rows whose similarities are all looked up, at least
_POOL = 4  # of how many times as many the diverse ones are chosen
_RRF = 60  # Cormack, Clarke, Buettcher 2009, "Reciprocal Rank Fusion Outperforms Condorcet and Individual Rank Learning Methods"
_TEXT_WEIGHT = 0.5  # of 0.3 to 1 none is better than another (experiments/retrieval_quality.py)
_CODE_WEIGHT = 3.0  # who asks with a kernel file means its code; words only order what is alike
_ALIKE = 0.3  # what a full likeness to a kernel above costs, as a share of the best score
_SAME, _SIMILAR, _LEAST = 0.98, 0.8, 0.15  # similarities; what is below the least is no answer
_WORDS_SHOWN, _WORDS_OF_KERNEL = 8, 16


@dataclass(frozen=True)
class Question:
    """What is looked for. `words`: for full text; `text`: for the text model; `code`: a kernel file, for structure. Empty ones are not asked."""

    words: tuple[str, ...] = ()
    text: str = ""
    code: str = ""


class Row(NamedTuple):  # a thousand of them a search
    """A kernel with one of its verdicts, by their seqs. `low`: of the speedup, 0 where there is none."""

    kernel: int
    verdict: int | None
    task: int | None
    low: float


@dataclass
class Found:
    """Scores by the seq of a kernel or task, of each channel. `everything`: no channel has more."""

    kernel_words: dict[int, float] = field(default_factory=dict)
    task_words: dict[int, float] = field(default_factory=dict)
    kernel_text: dict[int, float] = field(default_factory=dict)
    task_text: dict[int, float] = field(default_factory=dict)
    code: dict[int, float] = field(default_factory=dict)
    everything: bool = True


def by_words(text: str) -> Question:
    """Kernels described by these words."""
    return Question(tuple(words.question_words(text)), text)


def by_kernel(kernel: Kernel) -> Question:
    """Kernels built like this one."""
    said = dict.fromkeys(words.question_words(words.strategy(kernel.text)))
    return Question(tuple(said)[:_WORDS_OF_KERNEL], code=kernel.text)


def by_task(name: str, source: str) -> Question:
    """Kernels of tasks like this one."""
    return Question(tuple(words.telling(name, source)), f"{name.replace('_', ' ')}\n{source}")


class Retrieval:
    """Answers questions to one archive; keeps its indexes open. Without a model there is no meaning of words, only words and structure."""

    def __init__(self, database: Database, indexes: Indexes, model: TextModel | None = None) -> None:
        self._database, self._indexes, self._model = database, indexes, model

    def search(self, question: Question, filters: Filters, limit: int) -> list[Hit]:
        """The kernels that answer best, each once; likenesses of better ones come later, unless kernels like one are asked for.

        Raises:
            ArchiveError: SQLite failed.
        """
        count = max(_FIRST, limit * _POOL)
        with ThreadPoolExecutor(1) as beside:  # the text model computes while SQLite looks for words
            vectors = beside.submit(self._vectors, question).result
            while True:
                found = self._ask(question, vectors, count)
                rows, all_there_are = self._rows(found, filters, count)
                if len(rows) >= limit or (found.everything and all_there_are):
                    break
                count *= _DEEPER
        text, code = vectors()
        rows = [row for row, _ in fuse(rows, found)[: _COMPLETED + limit * _POOL]]
        self._complete(found, rows, text, code)
        ranked = fuse(rows, found)[: limit * _POOL]
        chosen = ranked[:limit] if question.code or not ranked else self._apart(ranked, limit)
        return [hit for row, score in chosen if (hit := self._hit(row, score, found, question))]

    def _vectors(self, question: Question) -> tuple[Vector | None, Vector | None]:
        """The question as vectors for text and for structure."""
        text = code = None
        if self._model and question.text:
            text = self._model.embed(self._model.parts(question.text)).mean(axis=0)
            text /= max(float((text @ text) ** 0.5), 1e-9)
        if question.code:
            from . import structure

            code = structure.embed(question.code)
        return text, code

    def _ask(self, question: Question, vectors: Callable[[], tuple[Vector | None, Vector | None]], count: int) -> Found:
        """What each channel finds, at most `count` a channel. `vectors` waits for those of the question."""
        found = Found()
        for table, scores in (("kernel_words", found.kernel_words), ("task_words", found.task_words)):
            terms = words.terms(question.words)
            # bm25 gives words that most rows hold next to nothing, and takes longest for them: they are asked for where the others find too little.
            for asked in ([t for t in terms if not self._common(table, t)], terms):
                if len(scores) < count and asked:
                    scores.update(tuple(row) for row in self._database.rows(_WORDS.format(table), " OR ".join(asked), count))
            found.everything &= len(scores) < count
        text, code = vectors()
        for kind, query, scores in ((STRATEGY, text, found.kernel_text), (TASK, text, found.task_text), (CODE, code, found.code)):
            if query is not None:
                similar, everything = self._indexes.get(self._id(kind), kind, len(query)).search(query, count)
                scores.update(_worth(similar))
                found.everything &= everything
        return found

    def _common(self, table: str, term: str) -> bool:
        """Whether more than half of the rows hold a word; not known of all, once rows were deleted."""
        count = f"SELECT 2 * count(*) > (SELECT max(rowid) FROM {table}) FROM {table} WHERE {table} MATCH ?"
        return bool(self._database.rows(count, term)[0][0])

    def _id(self, kind: str) -> str:
        from . import structure

        return structure.MODEL if kind == CODE or self._model is None else self._model.id

    def _rows(self, found: Found, filters: Filters, count: int) -> tuple[list[Row], bool]:
        """The verdicts of what was found that pass the filters, the best one of each kernel; and whether tasks have no more."""
        condition, values = where(filters)
        kernels = json.dumps([*{**found.kernel_words, **found.kernel_text, **found.code}])
        rows = self._database.rows(f"SELECT {_ROW} FROM {JOINS} WHERE k.seq IN (SELECT value FROM json_each(?)) AND {condition}", kernels, *values)
        tasks = {t for scores in (found.task_words, found.task_text) for t in sorted(scores, key=lambda s: -scores[s])[: count // _A_TASK]}
        everything = tasks >= {*found.task_words, *found.task_text}
        count //= 2
        of_a_task = f"SELECT {_ROW} {_OF_TASK} AND {condition} AND v.status"
        for task in tasks:
            of_task = self._database.rows(f"{of_a_task} = ? ORDER BY v.speedup_low DESC LIMIT ?", task, *values, Status.VERIFIED.value, count)
            if len(of_task) < count and not filters.verified:
                of_task += self._database.rows(f"{of_a_task} != ? LIMIT ?", task, *values, Status.VERIFIED.value, count)
            everything &= len(of_task) < count
            rows += of_task
        return _one_a_kernel([Row(*row) for row in rows], found), everything

    def _complete(self, found: Found, rows: Sequence[Row], text: Vector | None, code: Vector | None) -> None:
        """Every row's similarity in every channel, whichever channel found it."""
        from . import vectors

        wanted = ((STRATEGY, text, found.kernel_text), (TASK, text, found.task_text), (CODE, code, found.code))
        for kind, query, scores in wanted:
            items = {r.task if kind == TASK else r.kernel for r in rows} - {None, *scores}
            if query is not None and items:
                stored = vectors.stored(self._database, self._id(kind), kind, [i for i in items if i is not None])
                scores.update(_worth({item: float((parts @ query).max()) for item, parts in stored.items()}))

    def _apart(self, ranked: Sequence[tuple[Row, float]], limit: int) -> list[tuple[Row, float]]:
        """The best ones by maximal marginal relevance (Carbonell and Goldstein 1998) over the structure of their code."""
        import numpy as np

        from . import structure, vectors

        stored = vectors.stored(self._database, structure.MODEL, CODE, [row.kernel for row, _ in ranked])
        unknown = np.zeros((1, structure.DIMENSION), np.float32)
        code = np.concatenate([stored.get(row.kernel, unknown)[:1] for row, _ in ranked])
        worth, nearest = np.array([score / ranked[0][1] for _, score in ranked]), np.zeros(len(ranked), np.float32)
        chosen: list[int] = []
        while len(chosen) < min(limit, len(ranked)):
            chosen.append(int((worth - _ALIKE * nearest).argmax()))
            worth[chosen[-1]] = -np.inf
            nearest = np.maximum(nearest, code @ code[chosen[-1]])
        return [ranked[n] for n in chosen]

    def _hit(self, found: Row, score: float, scores: Found, question: Question) -> Hit | None:
        sql = f"SELECT {COLUMNS}, kw.*, tw.* FROM {JOINS} {_INDEXED} WHERE k.seq = ? AND v.seq IS ?"
        rows = self._database.rows(sql, found.kernel, found.verdict)
        if not rows:
            return None  # another process has removed it since
        row = rows[0]
        places = [(place, words.matched(question.words, text or "")) for place, text in zip(_PLACES, row[-len(_PLACES) :], strict=True)]
        why = [f"{', '.join(hits[:_WORDS_SHOWN])} in {place}" for place, hits in places if hits]
        for name, similar in (("task text", scores.task_text.get(found.task or 0)), ("strategy text", scores.kernel_text.get(found.kernel))):
            why += [f"{name} {similar:.2f}"] if similar is not None else []
        if (alike := scores.code.get(found.kernel)) is not None:
            why.insert(0, f"{'same' if alike >= _SAME else 'similar' if alike >= _SIMILAR else 'other'} structure {alike:.2f}")
        return Hit(entry(row), score, "; ".join(why))


def fuse(rows: Sequence[Row], found: Found) -> list[tuple[Row, float]]:
    """The rows by the sum of their reciprocal ranks in the channels, the best first; among equals the faster kernel is."""
    channels: list[tuple[float, dict[int, float], dict[int, float]]] = [
        (1.0, found.kernel_words, found.task_words), (_TEXT_WEIGHT, found.kernel_text, found.task_text), (_CODE_WEIGHT, found.code, {}),
    ]  # fmt: skip
    totals = [0.0] * len(rows)
    for weight, kernels, tasks in channels:
        scores = ((kernels.get(row.kernel, 0.0) + tasks.get(row.task or 0, 0.0), n, row) for n, row in enumerate(rows if kernels or tasks else ()))
        for place, (*_, n) in enumerate(sorted((-score, -row.low, row.kernel, n) for score, n, row in scores if score > 0), 1):
            totals[n] += weight / (_RRF + place)
    ranked = sorted((-total, -row.low, row.kernel, n) for n, (total, row) in enumerate(zip(totals, rows, strict=True)) if total)
    return [(rows[n], -total) for total, *_, n in ranked]


def _worth(similar: dict[int, float]) -> dict[int, float]:
    return {item: score for item, score in similar.items() if score >= _LEAST}


def _one_a_kernel(rows: Iterable[Row], found: Found) -> list[Row]:
    """Of each kernel the verdict on the task that was found best, there the fastest."""

    def key(row: Row) -> tuple[float, float, float]:
        return found.task_words.get(row.task or 0, 0.0), found.task_text.get(row.task or 0, 0.0), row.low

    best: dict[int, Row] = {}
    for row in rows:
        if row.kernel not in best or key(row) > key(best[row.kernel]):
            best[row.kernel] = row
    return list(best.values())
