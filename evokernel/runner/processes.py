"""Processes that end when they should: namespaces, death signals, killing of whole trees, private descriptors.

Where the kernel allows a PID namespace, a judge is its first process and everything it ever started dies with it, however it was
started. Elsewhere the judge is a child subreaper and `kill_tree` walks the tree until nothing is left.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWPID = 0x20000000
_MS_REC_PRIVATE = 0x4000 | (1 << 18)

libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when the process that started it ends. Call it first thing in a child.

    `parent`: its process id, where it is known from before the fork; without that, one that ended before this call is not noticed.
    """
    parent = parent or os.getppid()
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def call_yourself(name: str) -> None:
    """The name that ps and top show for this process (the first 15 bytes of it)."""
    libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def become_subreaper() -> None:
    """Orphans below this process become its children instead of init's."""
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def enter_pid_namespace(close_in_parent: tuple[int, ...]) -> bool:
    """Continue as the first process of a new PID namespace where that is allowed.

    On True the caller *is* the namespace's first process; the old process stays behind, waits, and passes on its exit status (its
    copies of `close_in_parent` are closed so that the other side sees the end). On False nothing has changed but that this
    process is a child subreaper.
    """
    if libc.unshare(_CLONE_NEWPID | _CLONE_NEWNS) != 0 and not _unshare_as_user():
        become_subreaper()
        return False
    outside = os.pidfd_open(os.getpid())
    pid = os.fork()
    if pid == 0:
        die_with_parent()
        if select.select([outside], [], [], 0)[0]:
            os._exit(1)  # it ended before that, and from in here no parent can be seen to change
        os.close(outside)
        _mount_proc()
        return True
    for fd in close_in_parent:
        os.close(fd)
    _, status = os.waitpid(pid, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _mount_proc() -> None:
    """A /proc of the namespace's own, where that is allowed: drivers look themselves up in it, and nobody sees processes outside."""
    if libc.mount(None, b"/", None, _MS_REC_PRIVATE, None) == 0:
        libc.mount(b"proc", b"/proc", b"proc", 0, None)


def _unshare_as_user() -> bool:
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWPID | _CLONE_NEWNS) != 0:
        return False
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        Path("/proc/self", name).write_text(text)
    return True


def children(pid: int) -> list[int]:
    """The direct children of a process as /proc shows them."""
    found = []
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []  # it has just ended
    for task in tasks:
        try:
            found += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue  # so has this thread
    return found


def kill_tree(pid: int, wait_s: float = 5.0) -> None:
    """Kill a child process and all that is below it, in new sessions too. The root is stopped first, so that it can
    start nothing more, and killed last, so that a subreaper's orphans stay below it until they are gone."""
    _signal(pid, signal.SIGSTOP)
    deadline = time.monotonic() + wait_s
    while (below := _descendants(pid)) and time.monotonic() < deadline:
        for child in below:
            _signal(child, signal.SIGKILL)
        time.sleep(0.005)
    _signal(pid, signal.SIGKILL)


def _descendants(pid: int) -> list[int]:
    """All live processes below `pid`; zombies wait for their parent and cannot act."""
    found, queue = [], [pid]
    while queue:
        for child in children(queue.pop()):
            queue.append(child)
            if not _is_zombie(child):
                found.append(child)
    return found


def _is_zombie(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in ("Z", "X")


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def close_other_fds(keep: tuple[int, ...]) -> None:
    """Close every descriptor above 2 that is not in `keep`, so that a child cannot touch what its parent holds."""
    low = 3
    for fd in sorted(f for f in keep if f > 2):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, max(low, os.sysconf("SC_OPEN_MAX")))
