"""Splitting a piece of a plan line at commas and closing brackets outside nested ones."""

from __future__ import annotations

from .located import Span

_OPEN, _CLOSE = "([{", ")]}"


def closing(span: Span, start: int, *, angle: bool = False) -> int:
    """Offset of the bracket that closes the one at `start`. `angle`: `<` and `>` outside the others count as brackets.

    Raises:
        KernelFileError: it is never closed, or closed by another kind.
    """
    opened: list[str] = []
    for offset in range(start, len(span.text)):
        char = span.text[offset]
        if char in _OPEN or (angle and char == "<" and all(o == "<" for o in opened)):
            opened.append(char)
        elif char in _CLOSE or (angle and char == ">" and opened[-1] == "<"):
            if not opened or "([{<".index(opened.pop()) != ")]}>".index(char):
                raise span.error(f"this {char!r} closes nothing", offset)
            if not opened:
                return offset
    raise span.error(f"this {span.text[start]!r} is never closed", start)


def find_outside(span: Span, what: str, start: int = 0) -> int:
    """Offset of the first `what` outside brackets, -1 where there is none."""
    depth = 0
    for offset in range(start, len(span.text)):
        if depth == 0 and span.text.startswith(what, offset):
            return offset
        depth += (span.text[offset] in _OPEN) - (span.text[offset] in _CLOSE)
    return -1


def split_commas(span: Span, *, angle: bool = False) -> tuple[Span, ...]:
    """The parts between commas outside brackets; nothing for an empty text. A trailing comma is allowed. `angle` as for `closing`.

    Raises:
        KernelFileError: an empty part.
    """
    parts: list[Span] = []
    depth, angles, start = 0, 0, 0
    for offset, char in enumerate(span.text):
        depth += (char in _OPEN) - (char in _CLOSE)
        if angle and depth == 0:  # inside parentheses they compare
            angles += (char == "<") - (char == ">")
        if char == "," and depth == 0 and angles == 0:
            parts.append(span.cut(start, offset))
            start = offset + 1
    last = span.cut(start)
    parts += [last] if last.text else []
    for part in parts:
        if not part.text:
            raise part.error("an argument is missing before this comma")
    return tuple(parts)
