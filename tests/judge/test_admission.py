"""Tasks that can be judged, tasks that cannot and the name they are refused by; and the cases of a task end to end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from evokernel.errors import TaskError
from evokernel.judge.admission import admit
from evokernel.judge.cases import Case, Cases
from evokernel.task import load_task


@pytest.fixture(autouse=True)
def few_threads() -> None:
    torch.set_num_threads(1)


def cases(tmp_path: Path, forward: str, inputs: str = "[torch.randn(32, 64)]", init: str = "pass", head: str = "", arguments: str = "") -> Cases:
    file = tmp_path / "task.py"
    file.write_text(
        f"import torch\nimport torch.nn as nn\nF = nn.functional\n{head}\nclass Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"  # noqa: E501
        f"        {init}\n    def forward(self, {forward}\ndef get_inputs({arguments}):\n    return {inputs}\n"
    )
    return Cases(load_task(file), master_seed=7)


def kernel(task: Cases, case: Case, forward: object) -> str | None:
    return task.check(case, {"out": forward(case.draw.tensors, case.weights)})[1]  # type: ignore[operator]


LINEAR = "self.lin = nn.Linear(64, 48)"


def test_an_ordinary_task_is_admitted_with_everything_tried(tmp_path: Path) -> None:
    task = cases(tmp_path, "x): return F.gelu(self.lin(x))", init=LINEAR)
    found = admit(task)
    assert {"zeros", "ones", "input x", "parameter lin_bias", "previous output", "last rows skipped", "tf32 copy"} <= set(found.trivial)
    assert not found.forced and not found.notes and not found.survived and "heavy" in task.regimes()
    for case in task.correctness():
        assert task.check(case, task.eager(case))[1] is None


def test_cheats_fail_and_honest_variants_pass_on_every_kind_of_cheat(tmp_path: Path) -> None:
    task = cases(tmp_path, "x): return torch.relu(self.lin(x))", init=LINEAR)
    all_cases = task.correctness()
    w0 = task.weights[0]

    def passes(forward: object) -> bool:
        return all(kernel(task, c, forward) is None for c in all_cases)

    assert passes(lambda t, w: (t["x"] @ w["lin_weight"].T + w["lin_bias"]).clamp(min=0))
    assert passes(lambda t, w: torch.relu(sum(t["x"][:, k : k + 16] @ w["lin_weight"][:, k : k + 16].T for k in range(0, 64, 16)) + w["lin_bias"]))
    assert not passes(lambda t, w: torch.relu(t["x"] @ w["lin_weight"].T))
    assert not passes(lambda t, w: torch.relu(t["x"] @ w0["lin_weight"].T + w0["lin_bias"]))
    assert not passes(lambda t, w: t["x"] @ w["lin_weight"].T + w["lin_bias"])
    assert not passes(lambda t, w: torch.relu(t["x"].bfloat16() @ w["lin_weight"].bfloat16().T + w["lin_bias"].bfloat16()).float())


def test_ranges_are_no_contract(tmp_path: Path) -> None:
    task = cases(tmp_path, "x): return torch.relu(x) + x.mean()", inputs="[torch.rand(64, 64)]")
    honest = [kernel(task, c, lambda t, w: t["x"].clamp(min=0) + t["x"].mean()) for c in task.correctness()]
    folded = [kernel(task, c, lambda t, w: t["x"] + t["x"].mean()) for c in task.correctness()]
    assert not any(honest) and any(folded)


def test_draws_that_cannot_be_made_again_are_kept_and_those_that_never_differ_are_noted(tmp_path: Path) -> None:
    head, forward = "import numpy as np\nrng = np.random.default_rng()", "x): return torch.exp(x)"
    assert not admit(cases(tmp_path, forward, "[torch.from_numpy(np.random.randn(8, 8))]", head=head)).notes
    own = cases(tmp_path, forward, "[torch.from_numpy(rng.standard_normal((8, 8)))]", head=head)
    own._limit = 1  # no memory for a second case
    assert any("other values for the same seed" in n for n in admit(own).notes)
    for case in own.correctness():
        assert own.check(case, own.eager(case))[1] is None
        assert own.check(case, {"out": torch.exp(case.draw.tensors["x"])})[1] is None
    fixed = cases(tmp_path, forward, "[torch.linspace(-1, 1, 64).view(8, 8)]")
    assert any("the same values each time" in n for n in admit(fixed, force=True).notes)


@pytest.mark.parametrize(
    ("forward", "inputs", "init", "name"),
    [
        ("x): return x.clone()", "[torch.randn(8, 8)]", "pass", "identity-like"),
        ("x): return x + 1e-9 * x", "[torch.randn(8, 8)]", "pass", "identity-like"),
        ("x): return x * 0", "[torch.randn(8, 8)]", "pass", "input-independent"),
        ("x): return self.w.expand(4, 6)", "[torch.randn(8, 8)]", "self.w = nn.Parameter(torch.randn(6))", "input-independent"),
        ("x): return torch.cumsum(self.w, 0)", "[torch.randn(8, 8)]", "self.w = nn.Parameter(torch.randn(6))", "input-independent"),
        ("): return torch.arange(6.0) ** 2", "[]", "pass", "input-independent"),
        ("x): return x.clone(), x * 0", "[torch.randn(8, 8)]", "pass", "no output needs any work"),
        ("x, m): return x.exp() * m", "[torch.randn(32, 8), (torch.arange(32) < 24).float()[:, None]]", "pass", "last rows"),
    ],
)
def test_refused_by_name_unless_forced(tmp_path: Path, forward: str, inputs: str, init: str, name: str) -> None:
    task = cases(tmp_path, forward, inputs, init)
    with pytest.raises(TaskError, match=name) as caught:
        admit(task)
    assert caught.value.refused and "--force" in str(caught.value)
    forced = admit(task, force=True)
    assert forced.forced and any(name in n for n in forced.notes)
    assert not set(forced.trivial) & set(forced.survived) and bool(forced.survived) == (name != "no output needs any work")


@pytest.mark.parametrize(
    ("forward", "inputs"),
    [
        ("x, y): return x * 2 + y", "[torch.randn(1, 64).expand(32, 64), torch.randn(32, 64)]"),
        ("x, y): return y.exp() + x.sum()", "[torch.empty(0, 64), torch.randn(32, 64)]"),
        ("x): return x.sort(-1)[1]", "[torch.randn(8, 20000)]"),
        ("x): return x.topk(8, -1)[1]", "[torch.randn(64, 1000).bfloat16()]"),
        ("x): return (x.softmax(-1) * 1e9).to(torch.int64)", "[torch.randn(64, 1000)]"),
        ("x): return torch.log(torch.relu(x) + torch.finfo(x.dtype).eps)", "[torch.randn(64, 96)]"),
    ],
)
def test_admitted_although_unusual(tmp_path: Path, forward: str, inputs: str) -> None:
    assert not admit(cases(tmp_path, forward, inputs)).forced


def running_sum(x: torch.Tensor) -> torch.Tensor:
    """(rows, columns) float32 -> (rows, 1), one addition after another as a plain loop makes them."""
    total = torch.zeros(x.shape[0])
    for column in x.t().contiguous():
        total += column
    return total[:, None]


def textbook_softmax(x: torch.Tensor) -> torch.Tensor:
    e = torch.exp(x - x.amax(1, keepdim=True))
    return e / running_sum(e)


def textbook_layernorm(x: torch.Tensor) -> torch.Tensor:
    centred = x - running_sum(x) / x.shape[1]
    return centred * torch.rsqrt(running_sum(centred * centred) / x.shape[1] + 1e-5)


@pytest.mark.parametrize(
    ("forward", "kernel_of_x"), [("torch.softmax(x, 1)", textbook_softmax), ("F.layer_norm(x, x.shape[1:])", textbook_layernorm)]
)
def test_plain_loops_pass_in_every_regime(tmp_path: Path, forward: str, kernel_of_x: Callable[[torch.Tensor], torch.Tensor]) -> None:
    task = cases(tmp_path, f"x): return {forward}", "[torch.randn(64, 1000)]")
    assert {"ties", "integers", "mixture"} <= set(task.regimes())
    for case in task.correctness():
        assert kernel(task, case, lambda t, w: kernel_of_x(t["x"])) is None
        assert kernel(task, case, lambda t, w: kernel_of_x(t["x"]) * (1 + 1e-5)) is not None


def test_what_does_not_matter_is_a_note(tmp_path: Path) -> None:
    found = admit(
        cases(tmp_path, "x, unused): return x.exp(), x.clone()", "[torch.randn(16, 8), torch.randn(4)]", "self.w = nn.Parameter(torch.ones(3))")
    )
    assert [n for n in found.notes if "change" in n] == [f"{what} does not change the output" for what in ("input `unused`", "parameter `w`")]
    assert any("`out1` is always the input x" in n for n in found.notes)


def test_precision_policy_decides_about_narrow_products(tmp_path: Path) -> None:
    def narrow(head: str) -> bool:
        task = cases(tmp_path, "x): return self.lin(x)", init=LINEAR, head=head)
        return all(task.check(c, task.narrowed(c, 10))[1] is None for c in task.correctness())

    assert not narrow("") and narrow("EVOKERNEL = {'precision': 'tf32'}") and narrow("EVOKERNEL = {'precision': 'reduced'}")


def test_bfloat16_accumulation_fails_where_float32_accumulation_passes(tmp_path: Path) -> None:
    task = cases(
        tmp_path, "a, b): return (a.float() @ b.float()).to(torch.bfloat16)", "[torch.randn(16, 4096).bfloat16(), torch.randn(4096, 16).bfloat16()]"
    )

    def slow(t: dict[str, torch.Tensor], w: object) -> torch.Tensor:
        total = torch.zeros(16, 16, dtype=torch.bfloat16)
        for k in range(0, 4096, 16):
            total = total + t["a"][:, k : k + 16] @ t["b"][k : k + 16]
        return total

    def wide(t: dict[str, torch.Tensor], w: object) -> torch.Tensor:
        parts = [t["a"][:, k : k + 256].float() @ t["b"][k : k + 256].float() for k in range(0, 4096, 256)]
        return torch.stack(parts).sum(0).bfloat16()

    case = task.timed()[0]
    assert kernel(task, case, wide) is None and kernel(task, case, slow) is not None


def test_variants_versions_and_regimes_make_the_cases(tmp_path: Path) -> None:
    head = "EVOKERNEL = {'shapes': [{'n': 5}]}"
    task = cases(tmp_path, "x): return self.lin(x)", "[torch.randn(n, 64)]", LINEAR, head, "n=32")
    found = task.correctness()
    assert len(set(found)) == len(found) and {c.variant for c in found} == {0, 1} and {c.version for c in found} == {0, 1}
    assert [(c.regime, c.version) for c in task.timed()] == [("own", 0)] * 3 and task.screening() == task.timed()[:2]
    assert len({float(c.draw.tensors["x"].sum()) for c in task.timed()}) == 3
    assert next(c for c in found if c.variant == 1).draw.tensors["x"].shape == (5, 64)
    assert not torch.equal(task.weights[0]["lin_weight"], task.weights[1]["lin_weight"])


def test_a_small_memory_changes_nothing_but_time(tmp_path: Path) -> None:
    roomy = cases(tmp_path, "x): return torch.softmax(x, 1)")
    tight = Cases(roomy.loaded, memory_bytes=1, master_seed=7)
    for a, b in zip(roomy.correctness(), tight.correctness(), strict=True):
        assert torch.equal(a.draw.tensors["x"], b.draw.tensors["x"]) and torch.equal(a.truth.outputs["out"].value, b.truth.outputs["out"].value)
        ours, theirs = a.budgets["out"], b.budgets["out"]
        assert ours.max_units == theirs.max_units and ours.max_abs is not None and theirs.max_abs is not None
        assert torch.equal(ours.max_abs, theirs.max_abs)


def test_trusted_implementations_widen_the_budget(tmp_path: Path) -> None:
    task = cases(tmp_path, "x): return torch.softmax(x, 1)")
    case = task.timed()[0]
    before = case.budgets["out"].max_units
    measured = task.trust(case, {"out": task.eager(case)["out"] * (1 + 1e-5)})["out"].max_units
    assert case.budgets["out"].max_units == pytest.approx(8 * measured) and 8 * measured > before


def test_state_is_checked_too(tmp_path: Path) -> None:
    task = cases(tmp_path, "x): return self.bn(x)", init="self.bn = nn.BatchNorm1d(64)")
    case = task.timed()[0]
    outputs = task.eager(case)
    assert task.check(case, outputs)[1] is None
    stale = {**outputs, "out_bn_running_mean": case.weights["bn_running_mean"]}
    assert "bn.running_mean (out_bn_running_mean)" in str(task.check(case, stale)[1])


def test_a_loss_of_one_number_is_admitted(tmp_path: Path) -> None:
    task = cases(tmp_path, "x, y): return F.cross_entropy(x, y)", "[torch.randn(64, 10), torch.randint(0, 10, (64,))]")
    assert not admit(task).forced
