"""What a runner gives up before it touches candidate code.

Covers: reading anything but the interpreter, system libraries and the candidate's own build folder; every write outside; new
processes and programs; all networking; signals to and memory of other processes; new sessions, staying alive after the zygote;
permissions, owners, times and attributes of files (Landlock leaves those open); what only root may do at all; on a CPU, by
`limit_resources`, growing memory, files, core dumps and processor time (a GPU's runner, where no candidate's host code runs, has no such limits).
Does not cover: whether a file exists (stat); use of the cores it is pinned to (the judge's deadline does), and timing side channels.
Must not know: the task, its reference, expected values, tolerances.

Landlock covers files, seccomp the rest (Landlock alone leaves UDP and process creation open). Both are applied by the process to
itself, need no privilege, and cannot be taken back. The level reached is reported and stands in each verdict.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
import sys
from pathlib import Path

from .processes import libc

STACK_BYTES = 2 << 20  # of the main thread; zygotes.py gives the others the same, and what calls leave there is overwritten between them

_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_LANDLOCK_RULE_PATH_BENEATH = 1
_READ = (1 << 2) | (1 << 3)  # read a file, list a directory
_FS_RIGHTS_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_NET_RIGHTS = 0b11  # bind and connect TCP, from ABI 4
_SCOPES = 0b11  # abstract sockets and signals, from ABI 6

# System call numbers by machine (Linux: arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h).
_REFUSED = {
    "x86_64": {
        "socket": 41, "connect": 42, "accept": 43, "bind": 49, "listen": 50, "socketpair": 53, "fork": 57, "vfork": 58,
        "execve": 59, "kill": 62, "shmget": 29, "shmat": 30, "semget": 64, "msgget": 68, "ptrace": 101, "mount": 165, "setpriority": 141,
        "pivot_root": 155, "chroot": 161, "keyctl": 250, "add_key": 248, "request_key": 249, "mq_open": 240, "unshare": 272,
        "perf_event_open": 298, "accept4": 288, "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311, "memfd_create": 319,
        "bpf": 321, "execveat": 322, "userfaultfd": 323, "pidfd_send_signal": 424, "io_uring_setup": 425, "pidfd_open": 434,
        "pidfd_getfd": 438, "tkill": 200, "tgkill": 234, "rt_sigqueueinfo": 129,
        "rt_tgsigqueueinfo": 297, "inotify_init1": 294,
        "sched_setaffinity": 203, "sched_setscheduler": 144, "sched_setparam": 142, "sched_setattr": 314, "ioprio_set": 251,
        "personality": 135, "prlimit64": 302, "setrlimit": 160, "kcmp": 312, "process_madvise": 440, "process_mrelease": 448, "migrate_pages": 256,
        "setsid": 112, "setpgid": 109, "inotify_init": 253, "fanotify_init": 300, "open_by_handle_at": 304, "memfd_secret": 447,
        "semop": 65, "semctl": 66, "semtimedop": 220, "shmctl": 31, "msgsnd": 69, "msgrcv": 70, "msgctl": 71, "mq_unlink": 241,
        "chmod": 90, "fchmod": 91, "fchmodat": 268, "fchmodat2": 452, "chown": 92, "fchown": 93, "lchown": 94, "fchownat": 260,
        "utime": 132, "utimes": 235, "futimesat": 261, "utimensat": 280, "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190,
        "removexattr": 197, "lremovexattr": 198, "fremovexattr": 199, "setxattrat": 463, "removexattrat": 466, "file_setattr": 469,
        "reboot": 169, "init_module": 175, "finit_module": 313, "delete_module": 176, "kexec_load": 246, "kexec_file_load": 320,
        "settimeofday": 164, "clock_settime": 227, "clock_adjtime": 305, "adjtimex": 159, "sethostname": 170, "setdomainname": 171,
        "syslog": 103, "acct": 163, "swapon": 167, "swapoff": 168, "quotactl": 179, "iopl": 172, "ioperm": 173,
        "umount2": 166, "fsopen": 430, "move_mount": 429, "mount_setattr": 442, "open_tree": 428,
    },
    "aarch64": {
        "socket": 198, "connect": 203, "accept": 202, "bind": 200, "listen": 201, "socketpair": 199, "execve": 221,
        "kill": 129, "shmget": 194, "shmat": 196, "semget": 190, "msgget": 186, "ptrace": 117, "mount": 40, "setpriority": 140,
        "pivot_root": 41, "chroot": 51, "keyctl": 219, "add_key": 217, "request_key": 218, "mq_open": 180, "unshare": 97,
        "perf_event_open": 241, "accept4": 242, "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271, "memfd_create": 279,
        "bpf": 280, "execveat": 281, "userfaultfd": 282, "pidfd_send_signal": 424, "io_uring_setup": 425, "pidfd_open": 434,
        "pidfd_getfd": 438, "tkill": 130, "tgkill": 131, "rt_sigqueueinfo": 138,
        "rt_tgsigqueueinfo": 240, "inotify_init1": 26,
        "sched_setaffinity": 122, "sched_setscheduler": 119, "sched_setparam": 118, "sched_setattr": 274, "ioprio_set": 30,
        "personality": 92, "prlimit64": 261, "setrlimit": 164, "kcmp": 272, "process_madvise": 440, "process_mrelease": 448, "migrate_pages": 238,
        "setsid": 157, "setpgid": 154, "fanotify_init": 262, "open_by_handle_at": 265, "memfd_secret": 447,
        "semop": 193, "semctl": 191, "semtimedop": 192, "shmctl": 195, "msgsnd": 189, "msgrcv": 188, "msgctl": 187, "mq_unlink": 181,
        "fchmod": 52, "fchmodat": 53, "fchmodat2": 452, "fchown": 55, "fchownat": 54, "utimensat": 88, "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7,
        "removexattr": 14, "lremovexattr": 15, "fremovexattr": 16, "setxattrat": 463, "removexattrat": 466, "file_setattr": 469,
        "reboot": 142, "init_module": 105, "finit_module": 273, "delete_module": 106, "kexec_load": 104, "kexec_file_load": 294,
        "settimeofday": 170, "clock_settime": 112, "clock_adjtime": 266, "adjtimex": 171, "sethostname": 161, "setdomainname": 162,
        "syslog": 116, "acct": 89, "swapon": 224, "swapoff": 225, "quotactl": 60,
        "umount2": 39, "fsopen": 430, "move_mount": 429, "mount_setattr": 442, "open_tree": 428,
    },
}  # fmt: skip
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3 = 435
# Calls of which only some are refused: by machine their number, which argument tells (from 0), and its values. prctl: the signal at the
# parent's end, being dumpable, adopting orphans. ioctl: putting keys into a terminal (TIOCSTI, TIOCLINUX).
_REFUSED_BY_ARGUMENT = (
    ({"x86_64": 157, "aarch64": 167}, 0, (1, 4, 36)),
    ({"x86_64": 16, "aarch64": 29}, 1, (0x5412, 0x541C)),
)
_CLONE_THREAD = 0x00010000
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000

# Classic BPF: load a word of the call's record, compare, return.
_LOAD, _JEQ, _JSET, _JGE, _RET = 0x20, 0x15, 0x45, 0x35, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_OFFSET_NUMBER, _OFFSET_ARCH, _OFFSET_ARG0 = 0, 4, 16


def confine(readable: tuple[Path, ...]) -> str:
    """Give up everything the candidate must not have, for this process and all its future threads.

    `readable`: files and folders that stay readable beside the interpreter's and the system's own.

    Returns:
        The level in force, e.g. "landlock+seccomp" or "none": what could not be applied here is missing from it.
    """
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    reached = []
    if _landlock((*_system_paths(), *readable)):
        reached.append("landlock")
    if _seccomp():
        reached.append("seccomp")
    return "+".join(reached) or "none"


def limit_resources(memory_bytes: int, cpu_seconds: int) -> None:
    """Cap address space (beyond what is mapped now), file size, core dumps and processor time."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for what, limit in (
        (resource.RLIMIT_AS, mapped + memory_bytes),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_STACK, STACK_BYTES),
    ):
        _, hard = resource.getrlimit(what)
        value = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(what, (value, value))


