"""Batches on GPUs: a GPU chosen by its UUID, its lock while it is judged on, and a lane on each of several. Skipped where there is no GPU."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from evokernel import targets
from evokernel.api import Session
from evokernel.batch import judge_batch, line_of, pack
from evokernel.errors import JudgeError
from evokernel.judge import tenant
from evokernel.records import BatchOutcome, Status
from evokernel.targets.driver import gpu_uuid

HERE = Path(__file__).parent
TASK = HERE.parent / "cheats" / "tasks" / "softmax.py"
WHY_NOT = targets.get("cuda").available()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(WHY_NOT is not None, reason=f"no GPU: {WHY_NOT}")]


def listed() -> list[str]:
    """The UUIDs of whole GPUs, as nvidia-smi knows them."""
    said = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    return re.findall(r"UUID: GPU-([0-9a-f-]+)\)", said)


def held(uuid: str) -> bool:
    """Whether a judge that we started is the tenant of this GPU."""
    try:
        tenant.hold(uuid, "a test", lambda: None, wait_s=0.0).close()
    except JudgeError as error:
        assert f"process {os.getpid()} " in str(error)
        return True
    return False


def test_a_batch_on_one_gpu_and_its_lock(tmp_path: Path) -> None:
    kernels = [HERE / "kernels" / "wrong_tail.cu", HERE / "kernels" / "softmax.cu"]
    (tmp_path / "c.jsonl").write_bytes(b"".join(line_of(c) for c in pack(str(TASK), kernels)))
    uuid = gpu_uuid()
    device = f"GPU-{uuid}" if uuid in listed() else "0"
    found: list[BatchOutcome] = []
    seen: list[bool] = []

    def told(outcome: BatchOutcome, left: int) -> None:
        found.append(outcome)
        if left:
            seen.append(held(uuid))

    assert judge_batch(tmp_path / "c.jsonl", tmp_path / "o.jsonl", [device], Session(), told).verdicts == 2, found
    assert [o.verdict.status for o in found if o.verdict] == [Status.MISMATCH, Status.VERIFIED]
    assert seen == [True] and not held(uuid)


@pytest.mark.skipif(WHY_NOT is not None or len(listed()) < 2 or "CUDA_VISIBLE_DEVICES" in os.environ, reason="needs two visible GPUs")
def test_two_gpus_judge_at_once(tmp_path: Path) -> None:
    lines = []
    for rows in (48, 64):
        task = tmp_path / f"softmax{rows}.py"
        task.write_text(f"{TASK.read_text()}\n# {rows}\n")
        lines += [line_of(c) for c in pack(str(task), [HERE / "kernels" / f"{name}.cu" for name in ("wrong_tail", "softmax")])]
    (tmp_path / "c.jsonl").write_bytes(b"".join(lines))
    both: list[bool] = []
    done = judge_batch(
        tmp_path / "c.jsonl", tmp_path / "o.jsonl", [f"GPU-{u}" for u in listed()[:2]], Session(),
        lambda _, left: both.append(left == 3 and all(held(u) for u in listed()[:2])),
    )  # fmt: skip
    assert (done.verdicts, done.verified, done.errors) == (4, 2, 0)
    assert both[0]
