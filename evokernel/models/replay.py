"""Recorded answers in place of a model: `replay/PATH`, a file with one JSON object a line.

`text` is the answer; `prompt_hash`, where it is there, the only prompt that it answers; `stop` and the token counts are those of a Completion. Each
line is given once: to a prompt the first line left with its hash, otherwise the first line left without any hash. Other keys are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from threading import Lock

from ..errors import ModelError
from . import CallSettings, Completion, ModelSpec, Prompt


def recorded(prompt: Prompt, completion: Completion) -> str:
    """An answer as a line of such a file, without the line feed."""
    return json.dumps({"prompt_hash": prompt.hash} | asdict(completion))


class Replay:
    """The answers of one file that were not given yet."""

    def __init__(self, spec: ModelSpec, environ: Mapping[str, str]) -> None:
        """Raises:
        ModelError: the file cannot be read; the message names the line.
        """
        self._path, self._lock = Path(spec.name), Lock()
        try:
            lines = self._path.read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"{spec.id}: the recorded answers cannot be read: {error}") from None
        self._left = [self._row(line, number) for number, line in enumerate(lines, 1) if line.strip()]

    def _row(self, line: str, number: int) -> tuple[str | None, Completion]:
        try:
            row = json.loads(line)
            completion = Completion(**{f.name: row[f.name] for f in fields(Completion) if f.name in row})
            right = all(type(getattr(completion, f.name)) is (str if f.type == "str" else int) for f in fields(Completion))
            if not right or not isinstance(row.get("prompt_hash", ""), str):
                raise TypeError("a value of the wrong type")
        except (ValueError, TypeError, AttributeError) as error:
            raise ModelError(f'{self._path}, line {number}: write {{"text": "..."}}, with "prompt_hash" for one prompt only: {error}') from None
        return row.get("prompt_hash"), completion

    def complete(self, prompt: Prompt, settings: CallSettings) -> Completion:
        """The next answer for this prompt.

        Raises:
            ModelError: there is none left.
        """
        with self._lock:
            for wanted in (prompt.hash, None):
                at = next((i for i, (key, _) in enumerate(self._left) if key == wanted), None)
                if at is not None:
                    return self._left.pop(at)[1]
        raise ModelError(f"{self._path}: no more recorded answers for this prompt ({prompt.hash}); add lines, or name a model that can be asked")


open_model = Replay
