"""Carrying a kernel file over to another task: the names that its plan lines use, replaced."""

from __future__ import annotations

import re
from collections.abc import Mapping

from .scan import PlanLine, plan_lines

_WORD = re.compile(r"[^\W\d]\w*")


def rename(text: str, mapping: Mapping[str, str]) -> str:
    """The file with the task's names in its plan lines replaced; code, functions, attributes and keyword names stay.

    Raises:
        KernelFileError: the plan lines cannot be read.
    """
    lines = text.split("\n")
    edits = [edit for line in plan_lines(text) if line.word not in ("tune", "flags") for edit in _edits(line, mapping)]
    for number, column, old in sorted(edits, reverse=True):
        row = lines[number - 1]
        lines[number - 1] = row[: column - 1] + mapping[old] + row[column - 1 + len(old) :]
    return "\n".join(lines)


def _edits(line: PlanLine, mapping: Mapping[str, str]) -> list[tuple[int, int, str]]:
    """(line, column, old name) of each name to replace."""
    found = []
    content = line.rest.text
    for match in _WORD.finditer(content, _kernel_end(line)):
        before, after = content[: match.start()].rstrip(), content[match.end() :].lstrip()
        keyword = re.match(r"=(?!=)", after) and before.endswith((",", "("))
        if match.group() in mapping and not before.endswith((".", "::")) and not after.startswith("(") and not keyword:
            place = line.rest.place(match.start())
            found.append((place.line, place.column, match.group()))
    return found


def _kernel_end(line: PlanLine) -> int:
    """Where the name of the launched function ends; 0 for other lines."""
    match = re.match(r"(launch\s+)?[^\W\d][\w:]*", line.rest.text)
    launches = line.word == "launch" or (line.word == "prepare" and line.rest.text.startswith("launch"))
    return match.end() if match and launches else 0
