"""The command as a user runs it, in a folder with an unpleasant name: real processes where it works, this one where it only refuses or reads."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from evokernel.archive.store import Archive
from tests.cli.conftest import Here

COMMAND = [sys.executable, "-c", "from evokernel.cli import main; main()"]
FIXTURES = Path(__file__).parent.parent / "cheats"
EVOLVE_KEYS = {
    "status", "reason", "resumable",
    "run", "task_id", "kernel_id", "kernel_path", "target", "device", "speedup", "speedup_low", "speedup_high", "baseline", "baselines_us",
    "time_us", "forced", "candidates", "verified", "tokens", "cost_usd", "seconds",
}  # fmt: skip
JUDGE_KEYS = {
    "status", "stage", "message", "speedup", "speedup_low", "speedup_high", "baseline", "baselines_us", "time_us", "milestone", "errors",
    "sandbox", "device", "forced",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose name breaks careless tools, with a task and a kernel in it. Warm and small, so that eager is clearly the fastest baseline: a
    judge that starts again then waits for no other."""
    place = tmp_path / "a $HOME:b c é"
    place.mkdir()
    task = (FIXTURES / "tasks" / "softmax.py").read_text().replace("64, 520", "4, 64")
    (place / "task.py").write_text(task + 'EVOKERNEL = {"score": "warm"}\n')
    (place / "kernel.cpp").write_text((FIXTURES / "honest" / "plain_softmax.cpp").read_text())
    return place


def run(folder: Path, *arguments: str, limit_s: float = 300) -> tuple[int, str, str]:
    command = [*COMMAND, *arguments]
    nothing = subprocess.DEVNULL
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=limit_s, check=False, stdin=nothing)
    return done.returncode, done.stdout, done.stderr


def last_object(stdout: str) -> dict[str, Any]:
    return json.loads(stdout.strip().splitlines()[-1])


def test_evolve_gives_a_verified_kernel_that_judge_and_export_take(folder: Path, here: Here) -> None:
    search = ("evolve", "task.py", "--start", "kernel.cpp", "--candidates", "2", "--archive", "a.db", "--out", "best.cpp", "--json")
    code, out, err = run(folder, *search)
    assert code == 0, err
    assert len(out.strip().splitlines()) == 1, "with --json stdout holds the object alone"
    found = last_object(out)
    assert set(found) == EVOLVE_KEYS and found["status"] == "verified" and found["target"] == "cpp"
    assert found["speedup_low"] <= found["speedup"] <= found["speedup_high"]
    assert set(found["baselines_us"]) >= {"eager", "compile"}
    assert "// @launch" in (folder / found["kernel_path"]).read_text()

    code, out, err = run(folder, "judge", "best.cpp", "task.py", "--json")
    assert code == 0, err
    verdict = last_object(out)
    assert set(verdict) == JUDGE_KEYS and verdict["status"] == "verified" and verdict["milestone"] >= 1

    code, out, err = here(folder, "export", "module", found["kernel_id"][:8], "fast.py", "--task", found["task_id"], "--archive", "a.db")
    assert code == 0, err
    assert "class Model" in (folder / "fast.py").read_text()

    kernel = found["kernel_id"]
    for arguments in (("list",), ("search", "softmax"), ("show", kernel), ("lineage", kernel), ("runs",), ("stats",), ("check",)):
        code, out, err = here(folder, "archive", *arguments, "--archive", "a.db")
        assert code == 0 and out.strip(), (arguments, err)


