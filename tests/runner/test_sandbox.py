"""What a confined process can still do: next to nothing. Each attempt runs in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_START = "import os, socket, ctypes, threading\nfrom pathlib import Path\nfrom evokernel.runner.sandbox import confine, limit_resources\n"

REFUSED = {
    "read a user's file": "open({secret!r}).read()",
    "list a folder": "os.listdir({folder!r})",
    "read another process's environment": "open('/proc/{parent}/environ').read()",
    "read another process's memory map": "open('/proc/{parent}/maps').read()",
    "write a file": "open({folder!r} + '/new', 'w')",
    "write over a file": "open({secret!r}, 'w')",
    "delete a file": "os.remove({secret!r})",
    "rename a file": "os.rename({secret!r}, {secret!r} + '2')",
    "make a folder": "os.mkdir({folder!r} + '/d')",
    "fork": "os.fork()",
    "start a program": "os.execv('/bin/true', ['true'])",
    "spawn": "os.posix_spawn('/bin/true', ['true'], {{}})",
    "open a TCP socket": "socket.socket(socket.AF_INET, socket.SOCK_STREAM)",
    "open a UDP socket": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "open a Unix socket": "socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)",
    "make a socket pair": "socket.socketpair()",
    "signal its parent": "os.kill({parent}, 0)",
    "trace": "libc_call('ptrace', 16, {parent}, 0, 0)",
    "shared memory": "libc_call('shmget', 0, 4096, 0o1600)",
    "anonymous files": "os.memfd_create('x')",
    "raise its limits": "__import__('resource').setrlimit(__import__('resource').RLIMIT_CORE, (0, 0))",
}
ALLOWED = {
    "start threads": "t = threading.Thread(target=lambda: None); t.start(); t.join()",
    "read the folder it was given": "open({readable!r} + '/kernel').read()",
    "read its own map": "open('/proc/self/maps').read()",
    "import from the standard library": "import colorsys",
}
_LIBC = """
def libc_call(name, *args):
    lib = ctypes.CDLL(None, use_errno=True)
    if getattr(lib, name)(*args) == -1:
        raise OSError(ctypes.get_errno(), name)
"""


def _attempt(tmp_path: Path, code: str) -> str:
    secret, readable = tmp_path / "private" / "secret.txt", tmp_path / "readable"
    secret.parent.mkdir(exist_ok=True)
    readable.mkdir(exist_ok=True)
    secret.write_text("secret")
    (readable / "kernel").write_text("x")
    code = code.format(secret=str(secret), folder=str(secret.parent), readable=str(readable), parent=os.getpid())
    attempt = f"try:\n    {code}\nexcept (OSError, ValueError):\n    print('refused', level)\nelse:\n    print('allowed', level)"
    script = f"{_START}{_LIBC}level = confine((Path({str(readable)!r}),))\n{attempt}"
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip() or f"died: {done.stderr[-300:]}"


@pytest.fixture(scope="module", autouse=True)
def complete_sandbox(tmp_path_factory: pytest.TempPathFactory) -> None:
    level = _attempt(tmp_path_factory.mktemp("probe"), "pass")
    if level != "allowed landlock+seccomp":
        pytest.skip(f"this system offers only: {level}")


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str, tmp_path: Path) -> None:
    assert _attempt(tmp_path, REFUSED[what]) == "refused landlock+seccomp"


@pytest.mark.parametrize("what", ALLOWED)
def test_allowed(what: str, tmp_path: Path) -> None:
    assert _attempt(tmp_path, ALLOWED[what]) == "allowed landlock+seccomp"


def test_memory_beyond_the_limit_is_not_to_be_had() -> None:
    script = f"{_START}limit_resources(64 << 20, 60)\ntry:\n    bytearray(256 << 20)\nexcept MemoryError:\n    print('refused')"
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "refused"
