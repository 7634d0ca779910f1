"""The judge process from outside: hangs, crashes, floods, secrets, and that nothing survives it."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
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


def lane_of(
    file: Path, source: str, cache: Path, environ: dict[str, str] | None = None, limit_s: float = 30.0, *, force: bool = False
) -> Lane:  # fmt: skip
    file.write_text(source)
    environ = environ or dict(os.environ)
    return Lane(LaneSettings(str(file), "cpp", cache / "evokernel", environ, phase_limit_s=limit_s, force=force, baselines=("eager",)))


@pytest.fixture
def make_lane(tmp_path: Path, own_folders: Path) -> Iterator[Callable[..., Lane]]:
    lanes: list[Lane] = []

    def make(source: str, limit_s: float = 30.0, *, force: bool = False) -> Lane:
        lanes.append(lane_of(tmp_path / "task.py", source, own_folders / "cache", limit_s=limit_s, force=force))
        return lanes[-1]

    yield make
    for lane in lanes:
        lane.close()


def test_the_limit_of_forward_ends_with_it(own_folders: Path) -> None:
    phases: list[str] = []
    settings = LaneSettings(str(FIXTURES / "tasks" / "linear.py"), "cpp", own_folders / "cache" / "evokernel", dict(os.environ), baselines=("eager",))
    lane = Lane(settings, phases.append)
    lane.admit()
    before = len(phases)
    verdict = lane.judge(make_kernel((FIXTURES / "honest" / "prepared_weights.cpp").read_text(), "cpp"), patience=0.3)  # draws more inputs
    lane.close()
    assert verdict.status is Status.VERIFIED and "forward" in phases[before:] and phases[-1] == "judging"


def test_a_baseline_that_fails_late_says_why(make_lane: Callable[..., Lane]) -> None:
    counts = "self.calls = getattr(self, 'calls', 0) + 1; assert torch.is_grad_enabled() or self.calls < 400, 'worn out'; return torch.relu(x) + 1"
    with pytest.raises(JudgeError, match=r"baseline eager worked and then forward.. failed at task.py, line 8: AssertionError: worn out"):
        make_lane(MODEL.replace("return torch.relu(x) + 1", counts)).judge(make_kernel(RELU, "cpp"))


@pytest.fixture(scope="module")
def noisy_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("noisy") / "task.py"


@pytest.fixture(scope="module")
def noisy(noisy_file: Path, own_folders: Path) -> Iterator[Lane]:
    """A lane for several tests, as its start takes seconds: its task floods, and prints the environment when it is imported."""
    noise = "        os.write(1, b'\\xff raw \\r' * 20000)\n        print('{\"result\": 1}' * 5000)\n        return torch.relu"
    source = MODEL.replace("        return torch.relu", noise) + "print(dict(os.environ), flush=True)\n"
    environ = {**os.environ, "SOME_API_KEY": "key-7431", "MY_PLAIN_SETTING": "plain-7431"}
    lane = lane_of(noisy_file, source, own_folders / "cache", environ)
    yield lane
    lane.close()


def gone(name: str, limit_s: float = 5.0) -> bool:
    """Whether no process has `name` on its command line any more, soon."""
    deadline = time.monotonic() + limit_s
    while any(name in _command_line(p) for p in Path("/proc").glob("[0-9]*") if p.name != str(os.getpid())):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)
    return True


def processes_of(lane: Lane) -> dict[int, str]:
    """The lane's processes, parents first: which part of it each is."""
    assert lane._process
    found, queue = {lane._process.pid: "judge"}, [lane._process.pid]
    while queue:
        for pid in children(queue.pop(0)):
            queue.append(pid)
            try:
                name = Path(f"/proc/{pid}/comm").read_text().strip()
            except OSError:
                continue  # it has just ended
            line = _command_line(Path(f"/proc/{pid}"))
            if "evokernel.judge" in line:
                found[pid] = "judge"
            elif "evokernel.runner.zygote" in line:
                found[pid] = {"runner.main": "runner", "judge.baselines": "baseline"}.get(name, "zygote")
    return found


class Watch:
    """Collects, while it is open, the environment blocks of a lane's processes as /proc shows them: those their programs were started with."""

    def __init__(self, lane: Lane) -> None:
        self.environments: dict[str, set[bytes]] = {}
        self._lane = lane
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> "Watch":
        self._lane.admit()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.05):
            for pid, kind in processes_of(self._lane).items():
                try:
                    block = Path(f"/proc/{pid}/environ").read_bytes()
                except OSError:
                    continue
                if block:
                    self.environments.setdefault(kind, set()).add(block)


def _command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""


@pytest.mark.parametrize(
    ("where", "named", "hangs", "limit_s", "ask"),
    [
        ("import", "importing the task file", "while True: pass", 1.0, Lane.describe),
        ("inputs", "get_inputs()", "time.sleep(600)", 3.0, Lane.admit),
    ],
    ids=["import", "inputs"],
)
def test_a_hang_with_a_child_in_a_new_session_ends_with_everything_gone(
    make_lane: Callable[..., Lane], where: str, named: str, hangs: str, limit_s: float, ask: Callable[[Lane], object]
) -> None:
    mark = f"evokernel_child_{os.getpid()}_{where}"
    hang = f"subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)  # {mark}'], start_new_session=True)\n{{0}}{hangs}\n"
    body = hang.format("") if where == "import" else ""
    inputs = MODEL if where == "import" else MODEL.replace("    return [torch", f"    {hang.format('    ')}    return [torch")
    lane = make_lane(inputs + body, limit_s=limit_s)
    with pytest.raises(TaskError, match=f"did not finish within {limit_s:.0f} s") as caught:
        ask(lane)
    assert named in str(caught.value)
    assert gone(mark)