def _system_paths() -> tuple[Path, ...]:
    package = Path(__file__).resolve().parent.parent
    system = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/dev/null", "/dev/urandom", "/dev/zero", "/sys/devices/system")
    own = ("/proc/self", "/proc/cpuinfo", "/proc/meminfo", sys.prefix, sys.base_prefix)
    return (*(Path(p) for p in (*system, *own)), package)


def _landlock(readable: tuple[Path, ...]) -> bool:
    abi = libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)
    if abi < 1:
        return False
    handled = _FS_RIGHTS_BY_ABI[min(abi, 5)]
    attributes = struct.pack("<QQQ", handled, _NET_RIGHTS if abi >= 4 else 0, _SCOPES if abi >= 6 else 0)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    rules = libc.syscall(_LANDLOCK_CREATE, attributes, ctypes.c_size_t(size), 0)
    if rules < 0:
        return False
    try:
        for path in readable:
            _allow_reading(rules, path)
        return bool(libc.syscall(_LANDLOCK_RESTRICT, rules, 0) == 0)
    finally:
        os.close(rules)


def _allow_reading(rules: int, path: Path) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # not on this machine: nothing to allow
    try:
        rights = _READ if path.is_dir() else 1 << 2
        rule = struct.pack("<Qi", rights, fd)
        if libc.syscall(_LANDLOCK_ADD, rules, _LANDLOCK_RULE_PATH_BENEATH, rule, 0) != 0:
            raise OSError(ctypes.get_errno(), f"landlock refused a rule for {path}")
    finally:
        os.close(fd)


