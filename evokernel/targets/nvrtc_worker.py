"""A process that compiles for one caller: one JSON line in, one JSON line out, until its standard input closes.

Covers: memory and time of a compilation (the process may be killed or run out; the caller starts another). Run as a script, so that it
imports nothing of the package: it is up in 0.15 s. Precompiled headers (some 300 MB a set)
live as long as the process: NVRTC maps them at fixed addresses. It says "ready" first.

    {"source": text, "names": [name expressions], "options": [...]}
    -> {"ok": true, "log": text, "cubin": base64, "ptx": text, "lowered": [mangled names]}
    -> {"ok": false, "log": text, "ptx": text where ptxas refused it}, with "ours" where an option was refused, which is not the source's fault
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from cuda.bindings import nvrtc

MEMORY_LIMIT_BYTES, TIME_LIMIT_S, PCH_HEAP_BYTES, PCH_FOLDER_BYTES = 8 << 30, 60, 768 << 20, 3 << 30
_PREFIX = "evokernel-nvrtc-"


def _bytes(size: Callable[..., Any], get: Callable[..., Any], program: nvrtc.nvrtcProgram) -> bytes:
    """What NVRTC's pair of functions gives; it fills the buffer in place."""
    _, count = size(program)
    buffer = b" " * int(count)
    get(program, buffer)
    return buffer


def answer(request: dict[str, Any], pch_folder: Path) -> dict[str, Any]:
    """Compile one request."""
    source, names, options = request["source"], request["names"], request["options"]
    if "-pch" in options:
        options.append(f"-pch-dir={pch_folder}")
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], [])
    for name in names:
        nvrtc.nvrtcAddNameExpression(program, name.encode())
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
    log = _bytes(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).decode("utf-8", "replace").strip("\0 ")
    ptx = _bytes(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program).decode("utf-8", "replace").strip("\0")
    if int(status):
        reply: dict[str, Any] = {"ok": False, "log": log or nvrtc.nvrtcGetErrorString(status)[1].decode(), "ptx": ptx}
        if status == nvrtc.nvrtcResult.NVRTC_ERROR_INVALID_OPTION:
            reply["ours"] = True
    else:
        cubin = _bytes(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
        lowered = [nvrtc.nvrtcGetLoweredName(program, name.encode())[1].decode() for name in names]
        reply = {"ok": True, "log": log, "cubin": base64.b64encode(cubin).decode(), "ptx": ptx, "lowered": lowered}
    nvrtc.nvrtcDestroyProgram(program)
    return reply


def _folder() -> tuple[Path, IO[bytes]]:
    """A folder for precompiled headers with the lock that keeps it ours, and an end to those whose lock nobody holds any more.

    Process ids would not do: workers of judges in different PID namespaces share the folder for temporary files.
    """
    for lock in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*.lock"):
        with suppress(OSError), lock.open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
            lock.unlink()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    ours = Path(f"{folder}.new").open("wb")  # noqa: SIM115 - held as long as the process lives
    fcntl.flock(ours, fcntl.LOCK_EX)
    Path(ours.name).rename(f"{folder}.lock")  # under this name others look for it, and it is locked by then
    return folder, ours


def main() -> None:
    """Serve; whatever the compiler prints goes to standard error, not between the answers."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    nvrtc.nvrtcSetPCHHeapSize(PCH_HEAP_BYTES)
    folder, lock = _folder()
    os.chdir(folder)
    answers.write("ready\n")
    answers.flush()
    try:
        for line in sys.stdin:
            if sum(f.stat().st_size for f in folder.iterdir()) > PCH_FOLDER_BYTES:
                for file in folder.iterdir():
                    file.unlink()
            signal.alarm(TIME_LIMIT_S + 10)  # ends this process even when its caller is gone
            answers.write(json.dumps(answer(json.loads(line), folder)) + "\n")
            answers.flush()
            signal.alarm(0)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        Path(f"{folder}.lock").unlink(missing_ok=True)
        lock.close()


if __name__ == "__main__":
    main()
