"""What the native helper makes the threads of a runner forget between two calls."""

import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from evokernel.judge.lane import Lane
from evokernel.judge.own_code import build_native
from tests.cheats.fixtures import fixtures

STATE = """
#include <stdint.h>
#include <string.h>
#include <immintrin.h>
struct alignas(16) Area { unsigned char bytes[512]; };
extern "C" void keep() {
    Area area;
    _fxsave64(&area);
    for (int r = 0; r < 8; ++r) memset(area.bytes + 32 + 16 * r, 0x5A, 8);
    _fxrstor64(&area);
    _mm_setcsr(_mm_getcsr() | 0x8040 | 0x3F);  // flush to zero, denormals are zero, all sticky flags
}
extern "C" int kept() {
    Area area;
    _fxsave64(&area);
    int found = _mm_getcsr() != 0x1F80;
    for (int r = 0; r < 8; ++r) found += area.bytes[32 + 16 * r] == 0x5A;
    return found;
}
"""
PROBE = """
import ctypes, sys
state, native = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(sys.argv[2])
state.keep()
before = state.kept()
native.evokernel_scrub()
print(before, state.kept())
"""


def probed(
    folder: Path, source: str, flag: str, probe: str, native: Path, *before: str, environment: dict[str, str] | None = None
) -> tuple[str, str]:
    """What a Python text prints that is given a library, compiled from source, and the scrubbing one; on stdout, and all of it."""
    (folder / "probed.cpp").write_text(source)
    library = folder / "probed.so"
    subprocess.run(["g++", "-O1", flag, "-shared", "-fPIC", str(folder / "probed.cpp"), "-o", str(library)], check=True)
    command = [*before, sys.executable, "-c", probe, str(library), str(native)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return done.stdout, done.stdout + done.stderr


@pytest.mark.skipif(platform.machine() != "x86_64", reason="registers of x86-64")
def test_registers_and_modes_do_not_survive(tmp_path: Path, own_folders: Path) -> None:
    out, said = probed(tmp_path, STATE, "-mfxsr", PROBE, build_native(own_folders / "cache" / "evokernel"))
    assert out.split() == ["9", "0"], said


# A thread whose stack ends where its mapping does: processors with large register areas (AMX) may read a whole area, whatever is in it.
AT_THE_END = """
#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <cstdio>
static void* body(void* scrub) { reinterpret_cast<void (*)()>(scrub)(); return nullptr; }
int main(int, char** argv) {
    void* scrub = dlsym(dlopen(argv[1], RTLD_NOW), "evokernel_scrub");
    const size_t size = 1 << 20;
    char* stack = static_cast<char*>(mmap(nullptr, size + 65536, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(stack, size, PROT_READ | PROT_WRITE);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, stack, size);
    pthread_t thread;
    if (!scrub || pthread_create(&thread, &attributes, body, scrub)) return 2;
    pthread_join(thread, nullptr);
    puts("scrubbed");
}
"""


def test_nothing_past_a_stack_is_read(tmp_path: Path, own_folders: Path) -> None:
    (tmp_path / "thread.cpp").write_text(AT_THE_END)
    subprocess.run(["g++", "-O1", str(tmp_path / "thread.cpp"), "-o", str(tmp_path / "thread"), "-ldl", "-pthread"], check=True)
    native = build_native(own_folders / "cache" / "evokernel")
    done = subprocess.run([str(tmp_path / "thread"), str(native)], capture_output=True, text=True, check=False, env={"OMP_NUM_THREADS": "1"})
    assert (done.returncode, done.stdout) == (0, "scrubbed\n"), done.stderr


# Writes a word all over a megabyte of each thread's stack, from its first frame down, and counts how many of them are there later. By hand, as
# compiled functions have frames of their own.
STACKS = """
#include <sys/mman.h>
#include <stdint.h>
extern "C" void GOMP_parallel(void (*)(void*), void*, unsigned, unsigned);
extern "C" __attribute__((naked)) void mark(void*) {
    asm("lea -1048576(%rsp), %rdi; mov $1048576, %ecx; mov $0x5A, %eax; rep stosb; ret");
}
extern "C" __attribute__((naked)) void count(void*) {
    asm("lea -1048576(%rsp), %rsi; xor %eax, %eax;"
        "1: cmpl $0x5A5A5A5A, (%rsi); jne 2f; inc %rax; 2: add $4, %rsi; cmp %rsp, %rsi; jb 1b;"
        "lock addq %rax, (%rdi); ret");
}
static void touch_one(void*) {
    char* at = static_cast<char*>(__builtin_frame_address(0)) - (1 << 19);
    *static_cast<volatile char*>(at) = 0x5A;
}
static void resident_pages(void* found) {
    unsigned char pages[256] = {};
    const uintptr_t page = reinterpret_cast<uintptr_t>(__builtin_frame_address(0)) & ~uintptr_t(4095);
    mincore(reinterpret_cast<void*>(page - (1 << 20)), 1 << 20, pages);
    for (unsigned char page : pages) __atomic_fetch_add(static_cast<long*>(found), page & 1, __ATOMIC_SEQ_CST);
}
extern "C" void mark_all() { mark(nullptr); GOMP_parallel(mark, nullptr, 0, 0); }
extern "C" long count_all() { long n = 0; count(&n); GOMP_parallel(count, &n, 0, 0); return n; }
extern "C" void touch() { GOMP_parallel(touch_one, nullptr, 0, 0); }
extern "C" long resident() { long n = 0; GOMP_parallel(resident_pages, &n, 0, 0); return n; }
"""
STACKS_PROBE = """
import ctypes, sys
stacks, native = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(sys.argv[2])
stacks.count_all.restype = stacks.resident.restype = ctypes.c_long
native.evokernel_scrub()
stacks.touch()
native.evokernel_scrub()
print(stacks.resident())
for _ in range(3):
    stacks.mark_all()
    before = stacks.count_all()
    native.evokernel_scrub()
    print(before, stacks.count_all())
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="assembly of x86-64")
def test_no_word_of_a_call_is_left_on_a_stack_and_no_other_page_is_touched(tmp_path: Path, own_folders: Path) -> None:
    """To the last one: a gap in a frame of the scrubbing function holds a counter."""
    native = build_native(own_folders / "cache" / "evokernel")
    limited = ("bash", "-c", 'ulimit -s 2048; exec "$@"', "-")
    out, said = probed(tmp_path, STACKS, "-fopenmp", STACKS_PROBE, native, *limited, environment={"OMP_NUM_THREADS": "2", "OMP_STACKSIZE": "2M"})
    resident, *counts = out.split()
    assert int(resident) < 2 * 64, said  # of 2 times 256
    assert all(int(before) > 2 << 18 for before in counts[::2]), said
    assert counts[1::2] == ["0"] * 3, said


def test_all_the_work_is_in_the_time_of_a_warm_call(lane_for: Callable[[Path], Lane]) -> None:
    """A sixth of it where the stack still holds what the call that warms up has computed."""
    fixture = next(f for f in fixtures("cpp") if f.name == "finds_no_answers_on_the_stack")
    verdict = lane_for(fixture.task).judge(fixture.kernel, patience=0.3)
    assert verdict.timing
    p10_us = {mode.mode: mode.p10_us for mode in verdict.timing.modes}
    assert p10_us["warm"] > p10_us["cold"] / 2, verdict.timing.modes
