"""Shared memory: what a runner can and cannot reach."""

import ctypes
import fcntl
import os
import signal

import pytest

from evokernel.runner.buffers import ALIGNMENT_BYTES, PAGE_BYTES, Arena, Window


def test_both_sides_see_the_same_bytes() -> None:
    arena = Arena([("a", 5), ("b", 3 * PAGE_BYTES)], sealed=False)
    window = Window(os.dup(arena.fd), arena.places.values(), writable=True)
    arena.view("a")[:] = b"hello"
    assert ctypes.string_at(window.address("a"), 5) == b"hello"
    ctypes.memset(window.address("b"), 7, 10)
    assert bytes(arena.view("b")[:11]) == b"\x07" * 10 + b"\x00"


def test_buffers_are_aligned_and_end_at_the_end_of_their_region() -> None:
    arena = Arena([(f"t{n}", n) for n in (1, 255, 256, 257, 4095, 4096, 4097)], sealed=False)
    window = Window(os.dup(arena.fd), arena.places.values(), writable=True)
    for name, place in arena.places.items():
        assert window.address(name) % ALIGNMENT_BYTES == 0
        assert place.lead_bytes >= ALIGNMENT_BYTES
        assert 0 <= place.region_bytes - place.lead_bytes - place.size_bytes < ALIGNMENT_BYTES


def test_a_sealed_arena_cannot_be_mapped_for_writing_by_anyone_else() -> None:
    arena = Arena([("x", 100)], sealed=True)
    with pytest.raises(OSError, match="mmap"):
        Window(os.dup(arena.fd), arena.places.values(), writable=True)
    arena.view("x")[:3] = b"abc"  # the judge still can
    window = Window(os.dup(arena.fd), arena.places.values(), writable=False)
    assert ctypes.string_at(window.address("x"), 3) == b"abc"


@pytest.mark.parametrize("sealed", [True, False])
def test_nobody_can_change_the_size_of_an_arena(sealed: bool) -> None:
    arena = Arena([("x", 3 * PAGE_BYTES)], sealed=sealed)
    theirs = os.dup(arena.fd)
    for size in (0, PAGE_BYTES, arena.size_bytes + PAGE_BYTES):
        with pytest.raises(PermissionError):
            os.ftruncate(theirs, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(theirs, 1033, 0x8)  # F_ADD_SEALS, F_SEAL_WRITE: the judge could not fill its buffers any more
    arena.view("x")[:5] = b"still"
    assert bytes(arena.view("x")[:5]) == b"still"


def test_a_hole_cannot_be_punched_into_what_may_only_be_read() -> None:
    arena = Arena([("x", PAGE_BYTES)], sealed=True)
    arena.view("x")[:3] = b"abc"
    libc = ctypes.CDLL(None, use_errno=True)
    keep_size_and_punch = 0x3
    assert libc.fallocate(arena.fd, keep_size_and_punch, ctypes.c_long(0), ctypes.c_long(arena.size_bytes)) == -1
    with pytest.raises(PermissionError):
        os.pwrite(arena.fd, b"xyz", 0)
    assert bytes(arena.view("x")[:3]) == b"abc"


@pytest.mark.parametrize("offset", [-1, -200, 100, 200])
def test_a_write_just_outside_a_buffer_is_seen(offset: int) -> None:
    arena = Arena([("before", 64), ("x", 100), ("after", 64)], sealed=False)
    window = Window(os.dup(arena.fd), arena.places.values(), writable=True)
    assert arena.damaged() == []
    ctypes.memset(window.address("x") + offset, 0, 1)
    assert arena.damaged() == ["x"]


@pytest.mark.parametrize("offset", [ALIGNMENT_BYTES, -PAGE_BYTES, PAGE_BYTES])
def test_an_access_further_out_faults(offset: int) -> None:
    arena = Arena([("x", 100), ("y", 100)], sealed=False)
    window = Window(os.dup(arena.fd), arena.places.values(), writable=True)
    assert _dies_of_signal(lambda: ctypes.memset(window.address("x") + offset, 0, 1)) == signal.SIGSEGV


def test_a_protected_buffer_can_be_read_and_not_written() -> None:
    arena = Arena([("p", 64)], sealed=False)
    window = Window(os.dup(arena.fd), arena.places.values(), writable=True)
    window.protect("p", writable=False)
    assert ctypes.string_at(window.address("p"), 1) == b"\x00"
    assert _dies_of_signal(lambda: ctypes.memset(window.address("p"), 1, 1)) == signal.SIGSEGV
    window.protect("p", writable=True)
    ctypes.memset(window.address("p"), 1, 1)


def _dies_of_signal(action) -> int:  # type: ignore[no-untyped-def]
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        action()
        os._exit(0)
    return os.WTERMSIG(os.waitpid(pid, 0)[1])
