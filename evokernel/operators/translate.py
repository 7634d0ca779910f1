"""Translate: a first draft from the module, each in another direction, algebra first."""

from __future__ import annotations

from ..models import Prompt
from . import OperatorContext, writing


class Translate:
    """Draft `context.draft` of the run. Verified kernels of the task, if there are any, are shown as examples."""

    parents = stones = 0

    def prompt(self, context: OperatorContext) -> Prompt:
        direction = writing.direction(context)
        return writing.ask(context, "translate", direction=direction, examples=writing.examples(context, direction))
