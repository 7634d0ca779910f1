"""The one exception for a kernel file that cannot be used, and where in the text things stand."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches


class KernelFileError(Exception):
    """The candidate's text is at fault. `str()` is the located message with the line and a caret under the place.

    `line` and `column` count from 1; 0 means that the place is not known.
    """

    def __init__(self, message: str, line: int = 0, column: int = 0, source: str = "") -> None:
        super().__init__(message, line, column, source)
        self.message, self.line, self.column, self.source = message, line, column, source

    def __str__(self) -> str:
        if not self.line:
            return self.message
        head = f"line {self.line}, column {self.column}: {self.message}" if self.column else f"line {self.line}: {self.message}"
        if not self.source.strip():
            return head
        source, column = _window(self.source.replace("\t", " "), self.column)
        return f"{head}\n  {source}" + (f"\n  {' ' * (column - 1)}^" if column else "")


def _window(source: str, column: int, width: int = 160) -> tuple[str, int]:
    """At most `width` characters of a long line around `column`, and the column in them."""
    start = max(0, min(column - width // 2, len(source) - width))
    return source[start : start + width].rstrip(), column - start if column else 0


@dataclass(frozen=True)
class Place:
    """A line and a column (both from 1) and the physical line that stands there."""

    line: int
    column: int
    source: str

    def error(self, message: str) -> KernelFileError:
        return KernelFileError(message, self.line, self.column, self.source)


def place_at(text: str, offset: int) -> Place:
    """The place of a character of the file."""
    start = text.rfind("\n", 0, offset) + 1
    end = text.find("\n", offset)
    return Place(text.count("\n", 0, offset) + 1, offset - start + 1, text[start : end if end >= 0 else len(text)])


@dataclass(frozen=True)
class Span:
    """A piece of a plan line: its text, and where its parts stand in the file.

    `pieces` maps offsets of `text` to places: (offset of the piece in `text`, its place). A line continued by `// @+` has several.
    """

    text: str
    pieces: tuple[tuple[int, Place], ...]

    def place(self, offset: int = 0) -> Place:
        index = max(0, bisect_right([start for start, _ in self.pieces], offset) - 1)
        start, place = self.pieces[index]
        return Place(place.line, place.column + offset - start, place.source)

    def cut(self, start: int, end: int | None = None) -> Span:
        """`text[start:end]` without white space at its ends, still knowing its places."""
        raw = self.text[start:end]
        start += len(raw) - len(raw.lstrip())
        text = raw.strip()
        first = self.place(start)
        rest = tuple((offset - start, place) for offset, place in self.pieces if start < offset < start + len(text))
        return Span(text, ((0, first), *rest))

    def error(self, message: str, offset: int = 0) -> KernelFileError:
        return self.place(offset).error(message)


def suggest(name: str, known: Iterable[str]) -> str:
    """`did you mean 'x'? known: ...`, for the end of a message about an unknown name."""
    names = sorted(set(known))
    near = get_close_matches(name, names, n=2, cutoff=0.6)
    hint = f"did you mean {' or '.join(repr(n) for n in near)}? " if near else ""
    shown = ", ".join(names[:60]) + (", ..." if len(names) > 60 else "")
    return f"{hint}known: {shown or 'none'}"
