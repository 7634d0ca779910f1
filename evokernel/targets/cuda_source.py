"""The text that NVRTC compiles: headers first, then the candidate's code with its own line numbers and without any include.

All includes of the file are checked against the installed header folders and moved in front of it. So nothing that the candidate defines
can steer what a header includes, and the headers are one fixed text that is precompiled once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..kernelfile import KernelFileError
from ..kernelfile.located import place_at
from ..kernelfile.scan import Token, tokens
from .nvrtc import KERNEL, include_roots

# The prelude stands in for these; NVRTC knows the rest of what they declare for device code.
STAND_INS = frozenset(
    "cuda_runtime.h cuda.h cuda_runtime_api.h device_launch_parameters.h device_functions.h vector_types.h vector_functions.h "  # noqa: SIM905
    "stdint.h cstdint stddef.h cstddef math.h cmath float.h cfloat limits.h climits math_functions.h sm_80_rt.h "
    "stdio.h cstdio stdlib.h cstdlib string.h cstring assert.h cassert inttypes.h cinttypes".split()
)
_INCLUDE = re.compile(r"#[ \t]*include[ \t]*<([\w./+-]+)>")
_UNSEEN = ("comment", "space", "newline", "splice")


@dataclass(frozen=True)
class Source:
    """`headers` in the order of the file, each once; `code` has as many lines as the file."""

    headers: tuple[str, ...]
    code: str

    def unit(self) -> str:
        """The whole translation unit."""
        includes = "".join(f"#include <{h}>\n" for h in self.headers)
        return f'{includes}#pragma nv_hdrstop\n{prelude()}#line 1 "{KERNEL}"\n{self.code}\n'


@cache
def prelude() -> str:
    return Path(__file__).with_name("cuda_prelude.h").read_text(encoding="utf-8")


def prepared(code: str) -> Source:
    """Take the includes out of a file, and `extern "C"`, which would hide the parameter types of kernels.

    Raises:
        KernelFileError: an include that is not of an installed header.
    """
    headers: list[str] = []
    parts: list[str] = []
    stream = list(tokens(code))
    index, begin_of_line = 0, True
    while index < len(stream):
        token = stream[index]
        if begin_of_line and token.text == "#" and _word_after(stream, index).startswith(("include", "import", "embed")):
            match = _INCLUDE.match(code, token.offset)
            place = place_at(code, token.offset)
            if match is None:
                raise place.error("only `#include <header>` is accepted, no quotes, comments and macros in it")
            if match[1] not in STAND_INS:
                _check_header(match[1], code, token.offset)
                headers.append(match[1])
            while index < len(stream) and stream[index].offset < match.end():
                index += 1
            continue
        if token.text == "extern" and (length := _c_linkage(stream, index)):
            block = _word_after(stream, index + length - 1) == "{"
            parts.append("inline namespace extern_c " if block else "")
            parts += ["\n" * t.text.count("\n") for t in stream[index : index + length]]
            index += length
            continue
        parts.append(token.text)
        begin_of_line = token.kind == "newline" or (begin_of_line and token.kind in _UNSEEN)
        index += 1
    return Source(tuple(dict.fromkeys(headers)), "".join(parts))


def _word_after(stream: list[Token], index: int) -> str:
    return next((t.text for t in stream[index + 1 :] if t.kind not in _UNSEEN), "")


def _c_linkage(stream: list[Token], index: int) -> int:
    """How many tokens `extern "C"` takes from `index` on; 0 where something else stands there."""
    for length, token in enumerate(stream[index + 1 :], start=2):
        if token.kind not in _UNSEEN:
            return length if token.text == '"C"' else 0
    return 0


def _check_header(header: str, code: str, offset: int) -> None:
    """Raises: KernelFileError: `header`, with links followed, is no file inside the header folders."""
    roots = include_roots()
    for root in roots:
        path = (root / header).resolve()
        if path.is_file():
            if path.is_relative_to(root) and ".." not in Path(header).parts:
                return
            break
    hint = "for device code there are <cuda_fp16.h>, <mma.h>, <cooperative_groups.h>, <cub/block/...>, <cuda/std/...> and their like"
    if (roots[-1] / "cuda" / "std" / header).is_file():
        hint = f"use <cuda/std/{header}> and cuda::std::"
    raise place_at(code, offset).error(f"<{header}> is not among the headers a cuda kernel may include; {hint}")


def code_words(code: str) -> dict[str, int]:
    """Every identifier of the code with the offset of its first use."""
    first: dict[str, int] = {}
    for token in tokens(code):
        if token.kind == "word":
            first.setdefault(token.text, token.offset)
    return first


def refuse(message: str, code: str, words: tuple[str, ...], strings: str = "") -> KernelFileError:
    """A located error: at the first of `words` that the code has, else at the first string literal that matches the pattern `strings`."""
    known = code_words(code)
    place = next((known[w] for w in words if w in known), None)
    if place is None and strings:
        found = (t.offset + m.start() for t in tokens(code) if t.kind in ("string", "raw") and (m := re.search(strings, t.text)))
        place = next(found, next((known[w] for w in ("asm", "__asm__", "__asm") if w in known), None))
    return KernelFileError(message) if place is None else place_at(code, place).error(message)
