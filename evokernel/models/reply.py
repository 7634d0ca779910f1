"""From a model's answer to a kernel file. Time is linear in the answer's length, whatever it holds.

Understood: a whole file as the last fenced block with a launch plan, an answer that is a kernel file and nothing else, and search/replace edits of
the parent. Everything else is `NoKernel`, whose text tells the model what to do.
"""

from __future__ import annotations

import difflib
import re
from itertools import islice
from typing import NamedTuple

MAX_KERNEL_BYTES = 256 << 10
_MAX_MARKS = 2000  # fences, marks of edits, marks of reasoning
_LANGUAGES = frozenset("cuda cu cuda-cpp cuda-c++ cpp c++ cc cxx c h hpp plain plaintext text txt kernel".split()) | {""}  # noqa: SIM905
_STEP, _BEFORE_STEP = re.compile(r"@(?:launch|call|prepare)\b"), re.compile(r"(?:^|\n)[ \t]*//[ \t]*$")
_MARK = re.compile(r"^(?:(?P<search><{5,9} ?SEARCH)|(?P<middle>={5,9})|(?P<replace>>{5,9} ?REPLACE))[ \t]*$", re.MULTILINE)
_THOUGHT = re.compile(r"</?think(?:ing)?>")
_PYTHON = re.compile(r"^(?:import |from \w+(?:\.\w+)* import |@triton\.|def \w+\()", re.MULTILINE)


class NoKernel(Exception):
    """The answer holds no kernel file; the text says why in a line or two that a model can act on."""


class _Block(NamedTuple):
    language: str
    text: str
    end: int  # offset in the answer
    closed: bool


def without_reasoning(text: str) -> str:
    """The text without `<think>...</think>`: all before a mark that only ends one, all after a mark that only begins one."""
    kept: list[str] = []
    depth = position = 0
    for mark in islice(_THOUGHT.finditer(text), _MAX_MARKS):
        if depth == 0:
            kept.append(text[position : mark.start()])
        if mark.group().startswith("</"):
            kept = kept if depth else []
            depth = max(depth - 1, 0)
        else:
            depth += 1
        position = mark.end()
    return "".join(kept) + (text[position:] if depth == 0 else "")


def read(text: str, *, target: str, parent: str | None, stop: str | None = None) -> str:
    """The kernel file in a model's answer, with line feeds as line ends.

    Args:
        target: names the kind of launch plan in messages.
        parent: the file that edits apply to.
        stop: the completion's; a last block without its closing fence is taken only where the answer is known to have ended by itself ("end").

    Raises:
        NoKernel: there is none, or none that can be stored.
    """
    answer = without_reasoning(text).replace("\r\n", "\n").replace("\r", "\n")
    if not answer.strip():
        raise NoKernel("the answer holds no text; answer with the kernel file")
    blocks = _blocks(answer)
    marks = list(islice(_MARK.finditer(answer), _MAX_MARKS + 1)) if "SEARCH" in answer else []
    if len(marks) > _MAX_MARKS:
        raise NoKernel("too many edits; answer with the whole kernel file in one code block")
    edits = [m.start() for m in marks if m.lastgroup == "search"]
    if not blocks and not edits and answer.lstrip().startswith(("//", "/*", "#include", "#define", "#pragma")):
        blocks = [_Block("", answer, len(answer), True)]
    files = [b for b in blocks if b.language in _LANGUAGES and _planned(b.text) and not any(b.end - len(b.text) <= e < b.end for e in edits)]
    if files and (not edits or files[-1].end > edits[-1]):
        if not (files[-1].closed or stop == "end"):
            raise NoKernel("the last code block is not closed, so it may be cut off; answer with the whole file, and with fewer words around it")
        kernel = files[-1].text
    elif edits:
        kernel = _edited(answer, marks, parent)
    else:
        raise NoKernel(_why_none(answer, blocks, target))
    return _checked(kernel, parent)


def _planned(text: str) -> bool:
    """Whether a line of a launch plan is there."""
    return any(_BEFORE_STEP.search(text[max(0, m.start() - 80) : m.start()]) for m in _STEP.finditer(text))


def _blocks(text: str) -> list[_Block]:
    """The fenced blocks in order. A fence of the same kind that names a language ends a block that was left open; longer fences hold shorter ones."""
    found: list[_Block] = []
    mark, language, begin = "", "", 0
    for start, end in _fence_lines(text):
        line = text[start:end].strip()
        run = line[: len(line) - len(line.lstrip(line[0]))]
        info = line[len(run) :].strip()
        if run[0] in info:
            continue  # code within a line
        if mark and (run[0] != mark[0] or len(run) < len(mark)):
            continue  # shown inside the block
        if mark:
            found.append(_Block(language, text[begin:start], start, closed=not info))
        words = re.split(r"[\s,{}:]+\.?", info.lower())
        mark, language, begin = ("" if mark and not info else run), next((w for w in words if w), ""), end + 1
    return [*found, _Block(language, text[begin:], len(text), closed=False)] if mark else found


