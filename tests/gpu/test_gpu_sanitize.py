"""Finalists under the real compute-sanitizer: honest kernels stay verified, accesses and races that the judge's own checks cannot see reject.

Skipped where there is no GPU, or no compute-sanitizer on the path.
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from evokernel import targets
from evokernel.judge.lane import Lane
from evokernel.judge.sanitize import PROGRAM
from evokernel.kernelfile import make_kernel
from evokernel.records import Status

TESTS = Path(__file__).parent.parent
WHY_NOT = targets.get("cuda").available() or (None if shutil.which(PROGRAM) else f"{PROGRAM} is not on the path")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(WHY_NOT is not None, reason=f"no GPU to sanitize on: {WHY_NOT}")]
FINALIST = 1.5  # patience above 1 is what makes a finalist

SOFTMAX = (TESTS / "gpu" / "kernels" / "softmax.cu").read_text()
SUM = "s += expf(a[i] - m);\n"
# One element past the end of x, in the last row; the result is right.
READS_PAST_THE_END = SOFTMAX.replace(SUM, f"{SUM}    if (threadIdx.x == 0) s += 0.f * a[COLS];\n", 1)
# Another warp's word, read before anybody waited for it to be written; the result is right, since the word is not used.
RACES = SOFTMAX.replace(
    "__shared__ float part[32];\n",
    "__shared__ float part[32];\n    __shared__ int word[BLOCK];\n    word[threadIdx.x] = threadIdx.x;\n"
    "    (void)((volatile int*)word)[(threadIdx.x + 37) % BLOCK];\n", 1,
)  # fmt: skip
HONEST = {  # by task; those with barriers, clusters and bulk copies are what the tools know least of
    "linear": ["gpu/kernels/prepared", "gpu/kernels/vendor_product"], "softmax": ["gpu/kernels/softmax"],
}  # fmt: skip
for file in sorted((TESTS / "cheats" / "honest_cu").glob("*.cu")):
    task = re.search(r"^// TASK (softmax|linear)$", file.read_text(), re.MULTILINE)
    if task and re.search(r"barrier|bulk|cluster|cooperative|pipeline|memcpy_async|cp\.async|pdl", file.read_text()):
        HONEST[task[1]].append(f"cheats/honest_cu/{file.stem}")


@pytest.mark.parametrize(("task", "name"), [(task, name) for task, names in HONEST.items() for name in names])
def test_an_honest_finalist_stays_verified_and_says_what_ran(only_lane: Callable[..., Lane], task: str, name: str) -> None:
    verdict = only_lane(task).judge(make_kernel((TESTS / f"{name}.cu").read_text(), "cuda"), patience=FINALIST)
    assert verdict.status is Status.VERIFIED, verdict.message
    said = verdict.environment.sanitizer
    print(f"{name}: {said} ({verdict.stages_s['sanitizer']:.1f} s)")
    if name.startswith("gpu/"):  # instrumented, a cooperative launch may not fit any more
        assert re.fullmatch(r"memcheck: (without a sandbox, )?clean; racecheck: (without a sandbox, )?clean; initcheck: .*", said), said
        assert "did not" not in said, said


@pytest.mark.parametrize(
    ("text", "says"),
    [(READS_PAST_THE_END, r"memcheck.*\n.*Invalid __global__ read of size 4"), (RACES, r"racecheck.*\n.*[Rr]ace reported")],
    ids=["reads_past_the_end", "races"],
)
def test_what_the_judge_cannot_see_is_found_in_a_finalist_alone(only_lane: Callable[..., Lane], text: str, says: str) -> None:
    assert text != SOFTMAX
    kernel, lane = make_kernel(text, "cuda"), only_lane("softmax")
    quick = lane.judge(kernel)
    assert quick.status is Status.VERIFIED and quick.environment.sanitizer == "", quick.message
    verdict = lane.judge(kernel, patience=FINALIST)
    assert (verdict.status, verdict.stage) == (Status.MISMATCH, "sanitizer"), f"{verdict.message}\n{verdict.environment.sanitizer}"
    assert re.search(says, verdict.message), verdict.message
    print(verdict.message)
