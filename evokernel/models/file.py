"""Answers that come by file: `file/NAME`. Nobody is called; `evokernel ask` writes the prompts, `evokernel tell` takes the answers.

A person, a coding agent or a provider's batch service can so be the model of a run. A live session of such a run does what needs no answer, and ends.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import ModelError
from . import CallSettings, Completion, Model, ModelSpec, Prompt


def open_model(spec: ModelSpec, environ: Mapping[str, str]) -> Model:
    """Always possible."""
    return AnsweredByFile(spec.id)


class AnsweredByFile:
    """A model that cannot be called."""

    def __init__(self, name: str) -> None:
        self._name = name

    def complete(self, prompt: Prompt, settings: CallSettings) -> Completion:
        """Raises:
        ModelError: always, with what to do instead.
        """
        raise ModelError(f"answers of {self._name} come by file: evokernel ask RUN --out prompts.jsonl, then evokernel tell RUN answers.jsonl")
