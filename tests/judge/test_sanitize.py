"""The replay of finalists under compute-sanitizer, as far as it goes without a GPU: what is handed over, and what is made of the tools' reports."""

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evokernel import codec
from evokernel.judge import sanitize
from evokernel.judge.candidate import Candidate
from evokernel.judge.cases import Cases
from evokernel.judge.contestant import Failure
from evokernel.kernelfile import make_kernel
from evokernel.records import Status
from evokernel.runner.replay import JOB, Job
from evokernel.task import load_task
from tests.targets.cuda_offline import CompileOnly, needs_compiler

TESTS = Path(__file__).parent.parent
BEGIN = "========= COMPUTE-SANITIZER\nbuffer x@0 0x7f0000000000\nbuffer out@0 0x7f0000100000\n"
# The forms are those of NVIDIA's manual (Compute Sanitizer, memcheck and racecheck chapters).
OUTSIDE = BEGIN + """========= Invalid __global__ read of size 4 bytes
=========     at void norm::rows<(int)4>(const float *, float *)+0x2b0 in kernel.cu:14
=========     by thread (3,0,0) in block (63,0,0)
=========     Access to 0x7f0000020800 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f0000000000 of size 133,120 bytes
=========
========= ERROR SUMMARY: 1 error
"""
RACE = """========= COMPUTE-SANITIZER
========= {word}: Race reported between Write access at rows(const float *)+0x140 in kernel.cu:9
=========     and Read access at rows(const float *)+0xe0 in kernel.cu:11 [4 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
LIBRARY = OUTSIDE.replace("norm::rows<(int)4>", "cublas::gemm_arrows<(int)4>")


def test_a_report_about_the_kernels_own_code_counts_and_names_buffers() -> None:
    (error,) = sanitize.read(OUTSIDE, {"rows"}).errors
    assert "kernel.cu:14" in error and "by thread (3,0,0) in block (63,0,0)" in error
    assert "nearest allocation at `x` of size 133,120 bytes" in error
    assert sanitize.read(LIBRARY, {"rows"}) == sanitize.Report()
    for place in ("<unnamed>::", "(anonymous namespace)::", "outer::<unnamed>::", "kinds<(int)4>::", ""):
        assert len(sanitize.read(OUTSIDE.replace("norm::", place), {"rows"}).errors) == 1, place
    assert sanitize.read(f"{BEGIN}========= ERROR SUMMARY: 0 errors\n", {"rows"}).text == "clean"


def test_only_errors_are_errors() -> None:
    assert len(sanitize.read(RACE.format(word="Error"), {"rows"}).errors) == 1
    warned = sanitize.read(RACE.format(word="Warning"), {"rows"})
    assert not warned.errors and len(warned.remarks) == 1 and warned.text.startswith("1 reported, first Warning: Race reported")


@pytest.fixture
def candidate(tmp_path: Path) -> Any:
    """A kernel that prepares weights, with what the judge has of its task, on a machine that has the compiler alone."""
    cases = Cases(load_task(TESTS / "cheats" / "tasks" / "linear.py"), master_seed=5)
    shop = SimpleNamespace(
        loaded=cases.loaded, cases=cases, device=CompileOnly().device(), target=CompileOnly(), builds=tmp_path / "builds", environ=dict(os.environ)
    )
    return Candidate(shop, make_kernel((TESTS / "gpu" / "kernels" / "prepared.cu").read_text(), "cuda"), 1.0)  # type: ignore[arg-type]


@needs_compiler
def test_a_call_is_written_with_every_buffer_in_its_exact_size(candidate: Any, tmp_path: Path) -> None:
    case = candidate.shop.cases.timed()[0]
    job = sanitize.write(candidate, candidate.build(0, None), case, tmp_path)
    assert codec.loads(Job, (tmp_path / JOB).read_text()) == job
    signature = candidate.shop.loaded.task.signature
    assert job.sizes_bytes == {"x@0": signature.tensor("x").size_bytes, "out@0": signature.tensor("out").size_bytes} | {
        n: signature.tensor(n).size_bytes for n in ("linear_weight", "linear_bias")
    } | {"wt": signature.tensor("linear_weight").size_bytes}
    assert (tmp_path / "x@0.bin").read_bytes() == case.draw.tensors["x"].numpy().tobytes()
    assert (tmp_path / "linear_weight.bin").read_bytes() == case.weights["linear_weight"].numpy().tobytes()
    assert {f.stem for f in tmp_path.glob("*.bin")} == {"x@0", "linear_weight", "linear_bias"}


@needs_compiler
@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo '========= ERROR SUMMARY: 0 errors'", "memcheck: clean; racecheck: clean; initcheck: clean"),
        ("case $* in *confined) exit 3;; esac; echo '========= ERROR SUMMARY: 0 errors'", "memcheck: without a sandbox, clean; racecheck"),
        ("case $* in *confined) exit 3;; esac; echo '========= Warning: at product(' ; echo '========= ERROR SUMMARY: 0 errors'",
         "memcheck: without a sandbox, 1 reported, first Warning: at product(; racecheck"),
        ("echo '========= Error: no such option'; exit 1", "memcheck: did not run: Error: no such option; racecheck"),
        ("sleep 60", "memcheck: did not finish within 1 s"),
        (None, "not run: compute-sanitizer (CUDA toolkit) is not on the path"),
    ],
)  # fmt: skip
def test_a_tool_that_finds_nothing_or_does_not_run_rejects_nothing(
    candidate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, says: str
) -> None:
    monkeypatch.setattr(sanitize, "_LIMIT_S", 1.0 if script == "sleep 60" else 30.0)
    assert sanitize.sanitized(with_tool(candidate, tmp_path, script), candidate.build(0, None)).startswith(says)


@needs_compiler
def test_no_room_for_the_inputs_is_no_error(candidate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = candidate.build(0, None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert sanitize.sanitized(with_tool(candidate, tmp_path, "true"), build).startswith("not run: [Errno 2]")


@needs_compiler
@pytest.mark.parametrize(("tool", "said"), [("memcheck", OUTSIDE), ("racecheck", RACE.format(word="Error"))])
def test_memcheck_and_racecheck_reject_and_initcheck_does_not(candidate: Any, tmp_path: Path, tool: str, said: str) -> None:
    (tmp_path / "said").write_text(said.replace("rows", "product"))
    build = candidate.build(0, None)
    script = f"case $* in *{{tool}}*) cat '{tmp_path}/said'; exit 86;; esac; echo '========= ERROR SUMMARY: 0 errors'"
    with pytest.raises(Failure) as caught:
        sanitize.sanitized(with_tool(candidate, tmp_path, script.format(tool=tool)), build)
    assert caught.value.status is Status.MISMATCH
    assert f"compute-sanitizer {tool}" in caught.value.message and "kernel.cu:" in caught.value.message
    assert len(caught.value.message.splitlines()) <= 30
    found = sanitize.sanitized(with_tool(candidate, tmp_path, script.format(tool="initcheck")), build)
    assert "memcheck: clean" in found and "initcheck: 1 reported" in found


def with_tool(candidate: Any, folder: Path, script: str | None) -> Any:
    """The candidate on a machine where that script is the tool: it stands for the real one's exit codes and output alone."""
    tool = folder / "bin" / "compute-sanitizer"
    tool.parent.mkdir(exist_ok=True)
    if script:
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
    candidate.shop.environ["PATH"] = str(tool.parent)
    return candidate
