"""Batch judging as on a GPU machine without internet: real processes, nothing installed that it does not need, killed and resumed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import evokernel
from evokernel import targets
from evokernel.batch import judge_batch, pack, read_candidates
from evokernel.codec import decode
from evokernel.errors import JudgeError, UsageError
from evokernel.judge import tenant
from evokernel.records import PROTOCOL, BatchOutcome, Status
from evokernel.targets import driver

COMMAND = [sys.executable, "-c", "from evokernel.cli import main; main()"]
TASK = """import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) + 1  # é

def get_inputs():
    return [torch.randn(32, 64)]
"""
RIGHT = """// @launch f(x, out, x.numel)
void f(const float* x, float* y, int64_t n) { for (int64_t i = 0; i < n; ++i) y[i] = (x[i] > 0 ? x[i] : 0) + 1; }
"""
ALLOWED = {"evokernel", "torch", "numpy", "cuda", "networkx", "rich", "typer", "jinja2"}
ABSENT = {
    "openai", "anthropic", "faiss", "sentence_transformers", "transformers", "datasets", "huggingface_hub", "httpx", "httpx2", "pandas", "pyarrow",
    "pynvml", "requests",
}  # fmt: skip
# Python runs this first in every process: some packages are not there, whoever asks, and files of ours may ask for few.
WATCH = """
import builtins, sys
from importlib.machinery import PathFinder
PACKAGE, ALLOWED, ABSENT, LOG = {package!r}, {allowed!r}, {absent!r}, {log!r}

def check(name):
    frame = sys._getframe().f_back
    while frame and ("importlib" in frame.f_code.co_filename or frame.f_code.co_filename == __file__):
        frame = frame.f_back
    issuer = frame.f_code.co_filename if frame else ""
    top = name.partition(".")[0]
    if issuer.startswith(PACKAGE) and top not in ALLOWED and top not in sys.stdlib_module_names:
        note("bad: " + issuer + " imports " + name)
        raise SystemExit("bad import")

def note(text):
    with open(LOG, "a") as log:
        log.write(text + "\\n")

def watched(name, globals=None, locals=None, fromlist=(), level=0, real=builtins.__import__):
    if level == 0:
        check(name)
    return real(name, globals, locals, fromlist, level)

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        check(name)
        return None if name.partition(".")[0] in ABSENT else super().find_spec(name, path, target)

