"""Value regimes, structure that is kept, and weights drawn anew."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from evokernel.judge.cases import Cases
from evokernel.judge.inputs import REGIMES, InputPlan, Kind, kind_of, redraw_weights, secret_seed
from evokernel.task import LoadedTask, load_task


@pytest.fixture(autouse=True)
def few_threads() -> None:
    torch.set_num_threads(1)


def task(tmp_path: Path, forward: str, inputs: str, init: str = "pass", head: str = "") -> LoadedTask:
    file = tmp_path / "task.py"
    file.write_text(
        f"import torch\nimport torch.nn as nn\n{head}\nclass Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        {init}\n"
        f"    def forward(self, {forward}\ndef get_inputs():\n    return {inputs}\n"
    )
    return load_task(file)


def test_secret_seeds_differ() -> None:
    assert len({secret_seed() for _ in range(100)}) == 100


@pytest.mark.parametrize(
    ("tensor", "kind"),
    [
        (torch.randn(40, 40), Kind.FREE),
        (torch.rand(40, 40), Kind.NONNEGATIVE),
        (torch.rand(40, 40) + 0.5, Kind.POSITIVE),
        ((torch.rand(40, 40) > 0.5).float(), Kind.KEPT),
        (torch.rand(40, 40).sub(0.5).sign(), Kind.KEPT),
        (torch.randn(40, 40).tril(), Kind.KEPT),
        (torch.randn(40, 40).softmax(-1), Kind.KEPT),
        (torch.eye(40)[torch.randint(0, 40, (20,))], Kind.KEPT),
        (torch.randn(40).sort().values, Kind.KEPT),
        (torch.full((40,), 0.25), Kind.KEPT),
        (torch.zeros(8, 8).masked_fill(torch.ones(8, 8).triu(1) > 0, -torch.inf), Kind.KEPT),
        (torch.randn(1, 40).expand(30, 40), Kind.FREE),
        (torch.tensor(1.5), Kind.FREE),
        (torch.empty(0, 40), Kind.KEPT),
    ],
)
def test_structure_of_one_draw(tensor: torch.Tensor, kind: Kind) -> None:
    assert kind_of(tensor) is kind


def test_a_plain_task_gets_every_regime(tmp_path: Path) -> None:
    plan = InputPlan(task(tmp_path, "x): return torch.relu(x)", "[torch.rand(32, 64)]"), 0)
    assert set(plan.regimes) == {"own", *REGIMES}
    draws = {r: plan.draw(r, 3).tensors["x"] for r in plan.regimes}
    assert float(draws["own"].min()) >= 0 > float(draws["normal"].min()) and float(draws["large"].abs().max()) > 500
    assert 20 < int((draws["ties"] == 0).sum()) < 200 and torch.equal(plan.draw("heavy", 3).tensors["x"], draws["heavy"])


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(
    ("inputs", "strides"),
    [("torch.randn(1, 64).expand(128, 64)", (0, 1)), ("torch.randn(1000).unfold(0, 64, 8)", (8, 1)), ("torch.empty(0, 64)", (64, 1))],
)
def test_expanded_overlapping_and_empty_inputs(tmp_path: Path, inputs: str, strides: tuple[int, int], kept: bool) -> None:
    head = "EVOKERNEL = {'domain': {'x': 'own'}}" if kept else ""
    plan = InputPlan(task(tmp_path, "x, y): return x.sum() + y * 2", f"[{inputs}, torch.randn(16, 4)]", head=head), 0)
    own, drawn = (plan.draw(regime, 1).tensors for regime in ("own", "large"))
    assert set(plan.regimes) == {"own", *REGIMES} and drawn["x"].stride() == strides
    assert torch.equal(own["x"], drawn["x"]) == (kept or not own["x"].numel()) and not torch.equal(own["y"], drawn["y"])


def test_ties_are_ties_along_rows_and_columns_but_few_of_one_value() -> None:
    x = REGIMES["ties"](64 * 520, 520, torch.Generator().manual_seed(3)).view(64, 520)
    assert int((x[:, 1:] == x[:, :-1]).sum()) > 200 and int((x[1:] == x[:-1]).sum()) > 3000 and int((x[1:] == x[0]).sum()) > 1000
    assert sum(int((row == row.max()).sum()) > 1 for row in x) > 3
    assert all(int(row[row != 0].unique(return_counts=True)[1].max()) < 12 for row in x)


def test_a_mixture_mixes_rows_of_any_count() -> None:
    for rows in (7, 64, 1000):
        x = REGIMES["mixture"](rows * 50, 50, torch.Generator().manual_seed(rows)).view(rows, 50)
        kinds = [(float(row.abs().max()) == 0, float(row.abs().max()) < 1e-2, float(row.abs().max()) > 20, float(row.min()) > 3) for row in x]
        assert len(set(kinds)) == 5 and all(bool((row == 0).all()) or not bool((row == 0).any()) for row in x)


def test_strides_and_dtype_of_regime_values(tmp_path: Path) -> None:
    plan = InputPlan(
        task(
            tmp_path,
            "a, b): return a.float() + b.float()",
            "[torch.randn(8, 6).half().t(), torch.randn(1, 8).expand(6, 8).bfloat16()[:1].expand(6, 8)]",
        ),
        0,
    )
    draw = plan.draw("normal", 1)
    assert draw.tensors["a"].stride() == (1, 6) and draw.tensors["a"].dtype is torch.float16
    assert draw.tensors["b"].stride() == (0, 1) and draw.tensors["b"].dtype is torch.bfloat16


def test_regimes_that_break_the_reference_are_left_out_or_drawn_with_care(tmp_path: Path) -> None:
    logs = InputPlan(task(tmp_path, "x): return torch.log(x)", "[torch.rand(400) + 1e-3]"), 0)
    assert "normal" in logs.regimes and float(logs.draw("normal", 1).tensors["x"].min()) >= 0
    exponentials = InputPlan(task(tmp_path, "x): return torch.exp(x)", "[torch.randn(400)]"), 0)
    assert "normal" in exponentials.regimes and "large" not in exponentials.regimes


def test_huge_values_stay_within_what_a_dtype_holds(tmp_path: Path) -> None:
    plan = InputPlan(task(tmp_path, "a, b): return torch.relu(a), torch.relu(b)", "[torch.randn(500), torch.randn(500).half()]"), 0)
    draw = plan.draw("huge", 1)
    assert 1e7 < float(draw.tensors["a"].abs().max()) < 1e8 and 30000 < float(draw.tensors["b"].abs().max()) < 35000
    assert float(plan.draw("large", 1).tensors["b"].abs().max()) < 10000


@pytest.mark.parametrize(
    ("forward", "ties"),
    [
        ("(x > 0).sum(-1)", True),
        ("(x * 3).argmax(-1)", False),
        ("x.abs().argmin(-1)", False),
        ("x.sort(-1)[1]", False),
        ("x.max(-1)[1]", False),
        ("((x >= 1) & (x < 2)).sum(-1)", False),
    ],
)
def test_whole_numbers_get_ties_unless_they_hang_on_which_comes_first(tmp_path: Path, forward: str, ties: bool) -> None:
    plan = InputPlan(task(tmp_path, f"x): return x * 2, {forward}", "[torch.randn(16, 32)]"), 0)
    assert ("integers" in plan.regimes) == ties and ("ties" in plan.regimes) >= ties and {"normal", "large", "huge"} <= set(plan.regimes)


COUNTER = (
    "self.register_buffer('seen', torch.zeros((), dtype=torch.int64)); self.register_buffer('shift', torch.tensor(3)); self.lin = nn.Linear(8, 8)"
)


@pytest.mark.parametrize(("fails", "counts_on"), [("self.seen > 9", True), ("self.seen > 0", False)])
def test_counters_count_on_where_the_reference_takes_it(tmp_path: Path, fails: str, counts_on: bool) -> None:
    forward = f"x):\n        if {fails}: raise ValueError\n        self.seen += 1\n        return self.lin(x) + self.shift"
    cases = Cases(task(tmp_path, forward, "[torch.randn(4, 8)]", COUNTER))
    assert all((int(w["seen"]) > 0) == counts_on and int(w["shift"]) == 3 for w in cases.weights.values())
    assert len(cases.weights) == 2 and not torch.equal(cases.weights[0]["lin_weight"], cases.weights[1]["lin_weight"])


def test_indices_get_no_ties_and_integers_only_their_own_values(tmp_path: Path) -> None:
    plan = InputPlan(task(tmp_path, "x, i): return torch.topk(x, 3)[1] + i", "[torch.randn(8, 32), torch.randint(0, 3, (8, 3))]"), 0)
    assert "ties" not in plan.regimes and "integers" not in plan.regimes and "normal" in plan.regimes
    assert plan.draw("large", 1).tensors["i"].dtype is torch.int64 and int(plan.draw("large", 1).tensors["i"].max()) <= 2
    only_whole = InputPlan(task(tmp_path, "i): return i * 2", "[torch.randint(0, 3, (8, 3))]"), 0)
    assert list(only_whole.regimes) == ["own"]


@pytest.mark.parametrize(
    ("domain", "low", "high"),
    [("'positive'", 1e-30, 1e9), ("'nonnegative'", 0.0, 1e9), ("'probability'", 0.0, 1.0), ("(2, 3)", 2.0, 3.0), ("'any'", -1e9, 1e9)],
)
def test_domains(tmp_path: Path, domain: str, low: float, high: float) -> None:
    plan = InputPlan(task(tmp_path, "x): return x + 1", "[torch.rand(500) + 2]", head=f"EVOKERNEL = {{'domain': {{'x': {domain}}}}}"), 0)
    for regime in ("normal", "large", "mixture", "ties"):
        values = plan.draw(regime, 1).tensors["x"]
        assert low <= float(values.min()) and float(values.max()) <= high
    assert (float(plan.draw("normal", 1).tensors["x"].min()) < 0) == (domain == "'any'")


def test_own_domain_keeps_get_inputs(tmp_path: Path) -> None:
    plan = InputPlan(task(tmp_path, "x): return x + 1", "[torch.randn(500)]", head="EVOKERNEL = {'domain': {'x': 'own'}}"), 0)
    assert list(plan.regimes) == ["own"]


def test_weights_are_redrawn_and_tables_kept(tmp_path: Path) -> None:
    init = (
        "self.lin = nn.Linear(64, 64); self.bn = nn.BatchNorm1d(64).eval(); self.register_buffer('table', torch.arange(64.0)); "
        "self.mask = nn.Parameter(torch.ones(64, 64).tril(), requires_grad=False); self.rate = nn.Parameter(torch.rand(64) + 1); self.c = torch.ones(64)"  # noqa: E501
    )
    loaded = task(tmp_path, "x): return self.bn(self.lin(x) @ self.mask) * self.rate + self.table + self.c", "[torch.randn(16, 64)]", init)
    old, new, other = loaded.weights(), redraw_weights(loaded, 1), redraw_weights(loaded, 2)
    assert not any(
        torch.equal(new[n], other[n]) for n in ("lin_weight", "lin_bias", "bn_weight", "bn_bias", "bn_running_mean", "bn_running_var", "rate")
    )
    assert all(torch.equal(new[n], old[n]) for n in ("table", "mask", "c", "bn_num_batches_tracked"))
    assert float(new["bn_running_var"].min()) > 0 and float(new["rate"].min()) > 0
    assert 0.7 < float(new["lin_weight"].std() / old["lin_weight"].std()) < 1.4
    assert float(new["bn_bias"].abs().max()) > 0.05 and float((new["bn_weight"] - 1).abs().max()) > 0.1
    assert torch.equal(redraw_weights(loaded, 1)["lin_weight"], new["lin_weight"])


def test_a_mask_of_minus_infinity_is_kept_and_leaves_the_regimes_valid(tmp_path: Path) -> None:
    mask = "torch.zeros(16, 16).masked_fill(torch.ones(16, 16).triu(1) > 0, -torch.inf)"
    plan = InputPlan(task(tmp_path, "x, mask): return torch.softmax(x @ x.T + mask, 1)", f"[torch.randn(16, 8), {mask}]"), 0)
    assert "normal" in plan.regimes and bool(plan.draw("normal", 1).tensors["mask"].isinf().any())
