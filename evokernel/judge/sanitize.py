"""One call of a finalist replayed under NVIDIA's compute-sanitizer, where the CUDA toolkit is installed.

Covers: reads and writes outside of a buffer (memcheck; each buffer is an allocation with a gap behind it), races in shared memory (racecheck); both
reject. Reads of memory that nobody wrote (initcheck) are only reported: padding is read so without harm. So are warnings, and races in kernels with
barriers in memory (mbarrier) or at which warps only arrive (bar.arrive), of which racecheck knows too little. What is found in library kernels does
not count.
Does not cover: other inputs than those of one own draw, other shapes than the timed one, races in global memory.

The replay is a process with a runner's environment and confinement. Where a tool does not work inside that, it runs once more without Landlock and
seccomp, and the verdict says so; a `cuda` kernel has no host code that could use it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from .. import codec
from ..records import Status
from ..runner.processes import kill_tree
from ..runner.replay import CONFINED, JOB, Job
from .candidate import Build, Candidate, without_code
from .cases import Case
from .contestant import Failure
from .memory import flat, plan_specs, slotted
from .zygotes import zygote_environment

PROGRAM = "compute-sanitizer"
_TOOLS = {"memcheck": ("--report-api-errors", "no", "--padding", "512"), "racecheck": (), "initcheck": ()}
_ADVICE = {
    "memcheck": "keep every index inside its buffer: mind the last block, the tail of a row, and vector loads past the end",
    "racecheck": "put __syncthreads() (or __syncwarp() within a warp) between these accesses",
}  # fmt: skip
_FOUND, _LIMIT_S, _SHOWN = 86, 150.0, 3


@dataclass(frozen=True)
class Report:
    """What one tool said of the kernel's own functions, a text of some lines each; `how` it was run; `problem`: why it did not get to an end."""

    errors: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    how: str = ""
    problem: str = ""

    @property
    def text(self) -> str:
        """In one line."""
        said = (*self.errors, *self.remarks)
        return self.problem or self.how + (f"{len(said)} reported, first {' '.join(said[0].split())[:200]}" if said else "clean")


def sanitized(candidate: Candidate, build: Build) -> str:
    """Replay a build under each tool, all at once; what they said, in one line.

    Raises:
        Failure: memcheck or racecheck reports an error in one of the kernel's own functions.
    """
    shop, functions = candidate.shop, {re.split(r"::(?![^<]*>)", one.function)[-1].partition("<")[0] for one in build.plan.launches}
    program = shutil.which(PROGRAM, path=shop.environ.get("PATH"))
    if program is None or not functions:
        return "not run: the plan launches no kernel of its own" if program else f"not run: {PROGRAM} (CUDA toolkit) is not on the path"
    environment = {n: v for n, v in zygote_environment(1, shop.environ).items() if not n.startswith("OMP_")}  # those pin all of it to one core
    commands = ([program, "--tool", tool, *options] for tool, options in _TOOLS.items())
    try:
        with tempfile.TemporaryDirectory(prefix="evokernel-replay-") as folder, ThreadPoolExecutor(len(_TOOLS)) as pool:
            write(candidate, build, shop.cases.timed()[0], Path(folder))
            found = pool.map(lambda command: _watched(command, Path(folder), environment, functions), commands)
            reports = dict(zip(_TOOLS, found, strict=True))
    except OSError as error:  # no room for the inputs, say
        return f"not run: {error}"
    for tool, advice in _ADVICE.items():
        errors = reports[tool].errors[:_SHOWN]
        if errors and not (tool == "racecheck" and "barriers" in build.artifact.resources.features):
            raise Failure(Status.MISMATCH, "\n".join((f"{PROGRAM} {tool}, in one call on the task's own inputs:", *errors, advice)))
    return "; ".join(f"{tool}: {report.text}" for tool, report in reports.items())


def write(candidate: Candidate, build: Build, case: Case, folder: Path) -> Job:
    """Put a case's call of a build into a folder, as runner/replay.py takes it."""
    task, plan = candidate.shop.loaded.task, candidate.plan_for(build, case)
    signature, own = task.variants[build.variant], plan_specs(plan)
    once = {w.name for w in signature.weights} | {b.name for b in plan.buffers if b.kind != "scratch"}
    sizes = {s.name if s.name in once else slotted(s.name, 0): s.size_bytes for s in (*signature.tensors, *own)}
    given = {slotted(t.name, 0): flat(case.draw.tensors[t.name], t.span) for t in signature.inputs}
    given |= {w.name: flat(case.weights[w.name], w.span) for w in signature.weights}
    for name, tensor in given.items():
        tensor.detach().view(torch.uint8).numpy().tofile(folder / f"{name}.bin")
    job = Job(without_code(plan), build.artifact, (*signature.tensors, *own), sizes, task.options.precision)
    (folder / JOB).write_text(codec.dumps(job), encoding="utf-8")
    return job


def _watched(tool: list[str], folder: Path, environment: Mapping[str, str], functions: Iterable[str]) -> Report:
    """One tool's report: of a confined replay, or of one that is not, where the tool does not get to an end in a confined one."""
    options = ("--error-exitcode", str(_FOUND), "--show-backtrace", "device", "--target-processes", "application-only", "--launch-timeout", "0")
    replayed, pipe, said = (*options, sys.executable, "-P", "-m", "evokernel.runner.replay", str(folder)), subprocess.PIPE, ""
    for level, how in ((CONFINED, ""), ("open", "without a sandbox, ")):
        process = subprocess.Popen(
            [*tool, *replayed, level], env=dict(environment), stdin=subprocess.DEVNULL, stdout=pipe, stderr=subprocess.STDOUT, text=True,
            errors="replace", start_new_session=True,
        )  # fmt: skip
        try:
            said, _ = process.communicate(timeout=_LIMIT_S)
        except subprocess.TimeoutExpired:
            kill_tree(process.pid)
            process.communicate()
            return Report(problem=f"did not finish within {_LIMIT_S:.0f} s")
        report = read(said, functions)
        if report.errors or (process.returncode in (0, _FOUND) and "SUMMARY" in said):
            return replace(report, how=how)
    return Report(problem=f"did not run: {([line.strip(' =') for line in said.splitlines() if line.strip(' =')] or ['no output'])[-1][:200]}")


def read(said: str, functions: Iterable[str]) -> Report:
    """The report in a tool's output. A paragraph counts when it names one of the kernel's own functions; addresses of buffers become their names."""
    own = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, functions))})\s*[(<+]")  # in whatever namespace: it may have no name
    names = {address: f"`{name.partition('@')[0]}`" for name, address in re.findall(r"^buffer (\S+) (0x\w+)$", said, re.MULTILINE)}
    theirs = "\n".join(line[9:] for line in said.splitlines() if line.startswith("========="))
    named = re.sub(r"0x\w+", lambda m: names.get(m[0], m[0]), theirs)
    paragraphs = ([line.strip() for line in p.splitlines()] for p in re.split(r"\n(?!   )", named))  # details are indented
    ours = [text for p in paragraphs if own.search(text := "\n  ".join(p[:6]))]
    mild = tuple(text for text in ours if text.lower().startswith(("warning", "info")))
    return Report(tuple(text for text in ours if text not in mild), mild)
