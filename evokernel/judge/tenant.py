"""One tenant per GPU: a judge holds its GPU's lock for its life, so that nobody's kernels are timed beside somebody else's.

The lock is the operating system's (flock) and ends with the process, however that ends. All users of a machine share it. It keeps out
judges only: other programs on the GPU are not noticed, and a judge in a container that shares no folder with this one is not seen.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from ..errors import JudgeError

WAIT_S = 600.0
_POLL_S = 0.2
_RUN_LOCK, _TMP = Path("/run/lock"), Path("/tmp")


def hold(uuid: str, owner: str, waiting: Callable[[], None], *, folder: Path | None = None, wait_s: float = WAIT_S) -> IO[str]:
    """Become the tenant of a GPU until the returned file is closed.

    Args:
        owner: who that is, for those who wait in vain.
        waiting: told once when somebody else holds it.

    Raises:
        JudgeError: it is still held after `wait_s` seconds, or the lock's file cannot be used.
    """
    path = (folder or _shared_folder()) / f"evokernel-gpu-{uuid}.lock"
    try:
        file = os.fdopen(_opened(path), "r+", encoding="utf-8")
    except OSError as error:
        raise JudgeError(f"the GPU's lock {path} cannot be opened ({error.strerror}); remove it or give everyone the right to write it") from error
    deadline = time.monotonic() + wait_s
    said = False
    while not _locked(file):
        if not said:
            waiting()
            said = True
        if time.monotonic() > deadline:
            held = file.read().strip() or "another judge"
            file.close()
            raise JudgeError(f"the GPU has been taken for {wait_s:.0f} s, by {held} (lock {path}): wait, end it, or name another GPU with --device")
        time.sleep(_POLL_S)
    file.truncate(0)
    file.write(owner)
    file.flush()
    return file


def _shared_folder() -> Path:
    """Where every user of this machine may create a lock: the same answer for all of them, root included."""
    with contextlib.suppress(OSError):
        if _RUN_LOCK.stat().st_mode & stat.S_IWOTH:
            return _RUN_LOCK
    return _TMP


def _opened(path: Path) -> int:
    """The lock's file, writable for all. O_CREAT only where there is none: the kernel refuses it on files of other users in such folders."""
    flags = os.O_RDWR | os.O_NOFOLLOW
    before = os.umask(0)
    try:
        while True:
            with contextlib.suppress(FileNotFoundError):
                return os.open(path, flags)
            with contextlib.suppress(FileExistsError):
                return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
    finally:
        os.umask(before)


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
