"""What the code section of a kernel file may not hold. These checks give early, located messages; the object file is checked behind them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from .located import Place, place_at, suggest
from .scan import Token, tokens

_PREPROCESSOR = ("define", "undef", "if", "ifdef", "ifndef", "elif", "else", "endif", "error", "warning", "pragma", "include", "elifdef", "elifndef")
_CPP_HEADERS = frozenset(
    "cmath cstdint cstddef cstring algorithm array limits type_traits utility tuple numeric cfloat climits immintrin.h x86intrin.h omp.h "  # noqa: SIM905
    "math.h stdint.h stddef.h string.h float.h limits.h".split()
)
_CPP_PRAGMA = re.compile(r"\s*(omp\b|STDC\b|unroll\b|once\b|GCC\s+(optimize|target|ivdep|unroll|diagnostic|push_options|pop_options)\b)")
_WORDS = {
    "both": {
        "__FILE__": "the file's name means nothing here", "__BASE_FILE__": "the file's name means nothing here",
        "__DATE__": "a kernel has no date", "__TIME__": "a kernel has no time", "__TIMESTAMP__": "a kernel has no time",
        "__has_include": "includes come from a fixed list", "__has_embed": "files cannot be embedded",
    },
    "cpp": dict.fromkeys(("asm", "__asm", "__asm__"), "inline assembly is refused: use the intrinsics of immintrin.h"),
    "cuda": {},
}  # fmt: skip


def check_code(text: str, target: str, constants: Mapping[str, Place]) -> None:
    """Refuse what a kernel of this target may not contain. `constants` are the names that plan lines define, with their places.

    Raises:
        KernelFileError: with the place and what to write instead.
    """
    if match := re.search(r"\?\?[=/'()!<>-]", text):
        raise place_at(text, match.start()).error("trigraphs are refused; write the character itself")
    if match := re.search(r"\\(?!\r?\n)[^\S\n]+\n", text):
        raise place_at(text, match.start()).error("blanks behind the backslash at the end of a line: compilers differ about them; remove them")
    stream = [t for t in tokens(text) if t.kind not in ("comment", "space")]
    _check_words(text, stream, target)
    begin_of_line = True
    for index, token in enumerate(stream):
        if token.kind == "splice" and _splits_a_word(text, token):
            raise place_at(text, token.offset).error("a line continuation inside a word is refused; keep the word on one line")
        if token.kind == "word" and token.text in constants:
            _check_constant(text, stream, index, constants)
        if begin_of_line and token.text in ("#", "%"):
            _check_preprocessor(text, token, target)
        elif token.text == "_Pragma" and target == "cpp":
            _check_pragma_operator(text, stream[index + 1 : index + 3], token)
        elif token.text == "<<" and text.startswith("<<<", token.offset):
            place = place_at(text, token.offset)
            raise place.error("`<<<` launches from code are refused; write a plan line: // @launch kernel<<<grid, block>>>(args)")
        begin_of_line = token.kind == "newline" or (begin_of_line and token.kind == "splice")


def _check_words(text: str, stream: list[Token], target: str) -> None:
    """Refuse words, and words of the preprocessor that the file's own could be pasted to (`##`; a header's macro puts `__` in front)."""
    first: dict[str, int] = {}
    for token in reversed(stream):
        first[token.text] = token.offset
    for word, why in _WORDS[target].items():
        if word in first:
            raise place_at(text, first[word]).error(f"{word} is refused: {why}")
    for word, why in _WORDS["both"].items():
        pieces = [t for t in first if t in word]
        if pieces and re.fullmatch(f"(?:__)?(?:{'|'.join(map(re.escape, pieces))})+", word):
            at = first[max(pieces, key=len)]
            raise place_at(text, at).error(f"{word} is refused, in pieces too: {why}")


def _splits_a_word(text: str, token: Token) -> bool:
    before, after = text[token.offset - 1 : token.offset], text[token.offset + len(token.text) :][:1]
    return bool(re.fullmatch(r"[^\s;,(){}][^\s;,(){}]", before + after))


def _check_constant(text: str, stream: list[Token], index: int, constants: Mapping[str, Place]) -> None:
    """Refuse `#define NAME` and `constexpr int NAME =` (or const, static) of a name that a plan line defines."""
    token = stream[index]
    statement = [t.text for t in stream[max(0, index - 6) : index]]
    for boundary in (";", "{", "}", "(", ",", "\n"):
        if boundary in statement:
            statement = statement[len(statement) - statement[::-1].index(boundary) :]
    assigned = index + 1 < len(stream) and stream[index + 1].text in ("=", "{")
    if "define" in statement[-1:] or (assigned and {"constexpr", "const", "static"} & set(statement)):
        where = constants[token.text].line
        raise place_at(text, token.offset).error(f"{token.text} is already defined by the plan line {where}; remove this definition and use the name")


def _check_preprocessor(text: str, token: Token, target: str) -> None:
    end = text.find("\n", token.offset)
    line = text[token.offset : end if end >= 0 else len(text)]
    place = place_at(text, token.offset)
    if line.startswith("%"):
        raise place.error("digraphs are refused; write #")
    word = re.match(r"#\s*(\w*)", line)
    name = word.group(1) if word else ""
    if not name and line.strip() != "#":
        raise place.error("write the preprocessor directive directly after `#`, without a comment or a line continuation between them")
    if name and name not in _PREPROCESSOR:
        raise place.error(f"the preprocessor directive #{name} is refused; {suggest(name, _PREPROCESSOR)}")
    if name == "include":
        _check_include(line, place, target)
    if name == "pragma" and target == "cpp" and not _CPP_PRAGMA.match(line.split("pragma", 1)[1]):
        raise place.error("this pragma is refused; allowed are #pragma omp, unroll, STDC, and GCC ivdep, unroll, optimize, target, diagnostic")


def _check_include(line: str, place: Place, target: str) -> None:
    match = re.fullmatch(r"#\s*include\s*<([\w./+-]+)>\s*(//.*|/\*.*)?", line.rstrip())
    header = match.group(1) if match else ""
    if re.search(r"torch/|ATen/|c10/|pybind|Python\.h", line):
        raise place.error("a kernel file holds no host code of a framework: remove this include and describe launches in plan lines (// @launch ...)")
    if not header:
        raise place.error("only `#include <header>` is accepted, no quotes and no macros")
    if ".." in header or header.startswith("/"):
        raise place.error("headers are named relative to the include folders, without `..`")
    if target == "cpp" and header not in _CPP_HEADERS:
        raise place.error(f"<{header}> is not among the headers a cpp kernel may include; {suggest(header, _CPP_HEADERS)}")


def _check_pragma_operator(text: str, following: list[Token], token: Token) -> None:
    content = following[1].text if len(following) == 2 and following[0].text == "(" else ""
    if not (content.startswith('"') and _CPP_PRAGMA.match(content[1:])):
        raise place_at(text, token.offset).error('only _Pragma("omp ...") and the like are accepted, with the text written out')


