"""What a confined process can still do: next to nothing."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

_START = (
    "import os, socket, ctypes, threading, fcntl, signal, resource, json\n"
    "from pathlib import Path\n"
    "from evokernel.runner.sandbox import confine, limit_resources\n"
)

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
    "raise its limits": "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
    "raise another's limits": "resource.prlimit({parent}, resource.RLIMIT_CPU, (1, 1))",
    "send UDP over IPv6": "socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)",
    "send raw packets": "socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)",
    "send frames": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "open a netlink socket": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "send over a Unix socket": "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)",
    "talk to a virtual machine's host": "socket.socket(40, socket.SOCK_STREAM)",
    "bind a socket it was given to an abstract name": "given.bind('\\0evokernel-test')",
    "connect a socket it was given": "given.connect('/run/systemd/notify')",
    "read another process's memory": "open('/proc/{parent}/mem', 'rb')",
    "read another process's command line": "open('/proc/{parent}/cmdline').read()",
    "list another process's files": "os.listdir('/proc/{parent}/fd')",
    "reopen another process's files": "open('/proc/{parent}/fd/0')",
    "go through another process's root": "os.listdir('/proc/{parent}/root')",
    "list processes": "os.listdir('/proc')",
    "stop another process": "os.kill({parent}, signal.SIGSTOP)",
    "signal another's thread": "libc_call('syscall', 234, {parent}, {parent}, 0)",
    "queue a signal": "libc_call('syscall', 129, {parent}, 0, None)",
    "hold another process": "os.pidfd_open({parent})",
    "compare with another process": "libc_call('syscall', 312, os.getpid(), {parent}, 1, 0, 0)",
    "reclaim another's memory": "libc_call('syscall', 440, 0, None, 0, 20, 0)",
    "move another's memory": "libc_call('syscall', 256, {parent}, 64, None, None)",
    "read another's memory by a call": "libc_call('syscall', 310, {parent}, None, 0, None, 0, 0)",
    "start a session": "os.setsid()",
    "leave its process group": "os.setpgid(0, 0)",
    "outlive the zygote": "libc_call('prctl', 1, 0, 0, 0, 0)",
    "be dumped": "libc_call('prctl', 4, 1, 0, 0, 0)",
    "adopt orphans": "libc_call('prctl', 36, 1, 0, 0, 0)",
    "type into a terminal": "fcntl.ioctl(terminal, 0x5412, b'x')",
    "open the terminal": "open('/dev/tty')",
    "open a device": "open('/dev/full', 'rb')",
    "make a device": "os.mknod({folder!r} + '/device', 0o20600, os.makedev(1, 1))",
    "change a file's permissions": "os.chmod({secret!r}, 0o777)",
    "change a file's owner": "os.chown({secret!r}, os.getuid(), -1)",
    "change a file's times": "os.utime({secret!r})",
    "mark a file": "os.setxattr({secret!r}, 'user.mark', b'1')",
    "cut a file": "os.truncate({secret!r}, 0)",
    "link a file": "os.link({secret!r}, {readable!r} + '/link')",
    "write to shared memory": "open('/dev/shm/evokernel-test', 'w')",
    "make message queues": "libc_call('msgget', 0, 0o1600)",
    "send to a message queue": "libc_call('msgsnd', 0, b'\\1' * 16, 8, 0)",
    "remove a message queue": "libc_call('mq_unlink', b'/evokernel-test')",
    "io_uring": "libc_call('syscall', 425, 8, ctypes.create_string_buffer(120))",
    "userfaultfd": "libc_call('syscall', 323, 0)",
    "secret memory": "libc_call('syscall', 447, 0)",
    "watch files": "libc_call('inotify_init1', 0)",
    "count events of the processor": "libc_call('syscall', 298, None, 0, -1, -1, 0)",
    "leave its namespaces": "libc_call('unshare', 0x10000000)",
    "mount": "libc_call('mount', b'none', b'/tmp', b'tmpfs', 0, None)",
    "set the clock": "__import__('time').clock_settime(0, 0)",
    "go to another core": "os.sched_setaffinity(0, [0])",
    "raise its priority": "os.setpriority(os.PRIO_PROCESS, 0, -5)",
}
ALLOWED = {
    "start threads": "t = threading.Thread(target=lambda: None); t.start(); t.join()",
    "read the folder it was given": "open({readable!r} + '/kernel').read()",
    "read its own map": "open('/proc/self/maps').read()",
    "import from the standard library": "import colorsys",
    "name its threads": "libc_call('prctl', 15, b'worker', 0, 0, 0)",
    "ask a device": "fcntl.ioctl(terminal, 0x5413, b' ' * 8)",
}
_LIBC = """
def libc_call(name, *args):
    lib = ctypes.CDLL(None, use_errno=True)
    if getattr(lib, name)(*args) == -1:
        raise OSError(ctypes.get_errno(), name)