def test_a_killed_run_goes_on_and_leaves_nothing_behind(folder: Path) -> None:
    mark = f"evokernel_test_{os.getpid()}"
    environment = {**os.environ, "EVOKERNEL_TEST_MARK": mark}
    process = subprocess.Popen(
        [*COMMAND, "evolve", "task.py", "--start", "kernel.cpp", "--candidates", "2", "--archive", "a.db"], cwd=folder, env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr
    for line in process.stderr:
        if line.startswith("#0"):
            break
    process.kill()
    process.wait()
    deadline = time.monotonic() + 10
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []

    _, out, _ = run(folder, "archive", "runs", "--archive", "a.db", "--json")
    (row,) = last_object(out)["runs"]
    assert row["ended"] is None and not row["running"]
    code, out, err = run(folder, "resume", row["id"], "--archive", "a.db", "--json")
    assert code == 0, err
    assert last_object(out)["run"] == row["id"]
    assert "#0 " not in err, "what was judged before is not judged again"


@pytest.mark.parametrize("json", [(), ("--json",)])
def test_a_full_disk_under_stdout_is_told_once(folder: Path, json: tuple[str, ...]) -> None:
    Archive(folder / "a.db").close()
    with Path("/dev/full").open("w") as full:
        command = [*COMMAND, "archive", "runs", "--archive", "a.db", *json]
        done = subprocess.run(command, cwd=folder, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2 and "No space left" in done.stderr and "Traceback" not in done.stderr and "ignored" not in done.stderr


def marked(mark: str) -> list[int]:
    """Processes that were started with our mark in their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_ctrl_c_while_the_task_loads_ends_quickly(folder: Path) -> None:
    (folder / "slow.py").write_text("import time\ntime.sleep(300)\n")
    command = [*COMMAND, "evolve", "slow.py", "--archive", "a.db", "--json"]
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - a background shell has it ignored
    )  # fmt: skip
    assert process.stderr
    for line in process.stderr:
        if "importing" in line:
            break
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=15)
    assert process.returncode == 130
    assert last_object(out)["status"] == "interrupted"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("judge", "missing.cpp", "task.py"), 2, "cannot be read"),
        (("judge", "task.py", "task.py"), 2, "ends in"),
        (("judge", "kernel.cpp", "missing.py"), 2, "does not exist"),
        (("judge", "kernel.cpp"), 2, "give KERNEL and TASK"),
        (("judge", "kernel.cpp", "task.py", "--out", "o.jsonl"), 2, "give KERNEL and TASK"),
        (("judge", "kernel.cpp", "--batch", "c.jsonl", "--out", "o.jsonl"), 2, "give KERNEL and TASK"),
        (("judge", "--batch", "missing.jsonl", "--out", "o.jsonl"), 2, "missing.jsonl"),
        (("judge", "--batch", "task.py", "--out", "o.jsonl"), 2, "task.py, line 1"),
        (("export", "candidates", "task.py", "task.py", "--out", "c.jsonl"), 2, "ends in"),
        (("export", "candidates", "task.py", "kernel.cpp", "--out", "task.py"), 2, "give --append"),
        (("export", "candidates", "task.py", "kernel.cpp", "--append", "--out", "kernel.cpp"), 2, "kernel.cpp, line 1"),
        (("evolve", "task.py", "--target", "tpu"), 2, "known targets"),
        (("evolve", "task.py", "--candidates", "0"), 2, "at least 1 candidate"),
        (("resume", "nope"), 2, "no run"),
        (("archive", "list", "--archive", "typo.db"), 2, "no archive at typo.db"),
        (("evolve", "task.py", "--model", "nobody"), 2, "PROVIDER/NAME"),
        (("evolve", "task.py", "--model", "openai/x@http://localhost:1/v1", "--budget-usd", "1"), 2, "--price"),
        (("ask", "nope", "--out", "p.jsonl"), 2, "runs begin with"),
        (("tell", "nope", "task.py"), 2, "runs begin with"),
        (("archive", "show", "zzz"), 2, "zzz"),
        (("export", "module", "zzz", "f.py"), 2, "zzz"),
        (("task", "show", "broken.py"), 1, "line 2"),
        (("task", "check", "identity.py"), 1, "identity-like"),
        (("task", "show", "slow.py", "--task-timeout", "2"), 1, "importing the task file did not finish within 2 s"),
        (("task", "new", "task.py"), 2, "exists already"),
        (("nonsense",), 2, "nonsense"),
        (("evolve",), 2, "Missing argument"),
        (("evolve", "task.py", "--out", "/proc/out.cpp"), 2, "/proc/out.cpp"),
        (("export", "module", "zzz", "task.py"), 2, "exists already"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_wrong_use_says_what_to_do(folder: Path, here: Here, arguments: tuple[str, ...], code: int, says: str) -> None:
    model = "import torch\nfrom torch import nn\nclass Model(nn.Module):\n    def forward(self, x): return x * 1.0\n"
    (folder / "identity.py").write_text(model + "def get_inputs(): return [torch.randn(8, 8)]\n")
    (folder / "broken.py").write_text("x = 1\nraise ValueError('[/red] \\x1b[2J')\n")
    (folder / "slow.py").write_text("import time\ntime.sleep(300)\n")
    takes_json = arguments[0] not in ("task", "nonsense") or arguments[1:2] == ("check",)
    got, _, err = here(folder, *arguments, *(["--json"] if takes_json else []))
    assert got == code, err
    assert says in err
    assert "Traceback" not in err


def test_new_show_and_doctor(folder: Path) -> None:
    assert run(folder, "task", "new", "fresh.py")[0] == 0
    code, out, err = run(folder, "task", "show", "fresh.py", "--json")
    assert code == 0, err
    shown = last_object(out)
    assert [t["name"] for t in shown["variants"][0]["tensors"]] == ["x", "norm_weight", "norm_bias", "out"]
    code, out, err = run(folder, "doctor", "--json")
    assert code == 0, err
    assert last_object(out)["status"] == "ready"


def test_python_m_is_the_command() -> None:
    said = [subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout for command in (
        COMMAND, [sys.executable, "-m", "evokernel"])]  # fmt: skip
    assert said[0].partition("\n\n")[2] == said[1].partition("\n\n")[2] != ""


def test_every_command_is_in_the_readme() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    listed = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, check=True).stdout
    for name in re.findall(r"^  (\w+) ", listed.partition("Commands:")[2], re.MULTILINE):
        assert f"evokernel {name}" in readme, name
