"""Whatever a process starts, and however it tries to stay: it ends with it."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evokernel.runner.processes import kill_tree

# A daemon: a session of its own, a parent that ends, no signal at its end, nothing to read in /proc, deaf to what can be ignored.
_DAEMON = """
import ctypes, os, signal, sys, time
from evokernel.runner.processes import become_subreaper, die_with_parent, enter_pid_namespace

def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            libc = ctypes.CDLL(None)
            libc.prctl(1, 0, 0, 0, 0)
            libc.prctl(4, 0, 0, 0, 0)
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            os.execv('/bin/sleep', [mark, '600'])
        os._exit(0)

def hydra():
    while True:  # never the same process for long
        if os.fork():
            os._exit(0)

mark = sys.argv[1]
"""


def _marked(mark: str) -> list[int]:
    """Processes whose command line starts with the mark or holds it as an argument."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def _gone(mark: str, limit_s: float = 10.0) -> bool:
    deadline = time.monotonic() + limit_s
    while _marked(mark):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _started(mark: str, body: str, count: int) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen([sys.executable, "-P", "-c", _DAEMON + body, mark], start_new_session=True)
    deadline = time.monotonic() + 30
    while len(_marked(mark)) < count:
        assert time.monotonic() < deadline and process.poll() is None, "they did not start"
        time.sleep(0.01)
    return process


@pytest.fixture
def mark() -> str:
    return f"evokernel-test-{os.getpid()}-{time.monotonic_ns()}"


def test_daemons_end_with_the_tree_they_left(mark: str) -> None:
    body = "become_subreaper()\nfor _ in range(50): daemon()\nwhile True: time.sleep(1)"
    process = _started(mark, body, 51)
    kill_tree(process.pid)
    process.wait()
    assert _gone(mark)


@pytest.fixture
def namespaces() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if libc.unshare(0x20000000 | 0x00020000) == 0 or libc.unshare(0x30020000) == 0 else 1)
    if os.waitpid(pid, 0)[1]:
        pytest.skip("this system allows no PID namespaces")


@pytest.mark.parametrize("killed", ["outside", "first"])
@pytest.mark.usefixtures("namespaces")
def test_a_fork_bomb_ends_with_its_namespace(mark: str, killed: str) -> None:
    bomb = "for _ in range(20): daemon()\nif os.fork() == 0: hydra()\nwhile True: time.sleep(1)"
    process = _started(mark, f"die_with_parent()\nenter_pid_namespace(())\n{bomb}", 22)
    inside = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(process.pid if killed == "outside" else int(inside[0]), signal.SIGKILL)
    process.wait()
    assert _gone(mark)
