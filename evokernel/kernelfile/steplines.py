"""The grammar of the steps: `@launch` for both targets, and `@call`."""

from __future__ import annotations

import re

from .brackets import closing, find_outside, split_commas
from .directives import CallLine, LaunchLine, Shape
from .expressions import Expression
from .located import Place, Span, suggest

_NAME = re.compile(r"[^\W\d]\w*(?:::[^\W\d]\w*)*\s*")
_KEY = re.compile(r"([^\W\d]\w*)\s*=(?!=)\s*")
LAUNCH_KEYS = ("cluster", "cooperative", "pdl")


def launch_line(rest: Span, target: str, place: Place, prepare: bool) -> LaunchLine:
    """The text after `@launch`. Raises: KernelFileError."""
    head = rest.text.find("<<<")
    if target == "cuda" and head < 0:
        raise rest.error("a cuda launch needs its shape: `@launch kernel<<<grid, block>>>(args)`")
    if target != "cuda" and head >= 0:
        raise rest.error("a cpp launch is a plain call without a launch shape: `@launch function(args)`", head)
    name = _NAME.match(rest.text)
    if not name:
        raise rest.error("a launch begins with the name of a function of this file")
    kernel, at = rest.cut(0, name.end()), name.end()
    template, shape = None, None
    if at < len(rest.text) and rest.text[at] == "<" and at != head:
        end = _last_angle(rest, at, head) if head >= 0 else closing(rest, at, angle=True)
        template = tuple(Expression(p) for p in split_commas(rest.cut(at + 1, end), angle=True))
        at = end + 1
    if head >= 0:
        end = find_outside(rest, ">>>", head + 3)
        if end < 0:
            raise rest.error("this `<<<` is never closed by `>>>`", head)
        shape, at = _shape(rest.cut(head + 3, end)), end + 3
    args, condition = _arguments(rest, at)
    return LaunchLine(kernel, template, shape, tuple(Expression(a) for a in args), condition, prepare, place)


def _last_angle(rest: Span, start: int, head: int) -> int:
    """The `>` right before `<<<` closes the template arguments, whatever comparisons stand between."""
    end = len(rest.text[:head].rstrip()) - 1
    if end <= start or rest.text[end] != ">":
        raise rest.error("the template arguments are never closed by `>` before `<<<`", start)
    return end


def _arguments(rest: Span, at: int) -> tuple[tuple[Span, ...], Expression | None]:
    """`(args)` at `at`, then optionally `if EXPR` to the end."""
    at += len(rest.text[at:]) - len(rest.text[at:].lstrip())
    if at >= len(rest.text) or rest.text[at] != "(":
        raise rest.error("the arguments in parentheses are missing here", min(at, max(len(rest.text) - 1, 0)))
    end = closing(rest, at)
    tail = rest.cut(end + 1)
    if not tail.text:
        return split_commas(rest.cut(at + 1, end)), None
    if not re.match(r"if\b", tail.text):
        key = re.match(rf"({'|'.join(LAUNCH_KEYS)})\s*=", tail.text) if "<<<" in rest.text else None
        where = f"; {key[1]} belongs into the launch shape: `kernel<<<grid, block, {key[1]}=...>>>(args)`" if key else ""
        raise tail.error(f"only `if EXPR` may follow the arguments{where}")
    return split_commas(rest.cut(at + 1, end)), Expression(tail.cut(2))


def _shape(inside: Span) -> Shape:
    places: list[Span] = []
    keys: dict[str, Span] = {}
    for part in split_commas(inside):
        match = _KEY.match(part.text)
        if not match and keys:
            raise part.error("grid, block and smem stand before the keys")
        if not match:
            places.append(part)
        elif match.group(1) in keys or match.group(1) not in (*LAUNCH_KEYS, "smem"):
            raise part.error(f"unknown or repeated launch key {match.group(1)!r}; {suggest(match.group(1), (*LAUNCH_KEYS, 'smem'))}")
        else:
            keys[match.group(1)] = part.cut(match.end())
    if len(places) == 3 and "smem" not in keys:
        keys["smem"] = places.pop()
    if len(places) != 2:
        raise inside.error("a launch shape is `<<<grid, block>>>` or `<<<grid, block, smem, key=...>>>`")
    return Shape(
        grid=_triple(places[0]),
        block=_triple(places[1]),
        smem=Expression(keys["smem"]) if "smem" in keys else None,
        cluster=_triple(keys["cluster"]) if "cluster" in keys else None,
        cooperative=Expression(keys["cooperative"]) if "cooperative" in keys else None,
        pdl=Expression(keys["pdl"]) if "pdl" in keys else None,
    )


def _triple(span: Span) -> tuple[Expression, ...]:
    """One expression, or a tuple of up to three in parentheses."""
    if span.text.startswith("(") and closing(span, 0) == len(span.text) - 1:
        parts = split_commas(span.cut(1, len(span.text) - 1))
        if len(parts) > 3:
            raise span.error("a grid or block has up to three dimensions")
        if parts:
            return tuple(Expression(p) for p in parts)
    return (Expression(span),)


def call_line(rest: Span, place: Place, prepare: bool) -> CallLine:
    """The text after `@call`. Raises: KernelFileError."""
    match = re.match(r"([^\W\d]\w*)\s*=\s*([^\W\d][\w.]*)\s*(?=\()", rest.text)
    if not match:
        raise rest.error("write `@call NAME = op(args, key=...)`, for example `@call y = conv2d(x, w, padding=1)`")
    parts, condition = _arguments(rest, match.end())
    args: list[Expression] = []
    kwargs: list[tuple[Span, Expression]] = []
    for part in parts:
        key = _KEY.match(part.text)
        if key:
            kwargs.append((part.cut(0, key.end(1)), Expression(part.cut(key.end()))))
        elif kwargs:
            raise part.error("positional arguments stand before keyword arguments")
        else:
            args.append(Expression(part))
    return CallLine(rest.cut(0, match.end(1)), rest.cut(match.start(2), match.end(2)), tuple(args), tuple(kwargs), condition, prepare, place)
