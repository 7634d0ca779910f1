"""What *we* or the user's set-up can get wrong. A candidate's failure is never one of these: it is a Verdict.

Every message says what happened, where, and what to do next: it is shown to a person as it is.
"""


class EvokernelError(Exception):
    """Base of the errors evokernel raises on purpose; the command line prints its text and exits with 2,
    of a TaskError with 1."""


class TaskError(EvokernelError):
    """The task file cannot be loaded or cannot be judged. `refused` marks a task that is sound Python but cannot be
    judged honestly (identity, stochastic, too large ...): with --json the status is then `refused` instead of `task_error`."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class ModelError(EvokernelError):
    """A model provider could not be used (no key, out of quota, unknown price under a USD budget ...)."""


class JudgeError(EvokernelError):
    """The judge itself failed (no compiler, lane died twice, wrong protocol); never becomes a score."""


class ArchiveError(EvokernelError):
    """The archive could not be opened, read or written, or a row in it is not what it should be."""


class UsageError(EvokernelError):
    """The user asked for something that does not exist or does not fit together."""
