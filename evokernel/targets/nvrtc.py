"""Compiling with NVRTC in worker processes, and turning what it says into a message a model can act on.

Covers: time, memory and crashes of the compiler (a worker is killed and replaced). Does not cover: what the compiler reads; the source it is
given holds no include of the candidate's choice beyond the checked ones (see cuda_source.py).
"""

from __future__ import annotations

import base64
import binascii
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..errors import JudgeError
from ..kernelfile import KernelFileError
from ..kernelfile.located import place_at
from ..kernelfile.scan import tokens
from .compiler import MESSAGE_LINES, tidy

TIME_LIMIT_S = 60.0
PACKAGES = ("cuda-core", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "nvidia-cuda-crt", "nvidia-cuda-cccl")
KERNEL = "kernel.cu"  # the name that `#line` gives to the code
_NAME_MAP, _FIRST_NAME_LINE = "__nv_name_map", 2


@dataclass(frozen=True)
class Compilation:
    """What NVRTC made: device code, PTX, and the mangled name of each name expression; empty where `ok` is false, but for PTX that ptxas refused."""

    ok: bool
    log: str
    cubin: bytes = b""
    ptx: str = ""
    lowered: tuple[str, ...] = ()


def missing() -> str | None:
    """The packages that compiling needs and that are not installed, as one sentence."""
    absent = []
    for package in PACKAGES:
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            absent.append(package)
    if not absent:
        return None
    return f"the cuda target needs the Python package(s) {', '.join(absent)}: pip install 'evokernel-search[cuda]'"


def version() -> str:
    """NVRTC and the headers it reads, by their package versions.

    Raises:
        JudgeError: a package is missing.
    """
    if reason := missing():
        raise JudgeError(reason)
    nvrtc, headers, cccl = (importlib.metadata.version(f"nvidia-cuda-{part}") for part in ("nvrtc", "runtime", "cccl"))
    return f"NVRTC {nvrtc} (headers {headers}, CCCL {cccl})"


@cache
def include_roots() -> tuple[Path, ...]:
    """The header folders of the installed packages; a CUDA toolkit on the machine is not looked at.

    Raises:
        JudgeError: there are none.
    """
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(p) / "cu13" / "include" for p in (spec.submodule_search_locations or ())] if spec else []
    found = next((f.resolve() for f in folders if (f / "cuda_fp16.h").exists()), None)
    if found is None:
        raise JudgeError("the CUDA headers of the package nvidia-cuda-runtime are missing: pip install 'evokernel-search[cuda]'")
    return found, found / "cccl"