def test_a_task_that_ends_the_process_is_named_with_what_it_printed(make_lane: Callable[..., Lane]) -> None:
    lane = make_lane(MODEL + "print('[/red] last words \\x1b[2J', flush=True)\nos._exit(0)\n")
    with pytest.raises(TaskError, match="importing the task file") as caught:
        lane.admit()
    assert "[/red] last words \\x1b[2J" in str(caught.value)


def test_a_flood_is_drained_and_kept_in_part_and_secrets_stay_outside(noisy: Lane) -> None:
    with Watch(noisy) as watch:
        verdict = noisy.judge(make_kernel(RELU, "cpp"), patience=0.3)
    assert verdict.status is Status.VERIFIED, verdict.message
    assert set(watch.environments) == {"judge", "zygote", "runner", "baseline"}
    assert not any(b"key-7431" in block for blocks in watch.environments.values() for block in blocks), "as it was when the program started"
    assert len(noisy.printed()) < 4 * 70_000
    assert "[...]" in noisy.printed()
    assert "plain-7431" in noisy.printed() and "key-7431" not in noisy.printed()


def test_a_judge_or_baseline_that_dies_is_started_again(noisy: Lane) -> None:
    first = noisy.admit()
    for victim in ("judge", "baseline"):
        kinds = processes_of(noisy)
        os.kill(next(pid for pid, kind in reversed(kinds.items()) if kind == victim), signal.SIGKILL)
        verdict = noisy.judge(make_kernel(RELU, "cpp"), patience=0.3)
        assert verdict.status is Status.VERIFIED, f"{victim}: {verdict.message}"
        assert noisy.admit() == first


def test_a_task_file_that_changes_under_a_run_is_noticed(noisy: Lane, noisy_file: Path) -> None:
    noisy.admit()
    before = noisy_file.read_text()
    noisy_file.write_text(before.replace("+ 1", "+ 2"))
    noisy.restart()
    with pytest.raises((TaskError, JudgeError), match="changed"):
        noisy.judge(make_kernel(RELU, "cpp"))
    noisy_file.write_text(before)


OWNER = """
import sys
from pathlib import Path
from evokernel.judge.lane import Lane, LaneSettings
task, cache = sys.argv[1:]
print(Lane(LaneSettings(task, "cpp", Path(cache), {"PATH": "/usr/bin:/bin"})).describe().name)
"""


def test_a_killed_owner_takes_all_along_and_the_next_one_tidies_up(tmp_path: Path) -> None:
    mark = f"evokernel_orphan_{os.getpid()}"
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    daemon = f"if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: os.execv('/bin/sleep', ['{mark}', '600'])\n    os._exit(0)\n"
    stray = "import tempfile\ntempfile.mkdtemp()\n"
    (tmp_path / "hangs.py").write_text(MODEL + daemon + stray + "while True: pass\n")
    (tmp_path / "fine.py").write_text(MODEL + stray)
    environ = {**os.environ, "TMPDIR": str(temporary)}
    command = [sys.executable, "-P", "-c", OWNER]
    owner = subprocess.Popen([*command, str(tmp_path / "hangs.py"), str(tmp_path / "cache")], env=environ)
    deadline = time.monotonic() + 60
    while gone(mark, limit_s=0.0):
        assert time.monotonic() < deadline and owner.poll() is None
        time.sleep(0.02)
    owner.kill()
    owner.wait()
    assert gone(mark)
    assert len(list(temporary.iterdir())) == 1
    done = subprocess.run([*command, str(tmp_path / "fine.py"), str(tmp_path / "cache")], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "fine\n" and list(temporary.iterdir()) == []


def test_configurations_are_screened_in_order(lane_for: Callable[[Path], Lane]) -> None:
    text = (FIXTURES / "honest" / "plain_softmax.cpp").read_text().replace("// @tune CHUNK = 8 in 4 8 16", "// @tune CHUNK = 8 in 0 4 8 16")
    loop = "s += b[i] = expf(a[i] - m);"
    text = text.replace(loop, f"{loop}\n        static_assert(CHUNK > 0);\n        if (CHUNK == 4) b[0] = 7;")
    lane = lane_for(FIXTURES / "tasks" / "softmax.py")
    screens = lane.screen(make_kernel(text, "cpp"), [{"CHUNK": 0}, {"CHUNK": 4}, {"CHUNK": 8}, {"CHUNK": 16}, {"CHUNK": 5}])
    assert [s.status for s in screens] == [Status.BUILD_FAILED, Status.MISMATCH, Status.VERIFIED, Status.VERIFIED, Status.INVALID]
    assert screens[2].time_us and screens[2].code_hash != screens[3].code_hash


@pytest.mark.parametrize("refused", [True, False])
def test_a_refused_task_by_force_has_marked_verdicts_and_a_sound_one_has_not(make_lane: Callable[..., Lane], refused: bool) -> None:
    source = MODEL.replace("torch.relu(x) + 1", "x * 1.0") if refused else MODEL
    lane = make_lane(source, force=True)
    admission = lane.admit()
    assert admission.forced is refused and admission.survived == (("input x",) if refused else ())
    kernel = make_kernel(RELU.replace("(x[i] > 0 ? x[i] : 0) + 1", "x[i]") if refused else RELU, "cpp")
    for _ in range(2):
        verdict = lane.judge(kernel)
        assert verdict.status is Status.VERIFIED and verdict.environment.forced is refused
        lane.restart()
