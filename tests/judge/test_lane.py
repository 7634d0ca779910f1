"""The judge process from outside: hangs, crashes, floods, secrets, and that nothing survives it."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from evokernel.errors import JudgeError, TaskError
from evokernel.judge.lane import Lane, LaneSettings
from evokernel.kernelfile import make_kernel
from evokernel.records import Status
from evokernel.runner.processes import children

FIXTURES = Path(__file__).parent.parent / "cheats"
MODEL = """
import os, subprocess, sys, time
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) + 1

def get_inputs():
    return [torch.randn(32, 64)]
"""
RELU = """// @launch f(x, out, x.numel)
void f(const float* x, float* y, int64_t n) { for (int64_t i = 0; i < n; ++i) y[i] = (x[i] > 0 ? x[i] : 0) + 1; }
"""


@pytest.fixture
def make_lane(tmp_path: Path, own_folders: Path):  # type: ignore[no-untyped-def]
    lanes: list[Lane] = []

    def make(source: str, environ: dict[str, str] | None = None, limit_s: float = 30.0) -> Lane:
        file = tmp_path / "task.py"
        file.write_text(source)
        settings = LaneSettings(
            str(file), "cpp", own_folders / "cache" / "evokernel", environ or dict(os.environ), phase_limit_s=limit_s, baselines=("eager",)
        )
        lanes.append(Lane(settings))
        return lanes[-1]

    yield make
    for lane in lanes:
        lane.close()


def gone(name: str) -> bool:
    """Whether no process has `name` on its command line any more, soon."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        alive = [p for p in Path("/proc").glob("[0-9]*") if p.name != str(os.getpid()) and name in _command_line(p)]
        if not alive:
            return True
        time.sleep(0.05)
    return False


def _command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""


@pytest.mark.parametrize(("where", "named"), [("import", "importing the task file"), ("inputs", "get_inputs()")])
def test_a_hang_with_a_child_in_a_new_session_ends_with_everything_gone(make_lane: Callable[..., Lane], where: str, named: str) -> None:
    mark = f"evokernel_child_{os.getpid()}_{where}"
    hang = f"subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)  # {mark}'], start_new_session=True)\n{{0}}while True: pass\n"
    body = hang.format("") if where == "import" else ""
    inputs = MODEL if where == "import" else MODEL.replace("    return [torch", f"    {hang.format('    ')}    return [torch")
    lane = make_lane(inputs + body, limit_s=3.0)
    with pytest.raises(TaskError, match="did not finish within 3 s") as caught:
        lane.admit()
    assert named in str(caught.value)
    assert gone(mark)


def test_a_task_that_ends_the_process_is_named_with_what_it_printed(make_lane: Callable[..., Lane]) -> None:
    lane = make_lane(MODEL + "print('[/red] last words \\x1b[2J', flush=True)\nos._exit(0)\n")
    with pytest.raises(TaskError, match="importing the task file") as caught:
        lane.admit()
    assert "[/red] last words \\x1b[2J" in str(caught.value)


def test_a_flood_is_drained_and_kept_in_part_and_secrets_stay_outside(make_lane: Callable[..., Lane]) -> None:
    noise = "        os.write(1, b'\\xff raw \\r' * 20000)\n        print('{\"result\": 1}' * 5000)\n        return torch.relu"
    environ = {**os.environ, "SOME_API_KEY": "key-7431", "MY_PLAIN_SETTING": "plain-7431"}
    lane = make_lane(MODEL.replace("        return torch.relu", noise) + "print(dict(os.environ), flush=True)\n", environ)
    verdict = lane.judge(make_kernel(RELU, "cpp"))
    assert verdict.status is Status.VERIFIED, verdict.message
    assert len(lane.printed()) < 4 * 70_000
    assert "[...]" in lane.printed()
    assert "plain-7431" in lane.printed() and "key-7431" not in lane.printed()


def test_a_judge_that_dies_is_started_again(make_lane: Callable[..., Lane]) -> None:
    lane = make_lane(MODEL)
    first = lane.admit()
    assert lane._process
    for pid in children(lane._process.pid):
        os.kill(pid, signal.SIGKILL)
    assert lane.judge(make_kernel(RELU, "cpp")).status is Status.VERIFIED
    assert lane.admit() == first


def test_a_task_file_that_changes_under_a_run_is_noticed(make_lane: Callable[..., Lane], tmp_path: Path) -> None:
    lane = make_lane(MODEL)
    lane.admit()
    (tmp_path / "task.py").write_text(MODEL.replace("+ 1", "+ 2"))
    lane.restart()
    with pytest.raises((TaskError, JudgeError), match="changed"):
        lane.judge(make_kernel(RELU, "cpp"))


def test_configurations_are_screened_in_order(lane_for: Callable[[Path], Lane]) -> None:
    text = (FIXTURES / "honest" / "plain_softmax.cpp").read_text().replace("// @tune CHUNK = 8 in 4 8 16", "// @tune CHUNK = 8 in 0 4 8 16")
    loop = "s += b[i] = expf(a[i] - m);"
    text = text.replace(loop, f"{loop}\n        static_assert(CHUNK > 0);\n        if (CHUNK == 4) b[0] = 7;")
    lane = lane_for(FIXTURES / "tasks" / "softmax.py")
    screens = lane.screen(make_kernel(text, "cpp"), [{"CHUNK": 0}, {"CHUNK": 4}, {"CHUNK": 8}, {"CHUNK": 16}, {"CHUNK": 5}])
    assert [s.status for s in screens] == [Status.BUILD_FAILED, Status.MISMATCH, Status.VERIFIED, Status.VERIFIED, Status.INVALID]
    assert screens[2].time_us and screens[2].code_hash != screens[3].code_hash
