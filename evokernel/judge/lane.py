"""The loop's side of the judge: one killable judge process per device, started, watched, restarted. Imports no torch."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.pool import AsyncResult, ThreadPool
from pathlib import Path
from typing import Protocol

from .. import targets
from ..channel import Channel, ChannelClosed, ChannelTimeout, Message
from ..codec import Json, decode, encode
from ..errors import ArchiveError, EvokernelError, JudgeError, ModelError, TaskError, UsageError
from ..kernelfile import KernelFileError, parse
from ..records import Admission, Config, Kernel, Screen, Task, Verdict
from ..runner.processes import kill_tree
from ..targets.workplace import sweep, workplace
from . import tenant
from .capture import Capture

_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
# The truth needs large temporaries (huge pages make them 1.6 times quicker) and must not spin on cores that others use.
_JUDGE_ENVIRONMENT = {"THP_MEM_ALLOC_ENABLE": "1", "OMP_WAIT_POLICY": "passive"}
_JUDGING_S = 900.0
_OWN_PHASES_S = {
    "start": 120.0, "truth": 600.0, "baselines": 600.0, "ready": 60.0, "gpu": tenant.WAIT_S + 60.0, "judging": _JUDGING_S,
}  # fmt: skip
_BUILDING_S = 150.0  # a compiler gets 60 s, twice
AHEAD = 2  # kernels that are built while one is judged: some take longer to build than to judge
_SCRATCH = "evokernel-judge-"  # of the folder for temporary files of a judge and of all that it starts
_ERRORS = {e.__name__: e for e in (TaskError, JudgeError, ModelError, ArchiveError, UsageError)}
_DOING = {"import": "importing the task file", "init": "constructing Model", "inputs": "get_inputs()", "forward": "Model.forward"}


class Judge(Protocol):
    """What the loop and the operators' batches need of a judge; `Lane` is the real one."""

    def admit(self) -> Admission:
        """Load, check and measure the task (once; later calls return the same record).

        Raises:
            TaskError: it cannot be loaded, or it is refused by name.
            JudgeError: the judge itself failed.
        """

    def ahead(self, kernel: Kernel) -> None:
        """Begin to build a kernel that will be judged later, where that disturbs nothing that is timed meanwhile."""

    def judge(self, kernel: Kernel, *, incumbent_us: float | None = None, patience: float = 1.0) -> Verdict:
        """The full verdict of a kernel in its default configuration. `incumbent_us`: the best median so far in the scored mode;
        a candidate clearly out of the race (1.5 times that) is measured only briefly. `patience`: how many times the usual measuring time
        may be spent on a narrow interval; above 1 the number is going to be announced, with what only finalists get (timing.race_anew,
        sanitize.py).

        Raises:
            JudgeError: the judge failed twice in a row on this kernel without the kernel being to blame.
        """

    def screen(self, kernel: Kernel, configs: Sequence[Config]) -> list[Screen]:
        """A quick look at several configurations of one kernel, in the order given: built in parallel, correct on the task's own
        draws, a rough time each.

        Raises:
            JudgeError: as for `judge`.
        """

    def restart(self) -> None:
        """End the judge process and start a fresh one with new seeds before the next request; the task must be unchanged then."""

    def close(self) -> None:
        """End the judge process and everything below it. Safe to call twice."""


@dataclass(frozen=True)
class LaneSettings:
    """How a lane's judge process is started.

    `environ`: the environment the task file sees, less what looks like a secret. `phase_limit_s`: how long importing the task,
    constructing the module, get_inputs and forward may take each. `force`: judge a task that admission refuses, and mark every verdict.
    `baselines`: fewer than all (which () stands for) make a quicker, weaker judge; verdicts name those they used.
    """

    task: str
    target: str
    cache: Path
    environ: Mapping[str, str]
    phase_limit_s: float = 60.0
    force: bool = False
    baselines: tuple[str, ...] = ()


