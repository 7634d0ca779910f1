"""The judge process: `python -P -m evokernel.judge FD`, started and watched by a lane (lane.py).

Covers: the user's task module, truth, inputs, statistics; starts the zygote, and through it runners and baselines.
Anything may happen in it, because it runs the user's reference: hang, crash, flood. The lane kills it with everything below.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..channel import Channel, ChannelClosed, Message
from ..codec import decode, encode
from ..errors import EvokernelError, TaskError
from ..records import Admission, Kernel
from ..runner.processes import die_with_parent, enter_pid_namespace
from . import tenant

if TYPE_CHECKING:
    from ..task import LoadedTask


class JudgeProcess:
    """Answers one lane. Heavy imports wait until the zygote, which imports the same, has been started beside us."""

    def __init__(self, channel: Channel, settings: Message) -> None:
        self._channel = channel
        self._settings = settings

    def admit(self) -> Admission:
        """Load the task, check it, measure the baselines."""
        from .. import targets
        from .zygotes import Zygote, preload, zygote_environment

        settings = self._settings
        target = targets.get(settings["target"])
        threads = len(os.sched_getaffinity(0))
        # Started first, so that it imports torch while we do.
        zygote = Zygote(zygote_environment(threads, settings["environ"]), preload(target.name))
        if target.name == "cuda":
            from ..targets.driver import gpu_uuid

            self._tenancy = tenant.hold(gpu_uuid(), settings["owner"], lambda: self._phase("gpu"))
        from .admission import admit
        from .baselines import baseline_names
        from .field import Field
        from .funnel import Funnel
        from .workshop import Workshop

        loaded = self._load()
        self._phase("truth")
        shop = Workshop(loaded, target, zygote, Path(settings["cache"]), settings["environ"])
        cases = shop.cases
        field = Field(shop, loaded.task.options.score, tuple(settings["baselines"] or baseline_names(target.name)))
        field.start()
        checked = admit(cases, force=settings["force"]) if settings["check"] else None
        shop.forced = checked.forced if checked else settings["force"]
        cases.prepare()  # here and not under the first candidate: the baselines are compiling meanwhile
        _ = shop.costs
        self._phase("baselines")
        field.settle()
        self._phase("ready")
        if shop.machine.slow_start:
            shop.boot_runner()
        self._funnel = Funnel(shop, field)
        notes = [*(checked.notes if checked else loaded.notes), *(f"baseline {n} is missing: {why}" for n, why in field.failed.items())]
        return Admission(
            task=loaded.task,
            device=shop.device,
            baselines_us={name: modes[field.score] for name, modes in field.times_us.items()},
            regimes=cases.regimes(),
            trivial=checked.trivial if checked else (),
            notes=tuple(notes),
            forced=shop.forced,
            survived=checked.survived if checked else (),
            left_out=cases.plan(0).left_out,
        )

    def serve(self) -> None:
        """Answer until the lane hangs up."""
        while True:
            try:
                request = self._channel.receive()
                self._channel.send(self._answer(request))
            except ChannelClosed:
                return

    def _answer(self, request: Message) -> Message:
        try:
            if request["op"] == "admit":
                return {"result": encode(self.admit())}
            if request["op"] == "describe":
                return {"result": encode(self._load().task)}
            kernel = decode(Kernel, request["kernel"])
            if request["op"] == "judge":
                return {"result": encode(self._funnel.judge(kernel, request["incumbent_us"], request["patience"]))}
            return {"result": encode(self._funnel.screen(kernel, request["configs"]))}
        except EvokernelError as error:
            refused = isinstance(error, TaskError) and error.refused
            return {"error": type(error).__name__, "message": str(error), "refused": refused}

    def _load(self) -> LoadedTask:
        from ..task import load_task

        return load_task(self._settings["task"], on_phase=self._phase, known=not self._settings["check"])

    def _phase(self, name: str) -> None:
        self._channel.send({"phase": name})


def main() -> None:
    """Entry of the process."""
    fd = int(sys.argv[1])
    die_with_parent()
    enter_pid_namespace((fd,))
    channel = Channel.from_fd(fd)
    JudgeProcess(channel, channel.receive()).serve()


if __name__ == "__main__":
    main()
