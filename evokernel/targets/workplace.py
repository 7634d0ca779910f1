"""Folders for work in progress, which are gone when their owner is: at the end of the work, or when somebody comes by after a kill.

The owner of a folder holds a lock on it (flock), which ends with its process however that ends. Process ids would not do: judges in PID namespaces of
their own share the cache, and each is number 1 there.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

BUILDING = "building-"


@contextmanager
def workplace(parent: Path, prefix: str = BUILDING) -> Iterator[Path]:
    """A new folder in `parent`, which is made if need be. What is finished in it can be renamed into `parent`: readers see all of it or nothing.

    Raises:
        OSError: it cannot be made.
    """
    parent.mkdir(parents=True, exist_ok=True)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        with suppress(FileNotFoundError):  # somebody took it for abandoned before it was locked
            lock = _locked(folder, wait=True)
            if folder.exists():
                break
            os.close(lock)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def put(path: Path, data: bytes) -> None:
    """Write a file whole: readers see the old one or the new one."""
    with workplace(path.parent) as work:
        (work / path.name).write_bytes(data)
        (work / path.name).replace(path)


def sweep(parent: Path, prefix: str = BUILDING) -> None:
    """Remove the folders in `parent` whose owners were killed."""
    for folder in parent.glob(f"{prefix}*"):
        with suppress(OSError):  # held by its owner, or gone
            lock = _locked(folder, wait=False)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _locked(folder: Path, *, wait: bool) -> int:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
