"""Words: what is indexed of tasks and kernels for full text search, and how a question is put to the index."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence

from ..records import Task

# Words that every task file has say nothing about what it computes.
_COMMON = frozenset(
    re.findall(
        r"\w+",
        "and as bool class def dict else false float for from forward functional get if import in init init_inputs input inputs int is "
        "len list model module nn none not or rand randn range return self shape size super tensor the torch true tuple typing with",
    )
)
# Words of a question that say nothing about kernels.
_FILLER = frozenset(
    re.findall(
        r"\w+", "a all an and any are as at by can do for from how i in into is it its of on or over that the this to use uses using what which with"
    )
)
QUERY_WORDS = 64
TASK, STRATEGY, CODE = "task", "strategy", "code"  # the kinds of views that have vectors (see vectors.py)


def words(text: str) -> list[str]:
    """The words of a text or code in lower case; identifiers whole and by their parts: LayerNorm gives layernorm, layer, norm."""
    found: list[str] = []
    for run in re.findall(r"[^\W_]+", text):
        parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[^A-Z]+", run)
        found += [run.lower(), *(p.lower() for p in parts if p != run)]
    return found


def strategy(text: str) -> str:
    """The leading comment of a kernel file, without plan lines: what the kernel does, in words."""
    lines: list[str] = []
    for line in text.splitlines():
        comment = re.match(r"\s*//(.*)", line)
        if not comment and line.strip():
            break
        body = comment[1].strip() if comment else ""
        if body.startswith("@"):
            break
        lines.append(body)
    return " ".join(" ".join(lines).split())


def question_words(text: str) -> list[str]:
    """The words of a question that are worth a look; all of them where none is."""
    found = words(text)
    return [w for w in found if w not in _FILLER] or found


def unasked(question: Sequence[str]) -> int:
    """How many words of a question are too many to be looked for: the last ones."""
    return max(len(set(map(_stem, question))) - QUERY_WORDS, 0)


def match_all(question: Sequence[str]) -> str:
    """The FTS5 query for "all of these words, or words that begin so"; one that nothing matches when there is none."""
    return " AND ".join(terms(question)) or '""'


def _stem(word: str) -> str:
    return word.removesuffix("s") if len(word) > 3 else word


def terms(question: Sequence[str]) -> list[str]:
    """Each word of a question as an FTS5 query for it, or for words that begin so."""
    stems = dict.fromkeys(map(_stem, question))
    return [f'"{w}"*' if len(w) > 2 else f'"{w}"' for w in list(stems)[:QUERY_WORDS]]


def matched(question: Sequence[str], indexed: str) -> list[str]:
    """The words of the question that a document (its indexed text) holds, by the rules of `terms`."""
    held = f" {indexed} "
    return [w for w in dict.fromkeys(question) if f" {_stem(w)}{'' if len(w) > 2 else ' '}" in held]


def telling(name: str, source: str) -> list[str]:
    """The words of a task that tell it from others."""
    found = words(name) + words(source)
    return list(dict.fromkeys(w for w in found if w not in _COMMON and not w.isdigit() and len(w) > 1))


def index_task(connection: sqlite3.Connection, seq: int, task: Task) -> None:
    """Index a task's words; where its name has changed, its vector goes too and is made anew later."""
    name, source = (" ".join(words(text)) for text in (task.name, task.source))
    before = connection.execute("SELECT name FROM task_words WHERE rowid = ?", (seq,)).fetchone()
    if before and before[0] != name:
        connection.execute("DELETE FROM vectors WHERE kind = ? AND item = ?", (TASK, seq))
    connection.execute("DELETE FROM task_words WHERE rowid = ?", (seq,))
    connection.execute("INSERT INTO task_words (rowid, name, source) VALUES (?, ?, ?)", (seq, name, source))


def index_kernel(connection: sqlite3.Connection, seq: int, text: str, techniques: str) -> None:
    """Index a kernel's words; where its techniques have changed, its vector of them goes too and is made anew later."""
    found = " ".join(words(techniques))
    before = connection.execute("SELECT techniques FROM kernel_words WHERE rowid = ?", (seq,)).fetchone()
    if before and before[0] != found:
        connection.execute("DELETE FROM vectors WHERE kind = ? AND item = ?", (STRATEGY, seq))
    connection.execute("DELETE FROM kernel_words WHERE rowid = ?", (seq,))
    connection.execute("INSERT INTO kernel_words (rowid, strategy, techniques) VALUES (?, ?, ?)", (seq, " ".join(words(strategy(text))), found))


def forget_kernel(connection: sqlite3.Connection, seq: int) -> None:
    """Delete what is derived from a kernel: its words and vectors."""
    connection.execute("DELETE FROM kernel_words WHERE rowid = ?", (seq,))
    connection.execute("DELETE FROM vectors WHERE kind IN (?, ?) AND item = ?", (STRATEGY, CODE, seq))
