"""Transfer: what made a kernel of another task fast, used for this one."""

from __future__ import annotations

from ..errors import UsageError
from ..models import Prompt
from . import OperatorContext, writing


class Transfer:
    """Shows the context's first stone with its own task's names and what it gained there."""

    parents, stones = 0, 1

    def prompt(self, context: OperatorContext) -> Prompt:
        if not context.stones:
            raise UsageError("transfer needs a stepping stone")
        return writing.ask(context, "transfer", stone=writing.stone(context.stones[0]))
