"""From the text of a kernel file to its directives. What a line says is decided here; what it means for a task in `plan.py`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import UsageError
from ..records import ITEMSIZE_BYTES, Kernel, Number
from .brackets import split_commas
from .code import check_code
from .directives import Const, Directive, FillLine, Flags, Memory, Nondeterministic, Require, Tune
from .expressions import FUNCTIONS, Expression
from .flags import FLAGS, check_flag
from .located import KernelFileError, Span, suggest
from .scan import PlanLine, plan_lines
from .steplines import call_line, launch_line

__all__ = ["KernelFile", "KernelFileError", "parse", "parse_tune"]

MAX_TUNABLES, MAX_VALUES, MAX_DIMS = 8, 64, 8
_RESERVED = frozenset(
    "alignas alignof and asm auto bool break case catch char class concept const constexpr continue decltype default delete do double else "  # noqa: SIM905
    "enum explicit export extern false float for friend goto if inline int long mutable namespace new noexcept not nullptr operator or "
    "private protected public register requires return short signed sizeof static struct switch template this throw true try typedef typeid "
    "typename union unsigned using virtual void volatile while xor True False None in is device half inf nan".split()
)


@dataclass(frozen=True)
class KernelFile:
    """A parsed kernel file: its directives in file order."""

    kernel: Kernel
    directives: tuple[Directive, ...]

    @property
    def target(self) -> str:
        return self.kernel.target

    @property
    def text(self) -> str:
        return self.kernel.text

    @property
    def tunables(self) -> tuple[Tune, ...]:
        return tuple(d for d in self.directives if isinstance(d, Tune))


def parse(kernel: Kernel) -> KernelFile:
    """The directives of a kernel file, with everything checked that needs no task.

    Raises:
        KernelFileError: a line or the code is refused; the message says where and what to write instead.
        UsageError: there is no such target.
    """
    if kernel.target not in FLAGS:
        raise UsageError(f"kernel files for {kernel.target!r} are not known; known targets: {', '.join(FLAGS)}")
    directives = tuple(_directive(line, kernel.target) for line in plan_lines(kernel.text))
    tunables = [d for d in directives if isinstance(d, Tune)]
    if len(tunables) > MAX_TUNABLES:
        raise tunables[MAX_TUNABLES].place.error(f"at most {MAX_TUNABLES} tunables; make this one a @const")
    _check_names(directives)
    constants = {d.name: d.place for d in directives if isinstance(d, (Tune, Const))}
    check_code(kernel.text, kernel.target, constants)
    return KernelFile(kernel, directives)


def _check_names(directives: tuple[Directive, ...]) -> None:
    """Raises: KernelFileError: two lines declare the same name."""
    seen: set[str] = set()
    for directive in directives:
        if isinstance(directive, (Tune, Const, Memory)):
            if directive.name in seen:
                raise directive.place.error(f"{directive.name!r} is declared twice in the plan; choose another name")
            seen.add(directive.name)


def _directive(line: PlanLine, target: str) -> Directive:
    if line.word in ("launch", "prepare", "call"):
        return _step(line, target)
    if line.word not in _PARSERS:
        known = [*_PARSERS, "launch", "call", "prepare"]
        raise line.place.error(f"unknown directive '@{line.word}'; {suggest(line.word, known)}; in an ordinary comment, put a word before the @")
    return _PARSERS[line.word](line, target)


def _step(line: PlanLine, target: str) -> Directive:
    prepare, word, rest = line.word == "prepare", line.word, line.rest
    if prepare:
        match = re.match(r"(launch|call)\b", rest.text)
        if not match:
            raise rest.error("write `@prepare launch ...` or `@prepare call ...`")
        word, rest = match.group(1), rest.cut(match.end())
    return launch_line(rest, target, line.place, prepare) if word == "launch" else call_line(rest, line.place, prepare)


def _assignment(line: PlanLine) -> tuple[str, Span]:
    """`NAME = rest`."""
    match = re.match(r"([^\W\d]\w*)\s*=(?!=)", line.rest.text)
    if not match:
        raise line.rest.error(f"write `@{line.word} NAME = ...`")
    return _declared(match.group(1), line.rest), line.rest.cut(match.end())


def _declared(name: str, span: Span) -> str:
    if name in _RESERVED or name in FUNCTIONS or name.startswith("_") or "__" in name or not name.isascii():
        raise span.error(f"{name!r} cannot be declared: it is a keyword or reserved; choose another name")
    return name


def parse_tune(line: PlanLine, target: str = "") -> Tune:
    """`@tune NAME = default in v1 v2 ...`. Raises: KernelFileError."""
    name, rest = _assignment(line)
    match = re.fullmatch(r"(\S+)\s+in\s+(\S.*)", rest.text)
    if not match:
        raise rest.error(f"write `@tune {name} = 4 in 1 2 4 8`: a default, `in`, and the values to try")
    values = [_literal(part.group(), rest, part.start()) for part in re.compile(r"[^\s,]+").finditer(rest.text, match.start(2))]
    default = _literal(match.group(1), rest, 0)
    if any(isinstance(v, float) for v in values):
        values, default = [float(v) for v in values], float(default)
    if len({type(v) for v in [*values, default]}) > 1:
        raise rest.error("the values of a tunable have one type: integers, floats, or true and false")
    if default not in values:
        raise rest.error(f"the default {match.group(1)} is not among the values; add it after `in`")
    if len(set(values)) != len(values) or len(values) > MAX_VALUES:
        raise rest.error(f"a tunable has up to {MAX_VALUES} different values", match.start(2))
    return Tune(name, default, tuple(values), rest.cut(0, match.end(1)), line.place)


def _literal(text: str, span: Span, offset: int) -> Number:
    if text in ("true", "false", "True", "False"):
        return text in ("true", "True")
    if re.fullmatch(r"[+-]?\d{1,18}", text):
        return int(text)
    if re.fullmatch(r"[+-]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d{1,2})?", text):
        return float(text)
    raise span.error(f"{text[:40]!r} is not an integer, a float, true or false", offset)


def _const(line: PlanLine, target: str) -> Const:
    name, rest = _assignment(line)
    return Const(name, Expression(rest), line.place)


def _require(line: PlanLine, target: str) -> Require:
    return Require(Expression(line.rest), line.place)


def _memory(line: PlanLine, target: str) -> Memory:
    match = re.fullmatch(r"([^\W\d]\w*)\s+(\w+)\s*\[(.*)\]\s*(\w*)", line.rest.text)
    if not match:
        raise line.rest.error(f"write `@{line.word} NAME dtype [d0, d1]`, with torch's dtype names")
    name, dtype, _, suffix = match.groups()
    if dtype not in ITEMSIZE_BYTES:
        raise line.rest.error(f"unknown dtype {dtype!r}; {suggest(dtype, ITEMSIZE_BYTES)}", match.start(2))
    if suffix and (suffix != "zero" or line.word == "persist"):
        hint = "; did you mean `zero`?" if line.word == "scratch" else ""
        raise line.rest.error(f"{suffix!r} cannot follow the shape of a @{line.word}{hint}", match.start(4))
    dims = split_commas(line.rest.cut(match.start(3), match.end(3)))
    if len(dims) > MAX_DIMS:
        raise line.rest.error(f"at most {MAX_DIMS} dimensions", match.start(3))
    return Memory(_declared(name, line.rest), line.word, dtype, tuple(Expression(d) for d in dims), suffix == "zero", line.place)


def _fill(line: PlanLine, target: str) -> FillLine:
    match = re.match(r"([^\W\d]\w*)\s+(?=\S)", line.rest.text)
    if not match:
        raise line.rest.error("write `@fill NAME value`, with a number, inf, -inf or nan")
    return FillLine(line.rest.cut(0, match.end()), Expression(line.rest.cut(match.end())), line.place)


def _flags(line: PlanLine, target: str) -> Flags:
    words = [line.rest.cut(m.start(), m.end()) for m in re.finditer(r"[^\s,]+", line.rest.text)]
    if not words:
        raise line.place.error(f"write `@flags ...`; {suggest('', FLAGS[target])}")
    for word in words:
        check_flag(word, target)
    return Flags(tuple(words), line.place)


def _nondeterministic(line: PlanLine, target: str) -> Nondeterministic:
    if line.rest.text.strip():
        raise line.rest.error("nothing follows @nondeterministic; put the reason after a #")
    return Nondeterministic(line.place)


_PARSERS: dict[str, Callable[[PlanLine, str], Directive]] = {
    "tune": parse_tune, "const": _const, "require": _require, "scratch": _memory, "persist": _memory, "fill": _fill,
    "flags": _flags, "nondeterministic": _nondeterministic,
}  # fmt: skip
