"""Running the C++ compiler on a candidate's text under limits, and turning what it says into a message a model can act on.

Covers: time, memory, CPU seconds, size of files and of messages, one process group that is killed as a whole, an environment without the
caller's variables. Does not cover: what the compiler reads; includes are restricted by `kernelfile.code` before it runs.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..errors import JudgeError

TIME_LIMIT_S, MEMORY_LIMIT_KIB, FILE_LIMIT_BLOCKS = 60.0, 4 << 20, 1 << 17  # 64 MiB in blocks of 512 bytes
PRELUDE_FILE_LIMIT_BLOCKS = 1 << 20
MESSAGE_BYTES, MESSAGE_LINES = 1 << 18, 30
KERNEL, PLAN = "kernel.cpp", "launch-plan"  # file names that `#line` gives to the code and to the shims
MISSING = "g++ is missing: install it (Debian and Ubuntu: apt install g++; Fedora: dnf install gcc-c++), version 11 or newer"


@dataclass(frozen=True)
class Outcome:
    """How a tool ended: its exit code (negative: killed by that signal; None: out of time) and the beginning of what it said."""

    code: int | None
    output: str


@cache
def tool(name: str) -> str | None:
    """The full path of a tool, None where it is not installed."""
    return shutil.which(name)


def gxx() -> str:
    """Raises: JudgeError: there is no g++."""
    path = tool("g++")
    if path is None:
        raise JudgeError(MISSING)
    return path


def run_limited(
    command: list[str], directory: Path, source: bytes = b"", *, file_blocks: int = FILE_LIMIT_BLOCKS, said_bytes: int = MESSAGE_BYTES
) -> Outcome:
    """Run a tool in `directory` with `source` as its standard input.

    Raises:
        OSError: it cannot be started.
    """
    script = f"ulimit -c 0; ulimit -v {MEMORY_LIMIT_KIB}; ulimit -t {int(TIME_LIMIT_S)}; ulimit -f {file_blocks}"
    path = os.pathsep.join([str(Path(command[0]).parent), os.defpath])
    environment = {"PATH": path, "LC_ALL": "C", "TMPDIR": str(directory)}
    (directory / "stdin").write_bytes(source)
    with (directory / "stdin").open("rb") as stdin, (directory / "said").open("wb") as said:
        process = subprocess.Popen(
            ["/bin/sh", "-c", f'{script}; exec "$@"', "sh", *command],
            cwd=directory, env=environment, stdin=stdin, stdout=said, stderr=said, start_new_session=True,
        )  # fmt: skip
        late = threading.Event()

        def stop() -> None:
            late.set()
            _kill_group(process.pid)

        timer = threading.Timer(TIME_LIMIT_S, stop)
        timer.start()  # not wait(timeout): it polls, and loses up to 50 ms of a build of 200
        try:
            code = process.wait()
        finally:
            timer.cancel()
            _kill_group(process.pid)
    with (directory / "said").open("rb") as heard:
        return Outcome(None if late.is_set() else code, heard.read(said_bytes).decode("utf-8", "replace"))


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


_DIAGNOSTIC = re.compile(
    r"^(?P<file>[^\s:][^:]*):(?P<line>\d+):(?:(?P<column>\d+):)? (?P<kind>fatal error|error|note|sorry, unimplemented): (?P<text>.*)$"
)


_REQUIRED = re.compile(rf"^{re.escape(KERNEL)}:(\d+):(\d+):\s+required from")
_HINTS = {
    "evokernel::floating_number": "; a float of the plan fits parameters of type float or double, not a deduced type or an integer",
    'poisoned "asm"': "; inline assembly is refused: use the intrinsics of immintrin.h",
    'poisoned "__asm': "; inline assembly is refused: use the intrinsics of immintrin.h",
    'poisoned "': "; this word is refused in a kernel: choose another name, and leave sections and aliases to the compiler",
}


def message_of(outcome: Outcome, code: str) -> str:
    """At most 30 lines about a failed compilation: errors with the kernel file's own lines, no paths, control characters made visible.

    `code` is the kernel file's text as compiled, for the lines that are shown.
    """
    if outcome.code is None or outcome.code == -signal.SIGXCPU:
        return f"the compiler did not finish within {TIME_LIMIT_S:.0f} s: use less template recursion, unrolling and constexpr computation"
    if re.search(r"CPU time limit exceeded|Killed signal", outcome.output):
        return f"the compiler was stopped after {TIME_LIMIT_S:.0f} s: use less template recursion, unrolling and constexpr computation"
    if re.search(r"virtual memory exhausted|out of memory|cannot allocate memory", outcome.output, re.IGNORECASE):
        return "the compiler ran out of its 4 GiB of memory: use less template recursion and smaller constant tables"
    if re.search(r"File size limit|File too large", outcome.output) or outcome.code == -signal.SIGXFSZ:
        return "the compiled kernel is too large (over 64 MiB): use smaller constant tables and less unrolling"
    lines: list[str] = []
    source = code.split("\n")
    for raw in outcome.output.split("\n"):
        match = _DIAGNOSTIC.match(raw)
        if match and match["kind"] == "note" and not lines:
            continue
        if match:
            lines += _diagnostic(match, source)
        elif required := _REQUIRED.match(raw):
            lines.append(f"line {required[1]}, column {required[2]}: note: required from here")
        elif re.search(r"undefined reference|multiple definition|relocation", raw):
            lines.append(tidy(raw))
    if not lines:
        lines = [tidy(line) for line in outcome.output.split("\n") if line.strip()] or [f"the compiler ended with {outcome.code}"]
    return "\n".join(lines[:MESSAGE_LINES])


def _diagnostic(match: re.Match[str], source: list[str]) -> list[str]:
    file, number, column, text = match["file"], int(match["line"]), int(match["column"] or 0), tidy(match["text"])
    text += next((hint for word, hint in _HINTS.items() if word in text), "") if match["kind"] != "note" else ""
    kind = "note" if match["kind"] == "note" else "error"
    if file not in (KERNEL, PLAN):
        return [f"{kind} in <{file.rsplit('/', 1)[-1]}>: {text}"]
    shown = source[number - 1] if 0 < number <= len(source) else ""
    if file == PLAN:
        return [f"line {number}: {kind}: in this launch: {text}", f"  {tidy(shown)}"]
    where = f"line {number}, column {column}" if column else f"line {number}"
    if kind == "note":
        return [f"{where}: note: {text}"]
    start = max(0, column - 100)
    shown = tidy(shown[start : start + 160])
    return [f"{where}: error: {text}", f"  {shown}", *([f"  {' ' * (column - 1 - start)}^"] if column else [])]


def tidy(text: str) -> str:
    """No folders, no control characters, 300 characters at most."""
    text = re.sub(r"(?<![\w/])/(?:[\w.+-]+/)+", "", text)
    return "".join(c if c.isprintable() else " " if c == "\t" else f"\\x{ord(c):02x}" for c in text)[:300]
