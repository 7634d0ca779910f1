"""A kernel file as C++ tokens, so that comments, strings and raw strings are told apart, and its plan lines.

A plan line is a `//` comment that stands alone on its line and whose text begins with `@`. Nothing else of the file is understood here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .located import Place, Span, place_at

_TOKEN = re.compile(
    r"""
    (?P<comment>//(?:\\[ \t\r]*\n|[^\n])*|/\*.*?(?:\*/|\Z))
  | (?P<raw>(?:u8|[uUL])?R"(?P<delimiter>[^()\\\s"]{0,16})\(.*?(?:\)(?P=delimiter)"|\Z))
  | (?P<string>(?:u8|[uUL])?"(?:\\.|[^"\\\n])*"?)
  | (?P<number>\.?\d(?:[eEpP][+-]|'?\w|\.)*)
  | (?P<word>(?:[^\W\d]|\$)(?:\w|\$)*)
  | (?P<char>'(?:\\.|[^'\\\n])*'?)
  | (?P<newline>\n)
  | (?P<splice>\\[ \t\r]*\n)
  | (?P<space>[^\S\n]+)
  | (?P<punctuation><<=|>>=|<=>|\.\.\.|->\*|::|<<|>>|->|\+\+|--|&&|\|\||\#\#|[-+*/%&|^<>=!]=|.)
    """,
    re.VERBOSE | re.DOTALL,
)


MAX_PLAN_LINES = 256
DOCUMENTATION = frozenset(
    "param tparam brief return returns retval note file author authors date version details see sa warning todo bug code endcode "  # noqa: SIM905
    "p c b a e ref pre post throws exception copyright license since deprecated example remark remarks internal ingroup".split()
)  # words of documentation tools: such a comment is an ordinary one


class Token(NamedTuple):
    """One C++ token. `kind`: comment raw string number word char newline splice space punctuation."""

    kind: str
    text: str
    offset: int


def tokens(text: str) -> Iterator[Token]:
    """All tokens of the text in order, white space and comments included; joined they give the text back."""
    for match in _TOKEN.finditer(text):
        yield Token(match.lastgroup if match.lastgroup != "delimiter" else "raw", match.group(), match.start())  # type: ignore[arg-type]


@dataclass(frozen=True)
class PlanLine:
    """One directive: its word without the `@`, and the rest with `@+` lines joined and `#` comments dropped. `lines` are physical, from 1."""

    word: str
    rest: Span
    place: Place
    lines: tuple[int, ...]


def plan_lines(text: str) -> list[PlanLine]:
    """The plan lines of a file in order, known directives and unknown ones; words of documentation tools are left out.

    Raises:
        KernelFileError: a trailing backslash, an `@+` without a line above, a plan comment inside a macro, or too many lines.
    """
    found: list[PlanLine] = []
    before = "newline"  # kind of the last token on this line that is not white space
    for token in tokens(text):
        if token.kind == "comment" and (body := _plan_body(token.text)) is not None and before in ("newline", "splice"):
            place = place_at(text, token.offset)
            if before == "splice":
                raise place.error("a plan line cannot stand inside a macro: the line above ends with a backslash; move the plan line out of it")
            _add(found, body, token, place)
            if len(found) > MAX_PLAN_LINES:
                raise place.error(f"more than {MAX_PLAN_LINES} plan lines; a plan is a handful of launches")
        before = token.kind if token.kind != "space" else before
    return found


def _plan_body(comment: str) -> int | None:
    """Offset of the `@` of a plan comment, None for an ordinary one."""
    match = re.match(r"//[ \t]*@", comment)
    return match.end() - 1 if match else None


def _add(found: list[PlanLine], at: int, token: Token, place: Place) -> None:
    if re.search(r"\\[ \t\r]*$", token.text, re.MULTILINE):
        raise place.error("a plan line cannot end with a backslash (it would swallow the next line); continue it with `// @+ ...` on the next line")
    match = re.compile(r"@(\+|\w*)[ \t]*").match(token.text, at)
    assert match is not None  # `at` is the offset of an @
    content = token.text[match.end() :].split("#")[0].rstrip()
    start = Place(place.line, place.column + match.end(), place.source)
    if match.group(1) in DOCUMENTATION:
        return
    if match.group(1) != "+":
        found.append(PlanLine(match.group(1), Span(content, ((0, start),)), place, (place.line,)))
        return
    if not found or found[-1].lines[-1] != place.line - 1:
        raise place.error("`// @+` continues the plan line directly above it, and there is none")
    last = found.pop()
    joined = Span(f"{last.rest.text} {content}", (*last.rest.pieces, (len(last.rest.text) + 1, start)))
    found.append(PlanLine(last.word, joined, last.place, (*last.lines, place.line)))
