"""Truth in float64 whatever the module does, and the scale that errors are measured in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from evokernel.errors import TaskError
from evokernel.judge.cases import Cases
from evokernel.judge.compare import Budget, wrong_elements
from evokernel.judge.exact import in_float64
from evokernel.judge.truth import Truth, evaluate, nudged, rounded, truth_of, ulp
from evokernel.task import LoadedTask, load_task


@pytest.fixture(autouse=True)
def few_threads() -> None:
    torch.set_num_threads(1)


def task(tmp_path: Path, forward: str, inputs: str, init: str = "pass") -> LoadedTask:
    file = tmp_path / "task.py"
    file.write_text(
        f"import torch\nimport torch.nn as nn\nimport numpy as np\nclass Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        {init}\n"  # noqa: E501
        f"    def forward(self, {forward}\ndef get_inputs():\n    return {inputs}\n"
    )
    return load_task(file)


def truth(loaded: LoadedTask, seed: int = 1) -> Truth:
    draw = loaded.draw(0, seed)
    return truth_of(loaded, draw, loaded.weights(), loaded.run(draw), 5)


@pytest.mark.parametrize(
    ("forward", "exact"),
    [
        ("x): return (x.float() * 3.1).to(torch.bfloat16)", lambda x: x * 3.1),
        ("x): return x.half().float() / 3", lambda x: x / 3),
        ("x): return x + torch.full((4,), 0.1)", lambda x: x + 0.1),
        ("x): return x + torch.tensor(0.1)", lambda x: x + 0.1),
        ("x): return x + torch.linspace(0, 1, 4, dtype=torch.float32)", lambda x: x + torch.linspace(0, 1, 4, dtype=torch.float64)),
        ("x): return torch.zeros(4, dtype=torch.float16).add_(x)", lambda x: x),
        ("x): return torch.softmax(x, 0, dtype=torch.float32)", lambda x: torch.softmax(x, 0)),
        ("x): return torch.fft.ifft(torch.fft.fft(x.to(torch.complex64)) * (0.1 + 0.3j)).real", lambda x: x * 0.1),
        ("x): return x.to(torch.complex32).real * 3", lambda x: x * 3),
        ("x): return x + torch.finfo(x.dtype).eps", lambda x: x + 2**-23),
        ("x): return x + torch.finfo(x.to(torch.float64).dtype).eps * (x.dtype is torch.float32)", lambda x: x + 2**-23),
        ("x): return x.double() + torch.finfo(torch.float64).eps", lambda x: x + 2**-52),
        ("x):\n        with torch.autocast('cpu', dtype=torch.bfloat16): return torch.mm(x[None], x[:, None])[0]", lambda x: (x @ x)[None]),
    ],
)
@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_lower_precision_inside_the_module_does_not_reach_the_truth(tmp_path: Path, forward: str, exact: object) -> None:
    loaded = task(tmp_path, forward, "[torch.randn(4)]")
    draw = loaded.draw(0, 1)
    values, _ = evaluate(loaded, draw, loaded.weights())
    assert values["out"].dtype is torch.float64
    torch.testing.assert_close(values["out"], exact(draw.tensors["x"].double()), rtol=1e-14, atol=1e-14)  # type: ignore[operator]


def test_modules_of_16_bits_and_their_weights(tmp_path: Path) -> None:
    loaded = task(tmp_path, "x): return self.lin(x)", "[torch.randn(4, 8).bfloat16()]", "self.lin = nn.Linear(8, 8).bfloat16()")
    draw, weights = loaded.draw(0, 1), loaded.weights()
    values, products = evaluate(loaded, draw, weights)
    exact = draw.tensors["x"].double() @ weights["lin_weight"].double().T + weights["lin_bias"].double()
    assert products
    torch.testing.assert_close(values["out"], exact, rtol=1e-14, atol=1e-14)
    assert loaded.weights()["lin_weight"].dtype is torch.bfloat16 and loaded.run(draw)["out"].dtype is torch.bfloat16


def test_running_statistics_have_a_truth_and_stay_as_they_were(tmp_path: Path) -> None:
    loaded = task(tmp_path, "x): return self.bn(x)", "[torch.randn(64, 3) * 2 + 5]", "self.bn = nn.BatchNorm1d(3)")
    found = truth(loaded).outputs
    x = loaded.draw(0, 1).tensors["x"].double()
    torch.testing.assert_close(found["out_bn_running_mean"].value, 0.1 * x.mean(0), rtol=1e-12, atol=0)
    assert float(loaded.weights()["bn_running_mean"].abs().max()) == 0 and loaded.weights()["bn_running_mean"].dtype is torch.float32


def test_the_default_dtype_comes_back() -> None:
    exact = torch.zeros(1, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"inside torch\.bfloat16"), in_float64(own=torch.bfloat16):
        raise ValueError(f"inside {exact.dtype}")
    assert torch.get_default_dtype() is torch.float32 and exact.dtype is torch.float64


def test_bit_tricks_are_refused(tmp_path: Path) -> None:
    loaded = task(tmp_path, "x): return x.view(torch.int32) >> 3", "[torch.randn(4)]")
    with pytest.raises(TaskError, match="bits"):
        truth(loaded)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_nudging_moves_every_value_by_one_step(dtype: torch.dtype) -> None:
    old = torch.randn(6, 50).to(dtype).t()
    old[3, 3], old[4, 4], old[5, 5] = 0.0, torch.inf, torch.nan
    new = nudged(old, torch.Generator().manual_seed(1))
    assert new.stride() == old.stride() and new.dtype is torch.float64
    finite = old.isfinite() & (old != 0)
    steps = (new - old.double())[finite].abs() / ulp(old, dtype).double()[finite]
    assert float(steps.max()) <= 1.0 and float(steps.min()) >= 0.5 and 100 < int((new > old.double()).sum()) < 200
    assert float(new[3, 3]) == 0 and new[4, 4].isinf() and new[5, 5].isnan()


def test_scale_follows_conditioning(tmp_path: Path) -> None:
    plain = truth(task(tmp_path, "x): return x * 2", "[torch.rand(2000) + 1]")).outputs["out"]
    summed = truth(task(tmp_path, "x): return (x * 1e4).sum(dim=1)", "[torch.randn(2000, 64)]")).outputs["out"]
    assert plain.scale is not None and summed.scale is not None
    assert 1.0 < float(plain.scale.mean() / (plain.value.abs().mean() * 2**-23)) < 6.0
    assert float(summed.scale.min()) > 1e4 * 2**-24


def test_cancelling_elements_are_held_to_their_neighbours_accuracy(tmp_path: Path) -> None:
    loaded = task(tmp_path, "x): return torch.nn.functional.gelu(x)", "[torch.randn(64, 256) * 3]")
    draw, found = loaded.draw(0, 1), truth(loaded).outputs["out"]
    units = (loaded.run(draw)["out"].double() - found.value).abs() / found.scale
    assert float(units.max()) < 30


def test_whole_numbers_get_bounds_only_where_rounding_decides(tmp_path: Path) -> None:
    clear = truth(task(tmp_path, "x): return (x > 0), torch.argmax(x, 1)", "[torch.randn(50, 20)]")).outputs
    assert all(e.high is e.value for e in clear.values())
    levels = truth(task(tmp_path, "x): return torch.floor(x / 10).to(torch.int32)", "[torch.randint(0, 20, (500,)).float() * 5]")).outputs["out"]
    assert levels.high is not None and 0 < int((levels.high != levels.value).sum()) < 500 and int((levels.high - levels.value).max()) == 1


def within(loaded: LoadedTask, output: object, seeds: int = 3) -> list[bool]:
    """Whether what `output` makes of x lies within the bounds, for some draws."""
    found = []
    for seed in range(seeds):
        expected = truth(loaded, seed).outputs["out"]
        found.append(not bool(wrong_elements(output(loaded.draw(0, seed).tensors["x"]), expected, Budget(0.0)).any()))  # type: ignore[operator]
    return found


def best(x: torch.Tensor, first: bool, k: int = 8) -> torch.Tensor:
    """Indices of the largest values in each row: of equal ones the first or the last ones."""
    if first:
        return x.sort(dim=-1, descending=True, stable=True)[1][:, :k]
    return x.shape[1] - 1 - x.flip(-1).sort(dim=-1, descending=True, stable=True)[1][:, :k]


@pytest.mark.parametrize(
    ("forward", "values", "inputs"),
    [
        ("x.topk(8, -1)[1]", lambda x: x, "torch.randn(64, 1000).bfloat16()"),
        ("x.relu().topk(8, -1)[1]", torch.relu, "torch.randn(64, 20)"),
        ("x.sort(-1, descending=True)[1][:, :8]", lambda x: x, "torch.randint(0, 9, (64, 50)).float()"),
        ("x.argmax(-1, keepdim=True)", lambda x: x, "torch.randint(0, 9, (64, 50)).float()"),
        ("x.max(-1, keepdim=True)[1]", lambda x: x, "torch.randint(0, 9, (64, 50)).float()"),
        ("x.reshape(-1).argmax().view(1, 1)", lambda x: x.reshape(1, -1), "torch.randn(64, 50).bfloat16()"),
    ],
)
def test_any_of_equal_values_may_be_chosen_and_no_other(tmp_path: Path, forward: str, values: object, inputs: str) -> None:
    loaded = task(tmp_path, f"x): return {forward}", f"[{inputs}]")
    k = loaded.task.signature.outputs[0].shape[-1]
    for first in (True, False):
        assert all(within(loaded, lambda x, first=first: best(values(x), first, k)))  # type: ignore[operator]
    assert not any(within(loaded, lambda x: best(-values(x), True, k)))  # type: ignore[operator]


def test_a_long_sort_has_near_ties_and_is_its_own_answer(tmp_path: Path) -> None:
    loaded = task(tmp_path, "x): return x.sort(-1)[1]", "[torch.randn(16, 20000)]")
    assert all(within(loaded, lambda x: x.sort(dim=-1, stable=True)[1], 1))
    assert not any(within(loaded, lambda x: x.bfloat16().sort(dim=-1)[1], 1))


def softmax_by_powers_of_two(x: torch.Tensor) -> torch.Tensor:
    e = torch.exp2((x - x.amax(1, keepdim=True)) * 1.4426950408889634)
    return e / e.sum(1, keepdim=True)


def product(x: torch.Tensor, scale: float = 20.0) -> torch.Tensor:
    return sum(x[:, k : k + 16] @ x[:, k : k + 16].T for k in range(0, 256, 16)) * scale  # type: ignore[return-value]


def int8(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(-128, 127).to(torch.int8)


@pytest.mark.parametrize(
    ("forward", "inputs", "right", "wrong"),
    [
        (
            "torch.clamp(torch.round(x @ x.T * 20), -128, 127).to(torch.int8)",
            "torch.randn(512, 256) / 16",
            [lambda x: int8(torch.round(product(x))), lambda x: int8(torch.floor(product(x) + 0.5))],
            [
                lambda x: int8(product(x)),
                lambda x: int8(torch.round(product(x, 20.02))),
                lambda x: int8(torch.round(product(x.bfloat16().float()))),
            ],
        ),
        (
            "torch.softmax(x, 1) > 1e-3",
            "torch.randn(64, 1000) * 1e-3",
            [lambda x: softmax_by_powers_of_two(x) > 1e-3],
            [lambda x: torch.softmax(x, 1) > 1.01e-3, lambda x: torch.softmax(x, 1) > 1.0001e-3],
        ),
        (
            "(torch.softmax(x, 1) * 1e9).to(torch.int64)",
            "torch.randn(64, 1000)",
            [lambda x: (softmax_by_powers_of_two(x) * 1e9).to(torch.int64)],
            [lambda x: (softmax_by_powers_of_two(x) * 1.001e9).to(torch.int64)],
        ),
    ],
)
def test_rounding_may_decide_whole_numbers_and_nothing_else_may(
    tmp_path: Path, forward: str, inputs: str, right: list[object], wrong: list[object]
) -> None:
    loaded = task(tmp_path, f"x): return {forward}", f"[{inputs}]")
    assert all(all(within(loaded, f)) for f in right) and not any(any(within(loaded, f)) for f in wrong)


def test_a_move_that_leaves_a_table_says_nothing(tmp_path: Path) -> None:
    loaded = task(tmp_path, "x): return self.table[x.long()] * 3", "[torch.full((8,), 3.9999995)]", "self.register_buffer('table', torch.arange(4))")
    found = truth(loaded).outputs["out"]
    assert bool((found.value == 9).all()) and found.high is found.value


def test_rounding_to_fewer_bits() -> None:
    x = torch.randn(1000)
    assert torch.equal(rounded(x, 7), x.bfloat16().float()) or float((rounded(x, 7) - x.bfloat16().float()).abs().max()) < 0.02
    assert 0 < float(((rounded(x, 10) - x) / x).abs().max()) <= 2**-11
    assert rounded(x.half(), 7).dtype is torch.float16


def test_a_narrow_failure_is_compared_again_with_a_surer_scale(tmp_path: Path) -> None:
    """Neighbours in a cumulative sum share their noise, so that few draws leave whole stretches with far too small a scale."""
    file = tmp_path / "task.py"
    file.write_text(
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return x.cumsum(1)\n"
        "def get_inputs():\n    return [torch.randn(48, 24576)]\ndef get_init_inputs():\n    return []\n"
    )
    cases = Cases(load_task(file), master_seed=3)
    case = cases.timed()[0]
    quick = case.truth.outputs["out"]
    outputs = cases.loaded.run(case.draw, case.weights)
    sharp = truth_of(cases.loaded, case.draw, case.weights, outputs, 4, sharp=True).outputs["out"].scale
    assert quick.scale is not None and sharp is not None
    low = quick.scale < sharp / 3
    assert 0 < int(low.sum()) < 0.1 * low.numel()
    off = torch.where(low, 6 * sharp, 0.0)
    rows, message = cases.check(case, {"out": (quick.value + off).float()})
    assert message is None and rows[0].passed, message
    _, message = cases.check(case, {"out": (quick.value + 10 * off).float()})
    assert message and "units allowed" in message
