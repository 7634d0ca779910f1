"""`evokernel judge --explain`: the facts of a real verdict, and why regimes are left out."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from evokernel import api
from evokernel.cli.judge import judge as command
from evokernel.judge.cases import Cases
from evokernel.judge.lane import Lane
from evokernel.judge.timing import MIN_STARTS
from evokernel.kernelfile import make_kernel
from evokernel.records import PROTOCOL, Status
from evokernel.task import load_task
from evokernel.view.explain import explain_text, explanation

FIXTURES = Path(__file__).parent.parent / "cheats"
MODEL = """
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x):
        {body}
def get_inputs(): return [{inputs}]
"""


def test_a_verified_kernel_is_explained(
    lane_for: Callable[[Path], Lane], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = lane_for(FIXTURES / "tasks" / "softmax.py")
    admission = lane.admit()
    verdict = lane.judge(make_kernel((FIXTURES / "honest" / "plain_softmax.cpp").read_text(), "cpp"), patience=1.1)  # a finalist
    assert verdict.status is Status.VERIFIED and verdict.timing and verdict.timing.starts >= MIN_STARTS
    facts, text = explanation(verdict, admission), explain_text(verdict, admission)
    assert 0 < verdict.timing.verified_calls <= sum(m.calls for m in verdict.timing.modes) + 100
    assert f"{verdict.timing.verified_calls} timed calls compared in full" in facts["calls"]
    assert facts["inputs"].startswith("12 case(s)") and "mixture" in facts["inputs"] and "weights" not in facts["inputs"]
    assert "zeros" in facts["trivial candidates"] and "float64" in facts["truth"] and "99%" in facts["speedup"]
    assert f"each of {verdict.timing.starts} starts" in facts["speedup"]
    assert verdict.environment.sandbox in facts["confinement"] and "sealed" in facts["buffers"]
    assert verdict.bounds and f"traffic {verdict.bounds.traffic_bytes} bytes" in facts["bounds"]
    assert "timing" in facts["stages"] and f"protocol {PROTOCOL}" in facts["versions"]
    rows = [line.split() for line in text.splitlines() if line.startswith("out ")]
    assert [r[1] for r in rows] == list(admission.regimes) and rows[0][3] == "3" and all(r[-1] == "yes" for r in rows)
    assert "eager" in text and "in this race" in text and "bottleneck" in text

    monkeypatch.setattr(api, "judged", lambda *_: (admission, verdict))  # these very records, without judging once more
    monkeypatch.setattr("sys.argv", ["evokernel", "--json"])
    with pytest.raises(typer.Exit) as ended:
        command("k.cpp", "t.py", explain=True, json=True)
    assert ended.value.exit_code == 0
    found = json.loads(capsys.readouterr().out)
    assert found["explanation"] == facts and found["verdict"]["code_hash"] == verdict.code_hash
    assert found["profile"]["bottleneck"] in ("memory", "compute", "latency", "unknown")


def test_a_wrong_kernel_is_explained_up_to_where_it_failed(lane_for: Callable[[Path], Lane]) -> None:
    lane = lane_for(FIXTURES / "tasks" / "softmax.py")
    text = (FIXTURES / "cpp" / "no_max_subtracted.cpp").read_text()  # right on ordinary values
    verdict = lane.judge(make_kernel(text, "cpp"))
    assert verdict.status is Status.MISMATCH
    said, facts = explain_text(verdict, lane.admit()), explanation(verdict, lane.admit())
    assert "not verified" in facts["times"] and "no time" in facts["bounds"]
    passed = {line.split()[1]: line.split()[-1] for line in said.splitlines() if line.startswith("out ")}
    assert passed["own"] == "yes" and list(passed.values())[-1] == "NO"


@pytest.mark.parametrize(
    ("body", "inputs", "regimes", "why"),
    [
        ("return torch.softmax(x, -1)", "torch.randn(16, 32)", "", ""),
        ("return x.argmax(-1)", "torch.randn(16, 32)", "ties integers mixture", "holds indices"),
        ("return (x > 0).sum(-1)", "torch.randn(16, 32)", "", ""),
        ("return (x * 9).floor().long()", "torch.randn(16, 32)", "integers huge", "last bits"),
        ("return torch.log(x + 9.0)", "torch.randn(16, 32)", "heavy large mixture", "NaN in `out`"),
        ("return x * 2", "torch.tril(torch.ones(8, 8))", "normal uniform ties", "the task's own"),
        ("return torch.exp(x)", "torch.randn(16, 32).half()", "heavy large huge mixture", "Inf in `out`"),
    ],
)  # fmt: skip
def test_each_regime_is_valid_or_left_out_for_a_reason(tmp_path: Path, body: str, inputs: str, regimes: str, why: str) -> None:
    file = tmp_path / "task.py"
    file.write_text(MODEL.format(body=body, inputs=inputs))
    plan = Cases(load_task(file), master_seed=2).plan(0)
    assert len(plan.regimes) + len(plan.left_out) == 10 and not set(plan.regimes) & set(plan.left_out)
    for regime in regimes.split():
        assert why in plan.left_out[regime]
