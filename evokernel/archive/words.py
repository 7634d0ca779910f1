"""Words: what is indexed of tasks and kernels for full text search, and how a question is put to the index."""

from __future__ import annotations

import re
import sqlite3

from ..records import Task

# Words that every task file has say nothing about what it computes.
_COMMON = frozenset(
    re.findall(
        r"\w+",
        "and as bool class def dict else false float for from forward functional get if import in init init_inputs input inputs int is "
        "len list model module nn none not or rand randn range return self shape size super tensor the torch true tuple typing with",
    )
)
_QUERY_WORDS = 64


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


def match_any(question: list[str]) -> str:
    """The FTS5 query for "any of these words, or words that begin so"; empty when there is none."""
    stems = dict.fromkeys(w.removesuffix("s") if len(w) > 3 else w for w in question)
    return " OR ".join(f'"{w}"*' if len(w) > 2 else f'"{w}"' for w in list(stems)[:_QUERY_WORDS])


def matched(question: list[str], indexed: str) -> list[str]:
    """The words of the question that a document (its indexed text) holds."""
    have = indexed.split()
    return [w for w in dict.fromkeys(question) if any(_same(w, h) for h in have)]


def _same(word: str, indexed: str) -> bool:
    return indexed.startswith(word.removesuffix("s")) if len(word) > 3 else indexed == word or (len(word) == 3 and indexed.startswith(word))


def telling_words(task: Task) -> list[str]:
    """The words of a task that tell it from others."""
    found = words(task.name) + words(task.source)
    return list(dict.fromkeys(w for w in found if w not in _COMMON and not w.isdigit() and len(w) > 1))


def index_task(connection: sqlite3.Connection, seq: int, task: Task) -> None:
    connection.execute("DELETE FROM task_words WHERE rowid = ?", (seq,))
    connection.execute(
        "INSERT INTO task_words (rowid, name, source) VALUES (?, ?, ?)", (seq, " ".join(words(task.name)), " ".join(words(task.source)))
    )


def index_kernel(connection: sqlite3.Connection, seq: int, text: str, techniques: str) -> None:
    connection.execute("DELETE FROM kernel_words WHERE rowid = ?", (seq,))
    connection.execute(
        "INSERT INTO kernel_words (rowid, strategy, techniques) VALUES (?, ?, ?)",
        (seq, " ".join(words(strategy(text))), " ".join(words(techniques))),
    )
