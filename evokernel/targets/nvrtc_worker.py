"""A process that compiles for one caller: one JSON line in, one JSON line out, until its standard input closes.

Covers: memory and time of a compilation (the process may be killed or run out; the caller starts another). Run as a script, so that it
imports nothing of the package: it is up in 0.15 s. Precompiled headers live as long as the process: NVRTC maps them at fixed addresses.

    {"source": text, "names": [name expressions], "options": [...]}
    -> {"ok": true, "log": text, "cubin": base64, "ptx": text, "lowered": [mangled names]}
    -> {"ok": false, "log": text}, with "ours" where an option was refused, which is not the source's fault
"""

from __future__ import annotations

import base64
import json
import os
import resource
import signal
import sys
import tempfile

from cuda.bindings import nvrtc

MEMORY_LIMIT_BYTES, TIME_LIMIT_S, PCH_HEAP_BYTES = 8 << 30, 60, 768 << 20


def _text(size: object, get: object, program: nvrtc.nvrtcProgram) -> bytes:
    status, count = size(program)  # type: ignore[operator]
    buffer = b" " * count
    if int(status) or int(get(program, buffer)[0]):  # type: ignore[operator]
        return b""
    return buffer


def answer(request: dict[str, object], pch_folder: str) -> dict[str, object]:
    """Compile one request."""
    source, names, options = str(request["source"]), list(request["names"]), list(request["options"])  # type: ignore[call-overload]
    if "-pch" in options:
        options.append(f"-pch-dir={pch_folder}")
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], [])
    for name in names:
        nvrtc.nvrtcAddNameExpression(program, name.encode())
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
    log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).decode("utf-8", "replace").strip("\0 ")
    if int(status):
        reply: dict[str, object] = {"ok": False, "log": log or nvrtc.nvrtcGetErrorString(status)[1].decode()}
        if status == nvrtc.nvrtcResult.NVRTC_ERROR_INVALID_OPTION:
            reply["ours"] = True
    else:
        cubin = _text(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
        ptx = _text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program).decode("utf-8", "replace").strip("\0")
        lowered = [nvrtc.nvrtcGetLoweredName(program, name.encode())[1].decode() for name in names]
        reply = {"ok": True, "log": log, "cubin": base64.b64encode(cubin).decode(), "ptx": ptx, "lowered": lowered}
    nvrtc.nvrtcDestroyProgram(program)
    return reply


def main() -> None:
    """Serve; whatever the compiler prints goes to standard error, not between the answers."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    nvrtc.nvrtcSetPCHHeapSize(PCH_HEAP_BYTES)
    with tempfile.TemporaryDirectory(prefix="evokernel-pch-") as folder:
        for line in sys.stdin:
            signal.alarm(TIME_LIMIT_S + 10)  # ends this process even when its caller is gone
            answers.write(json.dumps(answer(json.loads(line), folder)) + "\n")
            answers.flush()
            signal.alarm(0)


if __name__ == "__main__":
    main()
