"""Repair: a kernel that failed, with what the judge said."""

from __future__ import annotations

from ..models import Prompt
from . import OperatorContext, writing


class Repair:
    """The first parent is the failed one. Its text need not be a kernel file, and may be empty where the answer held none."""

    parents, stones = 1, 0

    def prompt(self, context: OperatorContext) -> Prompt:
        (parent,) = writing.parents_of(context, 1, "repair")
        shown = writing.kernel(parent, context.device, "The kernel file that failed")
        return writing.ask(context, "repair", parent=shown, tried=writing.tried(context), answer=writing.answer(parent))