builtins.__import__ = watched
sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
note("started: " + " ".join(sys.orig_argv))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound task with a right, a wrong and a broken kernel, a task that cannot be loaded, and their lines mixed."""
    folder = tmp_path_factory.mktemp("batch $é")
    (folder / "sound.py").write_text(TASK)
    (folder / "unsound.py").write_text(TASK + "raise ValueError('no')\n")
    (folder / "right.cpp").write_text(RIGHT)
    (folder / "wrong.cpp").write_text(RIGHT.replace("+ 1", "+ 2"))
    (folder / "broken.cpp").write_text("// @launch f(x, out)\nvoid f(float\n")
    for task, *names in (
        ("unsound.py", "right.cpp"), ("sound.py", "right.cpp", "wrong.cpp"), ("unsound.py", "wrong.cpp"), ("sound.py", "broken.cpp"),
    ):  # fmt: skip
        assert call(folder, "export", "candidates", task, *names, "--out", "all.jsonl", "--append")[0] == 0
    lines = (folder / "all.jsonl").read_text().splitlines()
    lines.append(json.dumps({"protocol": PROTOCOL, "id": 7, "task": {"name": "x", "source": TASK}, "target": "cpp", "text": "// @launch f(\0"}))
    (folder / "all.jsonl").write_text("\n\n".join(lines))
    return folder


def watching(folder: Path) -> dict[str, str]:
    """An environment in which every process watches what is imported."""
    (folder / "watch").mkdir(exist_ok=True)
    package = str(Path(evokernel.__file__).parent)
    text = WATCH.format(package=package, allowed=ALLOWED, absent=ABSENT, log=str(folder / "imports.log"))
    (folder / "watch" / "sitecustomize.py").write_text(text)
    return {**os.environ, "PYTHONPATH": str(folder / "watch")}


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *arguments], cwd=folder, env=watching(folder), text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - a background shell has it ignored
    )  # fmt: skip


def call(folder: Path, *arguments: str) -> tuple[int, str, str]:
    process = start(folder, *arguments)
    out, err = process.communicate(timeout=400)
    return process.returncode, out, err


def outcomes(file: Path) -> list[BatchOutcome]:
    return [decode(BatchOutcome, json.loads(line)) for line in file.read_bytes().split(b"\n")[:-1]]


BATCH = ("judge", "--batch", "all.jsonl", "--out", "out.jsonl", "--json")


def test_killed_and_resumed_with_nothing_installed_that_it_does_not_need(place: Path) -> None:
    file = place / "out.jsonl"
    process = start(place, *BATCH)
    assert process.stderr
    first = process.stderr.readline()
    assert "importing" in first
    code, _, err = call(place, *BATCH)
    assert code == 2 and "another process is writing out.jsonl" in err
    for line in process.stderr:
        if line.startswith("right.cpp: ") and "TaskError" not in line:
            break
    else:
        pytest.fail("it ended before the right kernel was judged")
    process.kill()
    process.communicate()
    before = file.read_bytes()
    stored = outcomes(file)
    file.write_bytes(before + before.splitlines()[-1][:200])  # and it had begun the next line

    code, out, err = call(place, *BATCH)
    assert file.read_bytes().startswith(before), "what was stored stays as it is"
    added = outcomes(file)[len(stored) :]
    assert code == 1, err
    counts = json.loads(out)
    assert counts == {"status": "errors", "out": "out.jsonl", "candidates": 6, "verdicts": 4, "verified": 1, "errors": 2, "judged": len(added)}
    assert {(o.id, o.candidate) for o in stored if o.verdict}.isdisjoint({(o.id, o.candidate) for o in added}), "nothing is judged twice"
    by_id = {(o.id, o.error): o.verdict for o in stored + added}
    statuses = {key: verdict.status if verdict else None for key, verdict in by_id.items()}
    assert statuses == {
        ("right.cpp", ""): Status.VERIFIED, ("wrong.cpp", ""): Status.MISMATCH, ("broken.cpp", ""): Status.BUILD_FAILED, (7, ""): Status.INVALID,
        ("right.cpp", "TaskError"): None, ("wrong.cpp", "TaskError"): None,
    }  # fmt: skip
    (known,) = {o.task_id for o in stored + added if o.verdict}
    assert known == evokernel.load_task(place / "sound.py").task.id, "verdicts of a batch and of the task file belong together"

    assert 3 <= len(stored) < 6 and len(added) == 6 - sum(o.verdict is not None for o in stored), "errors are tried again, and nothing else"
    log = (place / "imports.log").read_text()
    assert log.count("-m evokernel.judge ") == 4, "one lane a task and call, however its lines are mixed"
    assert "bad: " not in log
    assert "-m evokernel.runner.zygote " in log, "runners were watched too"


def test_ctrl_c_says_how_to_go_on_and_leaves_no_judge_behind(place: Path) -> None:
    process = start(place, *BATCH[:-2], "interrupted.jsonl", "--json")
    assert process.stderr
    for line in process.stderr:
        if "importing" in line:
            break
    begun = below(process.pid)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=15)
    said = json.loads(out)
    assert process.returncode == 130 and said["status"] == "interrupted" and "interrupted.jsonl" in said["message"]
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in begun) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert begun and not any(Path(f"/proc/{pid}").exists() for pid in begun)


def below(pid: int) -> list[int]:
    """The processes that `pid` has started, and theirs."""
    found = [int(p.name) for p in Path("/proc").glob("[0-9]*") if parent(p) == pid]
    return found + [further for child in found for further in below(child)]


def parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def changed(**values: object) -> Callable[[dict[str, Any]], object]:
    return lambda line: {**line, **values}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (changed(protocol=PROTOCOL + 1, news=1), f"protocol is {PROTOCOL + 1}, ours {PROTOCOL}"),
        (lambda line: {k: v for k, v in line.items() if k != "protocol"}, "protocol is none"),
        (lambda line: {k: v for k, v in line.items() if k != "text"}, "text"),
        (lambda line: [line], "expected a BatchCandidate"),
        (changed(extra=1), "extra"),
        (changed(target="tpu"), "known targets"),
        (changed(task={"name": "../x", "source": TASK}), "../x"),
        (changed(task={"name": "x", "source": "\ud800"}), "surrogate"),
    ],
)
def test_a_line_that_cannot_be_used_is_named_and_nothing_is_judged(
    place: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], says: str
) -> None:
    good = (place / "all.jsonl").read_text().split("\n\n")[0]
    (tmp_path / "c.jsonl").write_text(f"{good}\n\n{json.dumps(change(json.loads(good)))}\n")
    refused(tmp_path, rf"c.jsonl, line 3(.|\n)*{says}")


@pytest.mark.parametrize("text", ["{", "\xff", '{"protocol": ', "[" * 100_000])
def test_what_is_no_json_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.jsonl").write_bytes(text.encode("latin-1"))
    refused(tmp_path, "c.jsonl, line 1")


@pytest.mark.skipif(targets.get("cuda").available() is None, reason="there is a GPU")
def test_a_target_that_cannot_run_here_is_refused(place: Path, tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text((place / "all.jsonl").read_text().replace('"target":"cpp"', '"target":"cuda"', 1))
    refused(tmp_path, "line \\d+: target 'cuda' cannot run here")


def refused(folder: Path, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        judge_batch(folder / "c.jsonl", folder / "out.jsonl", [None], evokernel.api.Session(), lambda *_: None)
    assert not (folder / "out.jsonl").exists()


@pytest.mark.parametrize("text", ["precious\n", "precious", '{"protocol": 0}\n', '{"is":"BatchOutcome"}\n'])
def test_a_file_that_is_none_of_ours_is_not_touched(place: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "notes.txt").write_text(text)
    with pytest.raises(UsageError, match=r"notes\.txt"):
        judge_batch(place / "all.jsonl", tmp_path / "notes.txt", [None], evokernel.api.Session(), lambda *_: None)
    assert (tmp_path / "notes.txt").read_text() == text


def test_line_ends_make_no_other_candidate(place: Path, tmp_path: Path) -> None:
    (tmp_path / "sound.py").write_bytes(TASK.replace("\n", "\r\n").encode())
    (tmp_path / "right.cpp").write_bytes(RIGHT.replace("\n", "\r\n").encode())
    (packed,) = pack(str(tmp_path / "sound.py"), [tmp_path / "right.cpp"])
    assert packed.key in {c.key for _, c in read_candidates(place / "all.jsonl")}


HOLDER = """
import sys, time
from pathlib import Path
from evokernel.judge import tenant
held = tenant.hold("test", "process of old", lambda: None, folder=Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


def test_one_tenant_a_gpu_until_it_is_killed(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    waited: list[str] = []
    try:
        assert process.stdout and process.stdout.readline() == "held\n"
        with pytest.raises(JudgeError, match="by process of old"):
            tenant.hold("test", "process of new", lambda: waited.append("once"), folder=tmp_path, wait_s=0.5)
        tenant.hold("other", "me", lambda: waited.append("never"), folder=tmp_path).close()
    finally:
        process.kill()
        process.wait()
    with tenant.hold("test", "new", lambda: waited.append("never"), folder=tmp_path, wait_s=5):
        assert (tmp_path / "evokernel-gpu-test.lock").read_text() == "new"
        assert (tmp_path / "evokernel-gpu-test.lock").stat().st_mode & 0o777 == 0o666
    assert waited == ["once"]


def test_a_device_counts_within_the_visible_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_count", lambda: (2, 0))
    assert [driver.one_gpu(d, None) for d in (None, "0", "1")] == ["0", "0", "1"]
    assert [driver.one_gpu(d, "GPU-a, 7") for d in (None, "1", "GPU-b", "MIG-c")] == ["GPU-a", "7", "GPU-b", "MIG-c"]
    for wrong in ("2", "-1", "x", "0,1", "GPU-a,GPU-b"):
        with pytest.raises(UsageError, match="none of the 2 visible GPUs"):
            driver.one_gpu(wrong, None)
