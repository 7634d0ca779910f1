"""What the native helper makes the threads of a runner forget between two calls."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from evokernel.judge.own_code import build_native

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


@pytest.mark.skipif(platform.machine() != "x86_64", reason="registers of x86-64")
def test_registers_and_modes_do_not_survive(tmp_path: Path, own_folders: Path) -> None:
    (tmp_path / "state.cpp").write_text(STATE)
    library = tmp_path / "state.so"
    subprocess.run(["g++", "-O1", "-mfxsr", "-shared", "-fPIC", str(tmp_path / "state.cpp"), "-o", str(library)], check=True)
    native = build_native(own_folders / "cache" / "evokernel")
    done = subprocess.run([sys.executable, "-c", PROBE, str(library), str(native)], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["9", "0"], done.stdout + done.stderr


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
