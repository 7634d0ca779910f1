"""Which kernel files are the same: the text without white space and ordinary comments."""

from __future__ import annotations

from ..records import Kernel, digest
from .located import KernelFileError, place_at
from .scan import plan_lines, tokens

MAX_BYTES = 1 << 20


def make_kernel(text: str, target: str) -> Kernel:
    """The kernel record of a text; the same code and plan give the same id whatever their white space and comments.

    Raises:
        KernelFileError: not a text that can be stored and compiled (NUL, lone surrogate, over 1 MiB), or its plan lines cannot be read.
    """
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise KernelFileError(f"the kernel file is over {MAX_BYTES} bytes; write a smaller one (tables can be computed)")
    for offset, char in enumerate(text):
        if char == "\0" or "\ud800" <= char <= "\udfff":
            what = "a NUL character" if char == "\0" else "half of a surrogate pair"
            raise place_at(text, offset).error(f"the file holds {what}; a kernel file is plain UTF-8 text")
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    return Kernel(id=digest(target, normalise(text)), target=target, text=text)


def normalise(text: str) -> str:
    """The text without ordinary comments and with one space between tokens; plan lines and preprocessor lines stay lines of their own.

    Raises:
        KernelFileError: the plan lines cannot be read.
    """
    lines = plan_lines(text)
    plan = {line.lines[0]: f"// @{line.word} {' '.join(line.rest.text.split())}" for line in lines}
    plan |= {number: "" for line in lines for number in line.lines[1:]}
    out: list[str] = []
    number, directive = 1, False
    for token in tokens(text):
        if token.kind == "comment" and number in plan and token.text.startswith("//"):
            out += ["\n", plan[number], "\n"]
            directive = False
        elif token.kind == "newline" and directive:
            out.append("\n")
            directive = False
        elif token.kind in ("comment", "newline", "splice", "space"):
            if directive and out[-1] != " ":
                out.append(" ")  # white space matters in `#define F (x)`
        elif directive:
            out.append(token.text)
        elif token.text == "#":
            out.append("\n#")
            directive = True
        else:
            out += [token.text, " "]
        number += token.text.count("\n")
    return "\n".join(line.rstrip() for line in "".join(out).split("\n") if line.strip())
