"""What travels to a machine that judges and back: candidates with all that judging them needs, and what came of each."""

from __future__ import annotations

from dataclasses import dataclass

from .task import digest
from .verdict import Verdict


@dataclass(frozen=True)
class TaskFile:
    """A task file as text. `name` is its file's name without the ending: it goes into no id, only into messages."""

    name: str
    source: str

    def __post_init__(self) -> None:
        (self.name + self.source).encode()  # raises ValueError on what is no Unicode
        if not self.name or len(self.name) > 200 or "/" in self.name or "\0" in self.name:
            raise ValueError(f"{self.name!r:.80} cannot be the name of a file")


@dataclass(frozen=True)
class BatchCandidate:
    """One line of a candidates file: a kernel file and the task file it is for.

    `protocol`: the judging rules it is meant for. `id`: the caller's own key, given back with the outcome; the same candidate
    under two ids is judged twice.
    """

    protocol: int
    task: TaskFile
    target: str
    text: str
    id: str | int | None = None

    @property
    def key(self) -> str:
        """What names this candidate in the outcomes: the hash of task source, target and kernel text as they are."""
        return digest(self.task.source, self.target, self.text)


@dataclass(frozen=True)
class BatchOutcome:
    """One line of an outcomes file. The candidate has a verdict, or `error` names *our* failure (or the task's), which is no score.

    `candidate`, `id`: of the candidate. `forced`: its task is one that admission refuses (older files say it only here).
    """

    protocol: int
    candidate: str
    id: str | int | None
    task_id: str = ""
    kernel_id: str = ""
    verdict: Verdict | None = None
    error: str = ""
    message: str = ""
    forced: bool = False

    def __post_init__(self) -> None:
        if (self.verdict is None) != bool(self.error):
            raise ValueError("an outcome has either a verdict or an error")