class Lane:
    """The real Judge: a process of its own that is killed with everything below it when it hangs, and started again when it dies.

    Args:
        on_phase: told what the judge is doing now ("import", "truth", "baselines" ...).
    """

    def __init__(self, settings: LaneSettings, on_phase: Callable[[str], None] = lambda _: None) -> None:
        self._settings = settings
        self._on_phase = on_phase
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._capture: Capture | None = None
        self._scratch = contextlib.ExitStack()
        self._admission: Admission | None = None
        self._builders: ThreadPool | None = None
        self._building: dict[str, AsyncResult[None]] = {}

    def describe(self) -> Task:
        """The task as it loads, before any check; raises as `admit` does."""
        self._start()
        try:
            return decode(Task, self._ask({"op": "describe"}, _OWN_PHASES_S["start"]))
        finally:
            self._stop()

    def admit(self) -> Admission:
        if self._process is None:
            self._start()
            self._admit()
        assert self._admission is not None
        return self._admission

    def ahead(self, kernel: Kernel) -> None:
        if self._admission and kernel.id not in self._building and targets.get(self._settings.target).builds_beside:
            self._builders = self._builders or ThreadPool(AHEAD)
            self._building[kernel.id] = self._builders.apply_async(_build, (kernel, self._admission, self._settings.cache / "builds"))

    def judge(self, kernel: Kernel, *, incumbent_us: float | None = None, patience: float = 1.0) -> Verdict:
        if building := self._building.pop(kernel.id, None):
            building.wait(_BUILDING_S)
        request = {"op": "judge", "kernel": encode(kernel), "incumbent_us": incumbent_us, "patience": patience}
        return decode(Verdict, self._persistent(request))

    def screen(self, kernel: Kernel, configs: Sequence[Config]) -> list[Screen]:
        request = {"op": "screen", "kernel": encode(kernel), "configs": list(configs)}
        return [decode(Screen, s) for s in self._persistent(request)]

    def restart(self) -> None:
        self._stop()

    def close(self) -> None:
        if self._builders:
            self._builders.terminate()
        self._builders, self._building = None, {}
        self._stop()

    def printed(self) -> str:
        """What the task printed so far, control characters made visible."""
        return self._capture.text() if self._capture else ""

    def _persistent(self, request: Message) -> Json:
        """Ask; if the judge dies of it, ask a fresh one once more."""
        for last in (False, True):
            self.admit()
            try:
                return self._ask(request, _JUDGING_S)
            except JudgeError:
                self._stop()
                if last:
                    raise
        raise AssertionError("unreachable")

    def _start(self) -> None:
        settings = self._settings
        self._channel, theirs = Channel.pair()
        self._capture = Capture()
        environ = {k: v for k, v in settings.environ.items() if not _SECRET.search(k)}
        temporary = Path(tempfile.gettempdir())
        sweep(temporary, _SCRATCH)
        for name in ("builds", "baselines", "native"):
            sweep(settings.cache / name)
        scratch = self._scratch.enter_context(workplace(temporary, _SCRATCH))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "evokernel.judge", str(theirs.fileno())],
            env={**environ, **_JUDGE_ENVIRONMENT, "TMPDIR": str(scratch)}, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL,
            stdout=self._capture.write_fd, stderr=self._capture.write_fd, start_new_session=True,
        )  # fmt: skip
        theirs.close()
        self._capture.started()
        self._channel.send({
            "task": settings.task, "target": settings.target, "cache": str(settings.cache),
            "force": self._admission.forced if self._admission else settings.force,  # a judge that starts again does not check again
            "check": self._admission is None, "environ": environ, "baselines": settings.baselines,
            "owner": f"process {os.getpid()}",  # outside of the judge's namespace, where it can be found
        })  # fmt: skip

    def _admit(self) -> None:
        try:
            admission = decode(Admission, self._ask({"op": "admit"}, _OWN_PHASES_S["start"]))
        except BaseException:
            self._stop()
            raise
        if self._admission and admission.task.id != self._admission.task.id:
            self._stop()
            raise TaskError("the task file changed while it was being judged; start a new run for the new version")
        self._admission = self._admission or admission

    def _ask(self, request: Message, limit_s: float) -> Json:
        """One request and its answer. Phases it passes through set the limit anew, each its own."""
        channel = self._channel
        assert channel is not None
        phase = "start"
        try:
            channel.send(request)
            while "phase" in (reply := channel.receive(limit_s)):
                phase = str(reply["phase"])
                limit_s = _OWN_PHASES_S.get(phase, self._settings.phase_limit_s)
                self._on_phase(phase)
        except ChannelTimeout:
            self._stop()
            raise self._hung(phase, limit_s) from None
        except ChannelClosed:
            tail = self.printed()[-1500:].strip()
            self._stop()
            what = _DOING.get(phase)
            where = f" while {what}" if what else ""
            message = f"the judge process ended{where}." + (f" It last printed:\n{tail}" if tail else "")
            raise (TaskError if what else JudgeError)(message) from None
        if "error" in reply:
            raise _error(reply)
        return reply["result"]

    def _hung(self, phase: str, limit_s: float) -> EvokernelError:
        if phase in _DOING:
            return TaskError(
                f"{_DOING[phase]} did not finish within {limit_s:.0f} s; it and everything it started were killed. "
                "Make it quicker, or give it longer with --task-timeout SECONDS"
            )
        return JudgeError(f"the judge did not answer within {limit_s:.0f} s (phase {phase}) and was killed; run the command again")

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            kill_tree(process.pid)
            process.wait()
        self._scratch.close()
        if self._channel is not None:
            self._channel.close()
            self._channel = None


def _build(kernel: Kernel, admission: Admission, directory: Path) -> None:
    """Have a kernel's builds in the cache where the judge looks for them. What fails is for the judge to say."""
    with contextlib.suppress(KernelFileError, targets.BuildError, EvokernelError):
        parsed, target = parse(kernel), targets.get(kernel.target)
        for signature in admission.task.variants:
            targets.built(target, parsed, signature, admission.device, directory)


def _error(reply: Message) -> EvokernelError:
    if reply["error"] == "TaskError":
        return TaskError(reply["message"], refused=bool(reply["refused"]))
    return _ERRORS.get(reply["error"], JudgeError)(reply["message"])
