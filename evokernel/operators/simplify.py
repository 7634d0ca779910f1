"""Simplify: the same speed with less."""

from __future__ import annotations

from ..models import Prompt
from . import OperatorContext, writing


class Simplify:
    """Shorter kernels are easier to build on: what does not pay goes."""

    parents, stones = 1, 0

    def prompt(self, context: OperatorContext) -> Prompt:
        (parent,) = writing.parents_of(context, 1, "simplify")
        shown = writing.kernel(parent, context.device)
        return writing.ask(context, "simplify", parent=shown, tried=writing.tried(context), answer=writing.answer(parent))
