"""The judge's handle on the zygote, which forks runners and baselines. Imports no torch, so that it can start before torch is loaded here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

from ..channel import Channel, ChannelError
from ..errors import JudgeError
from ..runner.sandbox import STACK_BYTES

_START_S = 120.0
_FORK_S = 20.0
_RUNNER_MESSAGE_BYTES = 4 << 20
_NEVER_TRIM_BYTES = 1 << 34


# What finds packages, libraries and the device.
_PASSED = ("HOME", "PYTHONPATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")


def zygote_environment(threads: int, environ: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of runners and, until they take the user's, of baselines: nothing of the caller's but search paths.

    Threads are pinned one a core, on both sides of every race: unpinned, the same binary takes 0.6 or 8 ms by chance. glibc keeps
    freed memory, so that eager code does not pay page faults on each call that a long-running process would not pay.
    """
    return {
        **{name: environ[name] for name in _PASSED if name in environ},
        "PATH": os.defpath,
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": str(threads),
        "OMP_THREAD_LIMIT": str(threads),  # the pool is made and pinned before rights are given up, and never grows
        "OMP_STACKSIZE": f"{STACK_BYTES}B",
        "OMP_PROC_BIND": "true",
        "OMP_PLACES": "cores",
        "GOMP_SPINCOUNT": "10000",
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(_NEVER_TRIM_BYTES),
    }


def preload(target: str) -> tuple[str, ...]:
    """The modules that a target's runners need, for their zygote to import: cuda.core alone takes 0.15 s. None of them touches a device."""
    return ("torch", "evokernel.runner.main", f"evokernel.targets.{target}", *(("cuda.core",) if target == "cuda" else ()))


class Zygote:
    """The judge's handle on the forking process, which imports `modules` first. `environment` is all its children will ever see of one."""

    def __init__(self, environment: Mapping[str, str], modules: tuple[str, ...]) -> None:
        self._channel, theirs = Channel.pair()
        command = [sys.executable, "-P", "-m", "evokernel.runner.zygote", str(theirs.fileno()), *modules]
        self._process = subprocess.Popen(command, env=dict(environment), pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL)
        theirs.close()
        self._ready = False

    def fork(self, entry: str) -> tuple[Channel, int]:
        """A new child running `entry.main(channel)`: our end of its channel, and its process id.

        Raises:
            JudgeError: the zygote is gone or does not answer.
        """
        ours, theirs = Channel.pair(_RUNNER_MESSAGE_BYTES)
        try:
            if not self._ready:
                self._channel.receive(_START_S)
                self._ready = True
            self._channel.send({"entry": entry}, (theirs.fileno(),))
            reply = self._channel.receive(_FORK_S)
        except ChannelError as error:
            raise JudgeError(f"the process that starts runners ended or hung ({error}); run the command again") from error
        finally:
            theirs.close()
        return ours, int(reply["pid"])

    def check(self) -> None:
        """Its end is also its children's, and none of them is to blame.

        Raises:
            JudgeError: it has ended.
        """
        if self._process.poll() is not None:
            raise JudgeError("the process that starts runners was killed, and they with it; run the command again")

    def close(self) -> None:
        self._channel.close()
        self._process.kill()
        self._process.wait()