def _seccomp() -> bool:
    machine = platform.machine()
    if machine not in _REFUSED:
        return False
    program = _filter_program(machine)
    code = b"".join(struct.pack("<HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("<HxxxxxxQ", len(program), ctypes.addressof(buffer))
    return bool(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header, 0, 0) == 0)


def _filter_program(machine: str) -> list[tuple[int, int, int, int]]:
    """Threads may be made, processes may not; clone3 says "not implemented" so that libc falls back to clone, whose flags can be read."""
    refuse = (_RET, 0, 0, _ERRNO | errno.EPERM)
    program: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _OFFSET_ARCH),
        (_JEQ, 1, 0, _AUDIT_ARCH[machine]),
        (_RET, 0, 0, _KILL),
        (_LOAD, 0, 0, _OFFSET_NUMBER),
        (_JGE, 0, 1, _X32_BIT),
        (_RET, 0, 0, _KILL),
        (_JEQ, 0, 1, _CLONE3),
        (_RET, 0, 0, _ERRNO | errno.ENOSYS),
        (_JEQ, 0, 4, _CLONE[machine]),
        (_LOAD, 0, 0, _OFFSET_ARG0),
        (_JSET, 1, 0, _CLONE_THREAD),
        refuse,
        (_RET, 0, 0, _ALLOW),
    ]
    for numbers, argument, values in _REFUSED_BY_ARGUMENT:
        looked_at = [step for value in values for step in ((_JEQ, 0, 1, value), refuse)]
        block = [(_LOAD, 0, 0, _OFFSET_ARG0 + 8 * argument), *looked_at, (_RET, 0, 0, _ALLOW)]
        program += [(_JEQ, 0, len(block), numbers[machine]), *block]
    for number in sorted(_REFUSED[machine].values()):
        program += [(_JEQ, 0, 1, number), refuse]
    program.append((_RET, 0, 0, _ALLOW))
    return program
