"""Lessons condensed by a model, once at the end of a run: when that is worth a call, what it is asked, and what of its answer is kept.

The lessons quote kernels and compilers, so the model sees them as data; and what it says of them is data again. Kept are few short sentences, each of
which names kernels that the lessons rest on. Whether a sentence is true nobody checks: it can only stand for lessons whose kernels it names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice

from .. import prompts
from ..archive.lessons import CONDENSED, SHOWN, Lesson, condensed, standing
from ..models import CallSettings, Completion, Prompt
from ..models.reply import without_reasoning
from ..operators.writing import fenced

CALL = CallSettings("low", max_tokens=4_000, timeout_s=180.0)
MOST = 4  # sentences
_BYTES = 20_000


def due(found: Sequence[Lesson]) -> list[Lesson]:
    """Of the lessons of a task and target those to be condensed; none while a prompt has room for all that no model has condensed yet."""
    raw = [lesson for lesson in found if lesson.kind != CONDENSED and lesson.kernels]
    return raw if sum(lesson in raw for lesson in standing(found)) > SHOWN else []


def prompt_of(lessons: Sequence[Lesson]) -> Prompt:
    """One line a lesson, with the kernels that it rests on."""
    lines = [f"- {lesson.line} [{', '.join(lesson.kernels)}]" for lesson in lessons]
    return Prompt(prompts.render("condense", most=str(MOST)) + "\n\n", fenced("\n".join(lines), _BYTES) + "\n")


def read(answer: Completion, lessons: Sequence[Lesson]) -> list[Lesson]:
    """The first MOST lines of an answer that say something and name kernels in brackets of which the lessons know one; equal ones are one."""
    said: dict[str, list[str]] = {}
    for line in without_reasoning(answer.text).splitlines() if answer.stop != "refused" else ():
        text, kernels = _split(line)
        said.setdefault(text, []).extend(kernels)
    return list(islice(filter(None, (condensed(text, kernels, lessons) for text, kernels in said.items())), MOST))


def _split(line: str) -> tuple[str, list[str]]:
    """What a line says, without its bullet or number, and the kernels in its brackets; other brackets stay."""
    kernels: list[str] = []

    def named(bracket: re.Match[str]) -> str:
        found = re.findall(r"\b[0-9a-f]{16}\b", bracket[0].lower())
        kernels.extend(found)
        return "" if found else bracket[0]

    text = re.sub(r"[,; ]{0,2}\[[^][]*\]", named, " ".join(line.split()))
    return re.sub(r"^[-* ]*(\d+[.)] )?", "", text).strip(" -*,;:"), kernels
