"""The loop's side of the judge: one killable judge process per device, started, watched, restarted. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..records import Admission, Config, Kernel, Screen, Verdict


class Judge(Protocol):
    """What the loop and the operators' batches need of a judge; `Lane` is the real one."""

    def admit(self) -> Admission:
        """Load, check and measure the task (once; later calls return the same record).

        Raises:
            TaskError: it cannot be loaded, or it is refused by name.
            JudgeError: the judge itself failed.
        """

    def judge(self, kernel: Kernel, *, incumbent_us: float | None = None) -> Verdict:
        """The full verdict of a kernel in its default configuration. `incumbent_us`: the best median so far in the scored mode;
        a candidate clearly out of the race (1.5 times that) is measured only briefly.

        Raises:
            JudgeError: the judge failed twice in a row on this kernel without the kernel being to blame.
        """

    def screen(self, kernel: Kernel, configs: Sequence[Config]) -> list[Screen]:
        """A quick look at several configurations of one kernel, in the order given: built in parallel, correct on the task's own
        draws, a rough time each.

        Raises:
            JudgeError: as for `judge`.
        """

    def close(self) -> None:
        """End the judge process and everything below it. Safe to call twice."""
