"""A process that has imported torch, has never run a parallel region or touched a device, and forks runners.

Run as `python -P -m evokernel.runner.zygote FD MODULE...`: FD is its channel to the judge, the modules are imported first. Each request
{"entry": module} carries one descriptor, the child's own channel; the child runs `module.main(channel)` and never returns here.
Thread pools do not survive a fork, hence a process that only imports and forks.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
from importlib import import_module

from ..channel import Channel, ChannelClosed
from .processes import call_yourself, close_other_fds, die_with_parent


def main(fd: int, modules: list[str]) -> None:
    """Serve fork requests until the judge closes the channel."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in modules:
        import_module(name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped by the kernel; the judge learns of their end by their channel
    judge = Channel.from_fd(fd)
    judge.send({"ready": True})
    while True:
        try:
            request, fds = judge.receive_fds()
        except ChannelClosed:
            return
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            _child(parent, request["entry"], fds[0])
        os.close(fds[0])
        judge.send({"pid": pid})


def _child(parent: int, entry: str, fd: int) -> None:
    status = 1
    try:
        die_with_parent(parent)
        call_yourself(entry.removeprefix("evokernel."))
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        close_other_fds((fd,))
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)
        import_module(entry).main(Channel.from_fd(fd))
        status = 0
    except BaseException:
        traceback.print_exc()  # os._exit below would swallow it
        raise
    finally:
        os._exit(status)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
