"""Rethink: another plan, from the task and what failed, without any code seen."""

from __future__ import annotations

from ..models import Prompt
from . import OperatorContext, writing


class Rethink:
    """For a search that stands still. Parents, if there are any, are not shown."""

    parents = stones = 0

    def prompt(self, context: OperatorContext) -> Prompt:
        return writing.ask(context, "rethink", tried=writing.tried(context, "What was tried, oldest first, and what came of it"))