"""


_TRY = """
for what, code in attempts.items():
    try:
        exec(code)
    except PermissionError:
        outcomes[what] = "refused"
    except ValueError as error:
        outcomes[what] = "refused" if "not allowed" in str(error) else repr(error)
    except OSError as error:
        outcomes[what] = repr(error)
    else:
        outcomes[what] = "allowed"
print(json.dumps(outcomes), flush=True)
"""


def _run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Everything attempted, one after another, in one confined process."""
    folder = tmp_path_factory.mktemp("attempts")
    secret, readable = folder / "private" / "secret.txt", folder / "readable"
    secret.parent.mkdir()
    readable.mkdir()
    secret.write_text("secret")
    (readable / "kernel").write_text("x")
    places = {"secret": str(secret), "folder": str(secret.parent), "readable": str(readable), "parent": os.getpid()}
    attempts = {what: code.format(**places) for what, code in {**ALLOWED, **REFUSED}.items()}
    given = "given = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)\nterminal = os.openpty()[1]\n"
    level = f"outcomes = {{'level': confine((Path({str(readable)!r}),))}}\nattempts = {attempts!r}\n"
    done = _run(_START + _LIBC + given + level + _TRY)
    assert done.stdout, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    if found["level"] != "landlock+seccomp":
        pytest.skip(f"this system offers only: {found['level']}")
    assert secret.read_text() == "secret"
    return found


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str, outcomes: dict[str, str]) -> None:
    assert outcomes[what] == "refused"


@pytest.mark.parametrize("what", ALLOWED)
def test_allowed(what: str, outcomes: dict[str, str]) -> None:
    assert outcomes[what] == "allowed"


LIMITED = {
    "write a file": "os.write(opened, b'x')",
    "dump core": "os._exit(0 if resource.getrlimit(resource.RLIMIT_CORE) == (0, 0) else 1)",
    "compute for ever": "while True: pass",
}
ENDS = {"write a file": -signal.SIGXFSZ, "dump core": 0, "compute for ever": -signal.SIGKILL}


@pytest.mark.parametrize("what", LIMITED)
def test_limits_hold_even_where_no_right_is_missing(what: str, tmp_path: Path) -> None:
    opened = f"opened = os.open({str(tmp_path / 'file')!r}, os.O_CREAT | os.O_WRONLY)\n"
    script = f"{_START}{opened}signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\nlimit_resources(1 << 30, 1)\n{LIMITED[what]}"
    done = _run(script)
    assert done.returncode == ENDS[what], done.stderr
    assert (tmp_path / "file").stat().st_size == 0


PROFILES = {  # what a container's profile refuses: by number, and by argument
    "seccomp": ('{"landlock_create_ruleset": 444}', "()"),
    "landlock": ("{}", '(({"x86_64": 157, "aarch64": 167}, 0, (22,)),)'),
    "none": ('{"landlock_create_ruleset": 444}', '(({"x86_64": 157, "aarch64": 167}, 0, (22,)),)'),
}


@pytest.mark.parametrize("left", PROFILES)
@pytest.mark.usefixtures("outcomes")
def test_what_a_container_takes_away_is_missing_from_the_level(left: str) -> None:
    numbers, by_argument = PROFILES[left]
    profile = f"sandbox._REFUSED[platform.machine()] = {numbers}\nsandbox._REFUSED_BY_ARGUMENT = {by_argument}\n"
    imports = "import importlib, platform\nfrom evokernel.runner import sandbox\n"
    applied = f"{imports}{profile}sandbox.libc.prctl(38, 1, 0, 0, 0)\nassert sandbox._seccomp()\n"
    done = _run(f"{applied}print(importlib.reload(sandbox).confine(()))")
    assert done.stdout.strip() == left, done.stderr


def test_memory_beyond_the_limit_is_not_to_be_had() -> None:
    script = f"{_START}limit_resources(64 << 20, 60)\ntry:\n    bytearray(256 << 20)\nexcept MemoryError:\n    print('refused')"
    done = _run(script)
    assert done.stdout.strip() == "refused"