class _Worker:
    """One compiler process. Raises: JudgeError: it does not start."""

    def __init__(self) -> None:
        environment = {
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "LC_ALL": "C.UTF-8", "PATH": os.defpath, "TMPDIR": tempfile.gettempdir(),
        }  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-s", str(Path(__file__).with_name("nvrtc_worker.py"))], env=environment, text=True, encoding="utf-8",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            self.end()
            raise JudgeError(f"NVRTC does not start; {missing() or 'reinstall it: pip install --force-reinstall nvidia-cuda-nvrtc cuda-bindings'}")

    def ask(self, request: dict[str, object]) -> Compilation | None:
        """None when the worker ended without an answer.

        Raises:
            JudgeError: the options, which are ours, are refused.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        timer = threading.Timer(TIME_LIMIT_S, self._process.kill)
        timer.start()
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
            reply = json.loads(line)
            if reply.get("ours"):
                raise JudgeError(f"NVRTC does not take its options: {reply['log'].strip()[:300]}")
            if not reply["ok"]:
                return Compilation(False, reply["log"], ptx=reply["ptx"])
            return Compilation(True, reply["log"], base64.b64decode(reply["cubin"]), reply["ptx"], tuple(reply["lowered"]))
        except (BrokenPipeError, json.JSONDecodeError, binascii.Error):
            return None
        finally:
            timer.cancel()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


_idle: list[_Worker] = []


def compile_source(source: str, names: Sequence[str], options: Sequence[str]) -> Compilation:
    """Compile in an idle worker, or in a new one. Thread-safe: one worker serves one caller at a time.

    Raises:
        JudgeError: the compiler does not start, or does not know the architecture or another option.
    """
    request: dict[str, object] = {"source": source, "names": list(names), "options": list(options)}
    for last in (False, True):
        started = time.monotonic()
        try:
            worker = _idle.pop()
        except IndexError:
            worker = _Worker()
        compilation = worker.ask(request)
        if compilation is not None:
            _idle.append(worker)
            return compilation
        worker.end()
        if last or time.monotonic() - started > TIME_LIMIT_S / 2:
            break  # the source is too much for the compiler; a worker that died early may have died of something else
    return Compilation(False, "")


_DIAGNOSTIC = re.compile(r"^(?P<file>.+?)\((?P<line>\d+)\): (?:catastrophic )?error(?: #\d+(?:-D)?)?: (?P<text>.*)$")
_PTXAS = re.compile(r"^\0?(?:ptxas|nvlink)(?: application ptx input, line (\d+);)?\s*(?:fatal|error)\s*: (.*)$")
_HINTS = (
    (re.compile(r'identifier "(cuda[A-Z]\w*|torch|at|c10|dim3_launch)"'), "; a kernel file holds device code only: describe launches in plan lines"),
    (re.compile(r'identifier "(torch|at|c10|std)"|namespace "std" has no member'), "; there is no host library here: use <cuda/std/...> headers"),
    (re.compile(r"__host__ function|device-side kernel launch"), "; a kernel file holds device code only: describe launches in plan lines"),
    (re.compile(r"too much global constant data"), "; `__constant__` holds 65536 bytes in all: declare larger tables `__device__ const`"),
    (re.compile(r"too much shared data"), "; over 48 KB use `extern __shared__` and give the size in <<<grid, block, bytes>>>"),
)


def errors_of(log: str) -> list[tuple[str, int, int, str]]:
    """(file, line, column, text) of each error in an NVRTC log; column 0 where it is not shown. Errors of ptxas have
    the file "" and the line of the PTX, or 0."""
    lines, found = log.split("\n"), []
    for index, line in enumerate(lines):
        if match := _PTXAS.match(line):
            found.append(("", int(match[1] or 0), 0, match[2]))
        if not (match := _DIAGNOSTIC.match(line)):
            continue
        text, column = match["text"], 0
        for follow in lines[index + 1 : index + 8]:
            if not follow.strip() or _DIAGNOSTIC.match(follow):
                break
            if re.fullmatch(r"\s+\^", follow):
                column = len(follow) - 2
            elif follow.startswith(" " * 10):
                text += f" {follow.strip()}"
        found.append((match["file"], int(match["line"]), column, text))
    return found


def message_of(compilation: Compilation, code: str, launch_lines: Sequence[int]) -> str:
    """At most 30 lines about a failed compilation, with the kernel file's own lines.

    `code` is the kernel file's text; `launch_lines` are the plan lines of the name expressions, in their order.
    """
    if not compilation.log:
        return f"the compiler did not finish within {TIME_LIMIT_S:.0f} s and 8 GiB: use less template recursion, unrolling and constexpr computation"
    source, shown, seen = code.split("\n"), [], set()
    errors = errors_of(compilation.log)
    for file, number, column, raw in errors:
        if "Error in parsing name expression" in raw or ("Ptx assembly aborted" in raw and len(errors) > 1):
            continue
        of_launch = file == _NAME_MAP
        line = launch_lines[min(max(number - _FIRST_NAME_LINE, 0), len(launch_lines) - 1)] if of_launch else number
        text = tidy(raw).removesuffix(".") + next((hint for pattern, hint in _HINTS if pattern.search(raw)), "")
        where = f"error: in this launch: {_name_error(text)}" if of_launch else f"error: {text}"
        if not file and number:
            entry = str(_of_assembly(where, "".join(compilation.ptx.split("\n")[number - 1 : number]).strip(), code))
        elif (of_launch or file == KERNEL) and 0 < line <= len(source):
            entry = str(KernelFileError(where, line, 0 if of_launch else column, tidy(source[line - 1])))
        else:
            entry = f"{where} (in <{file.rsplit('/', 1)[-1]}>)" if file else where
        if entry not in seen:
            shown += entry.split("\n")
            seen.add(entry)
    if not shown:
        shown = [tidy(line) for line in compilation.log.split("\n") if line.strip()]
    return "\n".join(shown[:MESSAGE_LINES])


def _of_assembly(message: str, instruction: str, code: str) -> KernelFileError:
    """A message of ptxas with the instruction it is about, at the first string of the code that names its operation."""
    message = f"{message}: {tidy(instruction)}"
    operation = next((word for word in instruction.split() if not word.startswith(("@", "{")) and "." in word), "\0")
    found = (t.offset + t.text.find(operation) for t in tokens(code) if t.kind in ("string", "raw") and operation in t.text)
    place = next(found, None)
    return KernelFileError(message) if place is None else place_at(code, place).error(message)


def _name_error(text: str) -> str:
    """NVRTC's words about a name expression, as a launch's."""
    if "non-__global__" in text:
        return "this is not a __global__ function"
    if "identifier" in text and "is undefined" in text:
        return text.replace("identifier", "the kernel").replace("is undefined", "is not in the file (or a template argument is not known there)")
    if "which instance of" in text:
        text += "; CUDA has functions called norm, erf ...: give the kernel another name, or write its template arguments"
    return text.replace("function template", "the template").replace("overloaded function", "the overloaded kernel")
