"""Crossover: one kernel from two that do different things well."""

from __future__ import annotations

from ..models import Prompt
from . import OperatorContext, writing


class Crossover:
    """The first parent is the one to begin from, and the file that edits apply to."""

    parents, stones = 2, 0

    def prompt(self, context: OperatorContext) -> Prompt:
        first, second = writing.parents_of(context, 2, "crossover")
        return writing.ask(
            context, "crossover", parent=writing.kernel(first, context.device, "Kernel 1"), mate=writing.kernel(second, context.device, "Kernel 2"),
            difference=writing.difference(first, second), tried=writing.tried(context), answer=writing.answer(first, "kernel 1"),
        )  # fmt: skip
