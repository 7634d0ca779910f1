"""Technique: a kernel reworked with a named technique that its line has not tried."""

from __future__ import annotations

from ..models import Prompt
from . import OperatorContext, writing


class Technique:
    """The technique is one against the parent's bottleneck, drawn with the context's seed from the target's table."""

    parents, stones = 1, 0

    def prompt(self, context: OperatorContext) -> Prompt:
        (parent,) = writing.parents_of(context, 1, "technique")
        return writing.ask(
            context, "technique", technique=writing.technique(context, parent), parent=writing.kernel(parent, context.device),
            tried=writing.tried(context), bottleneck=writing.bottleneck(parent, context.device), answer=writing.answer(parent),
        )  # fmt: skip