def _fence_lines(text: str) -> list[tuple[int, int]]:
    """Offsets of the lines that begin with a fence.

    Raises:
        NoKernel: there are too many of them.
    """
    found: list[tuple[int, int]] = []
    for fence in ("```", "~~~"):
        position = text.find(fence)
        while position >= 0:
            end = text.find("\n", position)
            end = len(text) if end < 0 else end
            start = text.rfind("\n", 0, position) + 1
            if not text[start:position].strip():
                found.append((start, end))
                if len(found) > _MAX_MARKS:
                    raise NoKernel("too many code fences; answer with the whole kernel file in one code block")
            position = text.find(fence, end)
    return sorted(found)


def _edited(answer: str, marks: list[re.Match[str]], parent: str | None) -> str:
    """The parent with the answer's edits applied in order.

    Raises:
        NoKernel: an edit is incomplete or does not match exactly once.
    """
    if parent is None:
        raise NoKernel("there is no file to edit here; answer with the whole kernel file in one code block")
    text = parent.replace("\r\n", "\n").replace("\r", "\n")
    text = text if text.endswith("\n") else text + "\n"
    number, under_way = 0, list[re.Match[str]]()
    for mark in marks:
        if mark.lastgroup == "middle":  # otherwise it is a line of the code, or a heading
            under_way += [mark] if len(under_way) == 1 else []
        elif len(under_way) != (0 if mark.lastgroup == "search" else 2):
            break
        elif mark.lastgroup == "search":
            number, under_way = number + 1, [mark]
        else:
            search, middle = under_way
            text, under_way = _replaced(text, answer[search.end() + 1 : middle.start()], answer[middle.end() + 1 : mark.start()], number), []
    if under_way:
        raise NoKernel(f"edit {number} is not whole: it takes <<<<<<< SEARCH, =======, >>>>>>> REPLACE, each once and alone on its line")
    return text


def _replaced(text: str, old: str, new: str, number: int) -> str:
    """Raises: NoKernel: the old lines are not in the text exactly once."""
    if not old.strip():
        raise NoKernel(f"edit {number} searches for nothing; search for lines of the file and repeat them in the replacement")
    where, places = f"\n{text}", list[int]()
    position = where.find("\n" + old)  # whole lines; matches may share a line feed, so they are not counted by str.count
    while position >= 0 and len(places) < 100:
        places.append(position)
        position = where.find("\n" + old, position + 1)
    if len(places) == 1:
        return where[1 : places[0] + 1] + new + where[places[0] + 1 + len(old) :]
    if places:
        raise NoKernel(f"edit {number} matches {len(places)} times; search for more lines around the place, so that it matches once")
    lines = text.split("\n")
    missing = next((line for line in old.split("\n") if line.strip() and line not in lines), None)
    if missing is None:
        raise NoKernel(f"edit {number} matches 0 times: its lines are in the file, but not next to one another in this order")
    near = difflib.get_close_matches(missing[:200], [line[:200] for line in lines[:3000]], 1, 0.4)
    hint = f'; the nearest line of the file is "{near[0]}"' if near else ""
    raise NoKernel(f'edit {number} matches 0 times: the file has no line "{missing[:200]}"{hint}')


def _why_none(answer: str, blocks: list[_Block], target: str) -> str:
    """What to tell a model whose answer has neither a kernel file nor edits."""
    plan = f"a launch plan (lines like `// @launch ...{'<<<grid, block>>>' if target == 'cuda' else ''}(...)`)"
    wanted = f"one code block with the whole kernel file: {'CUDA' if target == 'cuda' else 'C++'} functions and {plan}"
    other = [b.language for b in blocks if b.language not in _LANGUAGES]
    if other and not any(b.language in _LANGUAGES for b in blocks):
        return f"the code is in {other[-1]!r}, the wrong language; answer with {wanted}"
    if _PYTHON.search((blocks[-1].text if blocks else answer)[:20_000]):
        return f"the code is Python, the wrong language; answer with {wanted}"
    if blocks:
        return f"the code has no launch plan; add {plan} to the file"
    return f"the answer has no code block; answer with {wanted}"


def _checked(kernel: str, parent: str | None) -> str:
    """Raises: NoKernel: it cannot be stored, or it is the parent."""
    kernel = kernel.strip("\n") + "\n"
    try:
        size_bytes = len(kernel.encode())
    except UnicodeEncodeError:
        raise NoKernel("the kernel file holds half of a surrogate pair; write plain text") from None
    if size_bytes > MAX_KERNEL_BYTES:
        raise NoKernel(f"the kernel file has {size_bytes >> 10} KiB, more than {MAX_KERNEL_BYTES >> 10}; compute tables instead of writing them out")
    if "\0" in kernel:
        raise NoKernel("the kernel file holds a NUL character; write plain text")
    if parent is not None and _lines(kernel) == _lines(parent):
        raise NoKernel("the file is the parent, unchanged; change something that should make it faster")
    return kernel


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]
