"""Mutate: one directed change at the bottleneck of a kernel."""

from __future__ import annotations

from ..models import Prompt
from . import OperatorContext, writing


class Mutate:
    """Shows the parent under its verdict, what was tried in its line, and as many faster and slower relatives as there is room for."""

    parents, stones = 1, 0

    def prompt(self, context: OperatorContext) -> Prompt:
        (parent,) = writing.parents_of(context, 1, "mutate")
        shown, tried = writing.kernel(parent, context.device), writing.tried(context)
        return writing.ask(
            context, "mutate", parent=shown, tried=tried, examples=writing.examples(context, shown + tried),
            bottleneck=writing.bottleneck(parent, context.device), answer=writing.answer(parent),
        )  # fmt: skip
