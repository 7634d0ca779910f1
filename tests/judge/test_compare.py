"""What passes, what fails, and what the message says about it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from evokernel.judge.compare import Budget, Measured, Place, block_errors, budget_of, compare, measure, wrong_elements
from evokernel.judge.truth import Expected, ulp
from evokernel.records import Role, TensorSpec, contiguous_stride


@pytest.fixture(autouse=True)
def few_threads() -> None:
    torch.set_num_threads(1)


def spec(tensor: torch.Tensor, name: str = "out", path: str = "output") -> TensorSpec:
    return TensorSpec(name, Role.OUTPUT, path, str(tensor.dtype)[6:], tuple(tensor.shape), contiguous_stride(tuple(tensor.shape)))


def expected(value: torch.Tensor, dtype: torch.dtype = torch.float32) -> Expected:
    return Expected(value.double(), ulp(value.double(), dtype)) if value.is_floating_point() else Expected(value, high=value)


def verdict(output: torch.Tensor, truth: torch.Tensor, budget: float = 16.0, inputs: tuple[TensorSpec, ...] = ()) -> str | None:
    limit = Budget(budget if output.is_floating_point() else 0.0)
    rows, message = compare([spec(output)], {"out": output}, {"out": expected(truth, output.dtype)}, {"out": limit}, Place("own", 0, inputs))
    assert rows[0].passed == (message is None)
    assert message is None or len(message.splitlines()) <= 30
    return message


TRUTH = torch.randn(64, 96, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def test_rounding_passes_and_more_does_not() -> None:
    assert verdict(TRUTH.float(), TRUTH) is None
    assert verdict((TRUTH * (1 + 5e-7)).float(), TRUTH) is None
    assert "precision" in str(verdict((TRUTH * (1 + 1e-4 * torch.rand_like(TRUTH))).float(), TRUTH))
    assert "precision" in str(verdict(TRUTH.bfloat16().float(), TRUTH))


def test_one_wrong_element_of_many_fails_and_is_named() -> None:
    output = TRUTH.float()
    output[17, 5] += 0.01
    text = str(verdict(output, TRUTH))
    assert "1 of 6144 float32 values differ" in text and "at [17, 5]" in text and f"expected {TRUTH[17, 5].item():.9g}" in text


@pytest.mark.parametrize(
    ("spoil", "guess"),
    [
        (lambda t: torch.full_like(t, torch.nan), "never written"),
        (lambda t: torch.cat([t[:60], torch.full_like(t[60:], torch.nan)]), "from element 5760 on"),
        (torch.zeros_like, "constant: every element is 0"),
        (lambda t: torch.cat([t[:, :88], torch.zeros_like(t[:, 88:])], 1), "only in columns 88 to 95 of 96"),
        (lambda t: t.reshape(96, 64).T.reshape(64, 96) * 0 + t.mT.reshape(64, 96), "transposed"),
        (lambda t: t.roll(1), "off by one"),
        (lambda t: t + torch.linspace(0.1, 1, 96).double(), "an addend (bias) is missing or wrong: it depends on the last index only"),
        (lambda t: t * 1.5, "a factor (scale) is missing or wrong: the same"),
        (lambda t: t + 100 * torch.randn(64, 96).double().abs(), "wrong formula"),
    ],
)
def test_guesses(spoil: Callable[[torch.Tensor], torch.Tensor], guess: str) -> None:
    assert guess in str(verdict(spoil(TRUTH).float(), TRUTH))


def test_ignored_strides_are_suspected_where_an_input_has_them() -> None:
    strided = TensorSpec("a", Role.INPUT, "a", "float32", (64, 96), (1, 64))
    assert "`a` has shape (64, 96) and strides (1, 64)" in str(verdict(torch.randn(64, 96), TRUTH, inputs=(strided,)))


def test_nan_and_inf_must_stand_where_the_truth_has_them() -> None:
    truth = TRUTH.clone()
    truth[0, 0], truth[1, 1], truth[2, 2] = torch.inf, -torch.inf, torch.nan
    assert verdict(truth.float(), truth) is None
    for place, value in (((0, 0), -torch.inf), ((1, 1), 3.0), ((2, 2), 0.0), ((5, 5), torch.nan), ((5, 5), torch.inf)):
        output = truth.float()
        output[place] = value
        assert verdict(output, truth) is not None


def test_overflow_of_the_output_dtype_counts_as_inf() -> None:
    truth = torch.tensor([1.0, 1e39, -1e39], dtype=torch.float64)
    assert verdict(torch.tensor([1.0, torch.inf, -torch.inf]), truth) is None
    assert verdict(torch.tensor([1.0, torch.inf, torch.inf]), truth) is not None


def test_signed_zeros_are_equal() -> None:
    assert verdict(torch.tensor([-0.0, 0.0]), torch.zeros(2)) is None


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_whole_numbers_are_exact(dtype: torch.dtype) -> None:
    truth = torch.randint(0, 2, (64, 8)).to(dtype)
    assert verdict(truth.clone(), truth) is None
    wrong = 1 - truth.to(torch.int64)
    text = str(verdict(wrong.to(dtype), truth))
    assert f"output (out): 512 of 512 {str(dtype)[6:]} values differ" in text


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8])
def test_whole_numbers_may_be_anything_between_their_bounds(dtype: torch.dtype) -> None:
    low, high = torch.full((6,), 3, dtype=dtype), torch.full((6,), 9, dtype=dtype)
    bounds = Expected(low, high=high)
    for value, right in ((3, True), (5, True), (9, True), (2, False), (10, False)):
        output = torch.full((6,), value, dtype=dtype)
        rows, message = compare([spec(output)], {"out": output}, {"out": bounds}, {"out": Budget(0.0)}, Place("own", 0))
        assert rows[0].passed is right and (message is None) is right and rows[0].max_units == (0 if right else 1)
        assert bool(wrong_elements(output, bounds, Budget(0.0)).any()) is not right


def test_large_whole_numbers_are_exact_too() -> None:
    truth = torch.full((4,), (1 << 60) + 1)
    assert verdict(truth.clone(), truth) is None and "differ" in str(verdict(truth - 1, truth))


def test_the_right_leaf_is_named() -> None:
    values, indices = torch.randn(64, 8), torch.randint(0, 100, (64, 8))
    specs = [spec(values, "out0", "output[0]"), spec(indices, "out1", "output[1]")]
    truth = {"out0": expected(values), "out1": expected(indices)}
    rows, message = compare(specs, {"out0": values, "out1": indices + 1}, truth, {"out0": Budget(16), "out1": Budget(0)}, Place("normal", 1))
    assert [r.passed for r in rows] == [True, False]
    assert message is not None and "output[1] (out1): 512 of 512 int64 values differ" in message and "off by one" in message and "'normal'" in message


def test_a_large_tensor_is_compared_to_its_last_element() -> None:
    truth = torch.randn(3, 300_001)
    output = truth.clone()
    output[2, 300_000] = 9.0
    assert "1 of 900003" in str(verdict(output, truth)) and measure(truth.t().contiguous().t(), expected(truth)).max_units == 0


def test_wrong_shapes_are_our_fault() -> None:
    with pytest.raises(ValueError, match="the task has"):
        compare([spec(TRUTH.float())], {"out": torch.zeros(64)}, {"out": expected(TRUTH)}, {"out": Budget(16)}, Place("own", 0))


def test_budgets() -> None:
    large, small, eager = torch.empty(64, 64), torch.empty(8), torch.tensor([0.5, 0.0])
    assert budget_of(spec(large), Measured(1.0), None, None).max_units == 32 and budget_of(spec(small), Measured(1.0), None, None).max_units == 64
    budget = budget_of(spec(large), Measured(20.0), eager, None)
    assert budget.max_units == 160.0 and budget.max_abs is not None and budget.max_abs.tolist() == [1.0, 0.0]
    assert budget_of(spec(large), Measured(20.0), eager, 3.0) == Budget(3.0)
    half = budget_of(spec(large.half()), Measured(3.0, 0.8, 1.0), eager, None)
    assert half.max_units == 6.0 and half.rms_units == pytest.approx(1.2) and half.max_abs is None


def test_what_eager_is_off_by_twice_is_allowed_there_and_nowhere_else() -> None:
    eager = TRUTH.float()
    eager[0, :4] += 1e-3
    budget = budget_of(spec(eager), Measured(1.0), block_errors(eager, expected(TRUTH)), None)
    for row, right in ((0, True), (2, True), (3, False), (63, False)):  # rows of 96: the first block of 256 ends in row 2
        output = TRUTH.float()
        output[row, :8] += 1.5e-3
        rows, message = compare([spec(output)], {"out": output}, {"out": expected(TRUTH)}, {"out": budget}, Place("own", 0))
        assert rows[0].passed is right and (message is None) is right and rows[0].max_units > 16


def test_sixteen_bits_are_held_to_their_rms() -> None:
    truth = TRUTH.bfloat16().double() * 1.001
    output = truth.bfloat16().view(torch.int16).add(1).view(torch.bfloat16)
    rows, message = compare([spec(output)], {"out": output}, {"out": expected(truth, torch.bfloat16)}, {"out": Budget(4.0, 0.55)}, Place("own", 0))
    assert not rows[0].passed and message is not None and "rms" in message
