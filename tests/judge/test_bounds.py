"""What a task costs at least: which inputs count, and which times cannot be true."""

from pathlib import Path

import pytest

from evokernel.judge import roofline
from evokernel.judge.bounds import Costs, bounds, costs, impossible
from evokernel.judge.cases import Cases
from evokernel.judge.timing import race
from evokernel.records import BaselineTime, Device, Interval, ModeTiming, Precision, Timing
from evokernel.task import load_task

GPU = Device("some GPU", "cuda", "sm_90a", 132, l2_bytes=60_000_000, bandwidth_gbs=1000.0)
HEAD = """import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(64, 64)
"""


def costs_of(tmp_path: Path, forward: str, inputs: str) -> Costs:
    file = tmp_path / "task.py"
    file.write_text(f"{HEAD}    def forward({forward}\ndef get_inputs():\n    return {inputs}\n")
    return costs(Cases(load_task(file), master_seed=3))


def timing(cold_us: float) -> Timing:
    rows = (BaselineTime("eager", cold_us, Interval(1.0, 1.0, 1.0), live=True),)
    return Timing("cold", tuple(ModeTiming(m, us, us, us, 9, rows) for m, us in (("cold", cold_us), ("warm", cold_us / 2))))


@pytest.mark.parametrize(
    ("forward", "inputs", "read_bytes"),
    [
        ("self, x): return torch.softmax(x, -1)", "[torch.randn(32, 64)]", 32 * 64 * 4),
        ("self, x): return self.lin(x[:, :64])", "[torch.randn(32, 128)]", 32 * 64 * 4),
        ("self, x, i): return x[i]", "[torch.randn(512, 16), torch.arange(32)]", 32 * 16 * 4),
        # What only looks as if it were needed: the mean of a normalised row is 0, so y decides nothing.
        ("self, x, y): return x + nn.functional.layer_norm(y, (64,)).mean(-1, keepdim=True)", "[torch.randn(32, 64), torch.randn(32, 64)]", 8192),
        ("self, x): return x.detach() * 2 + 1", "[torch.randn(32, 64)]", 0),
    ],
)  # fmt: skip
def test_only_inputs_that_surely_matter_count(tmp_path: Path, forward: str, inputs: str, read_bytes: int) -> None:
    assert costs_of(tmp_path, forward, inputs).read_bytes == pytest.approx(read_bytes, rel=0.02)


def test_fractions_are_set_against_all_that_has_a_gradient(tmp_path: Path) -> None:
    """Most gradients of a sharp maximum are so small that rounding could explain them: nothing to reject by, but bytes to read all the same."""
    found = costs_of(tmp_path, "self, x): return torch.logsumexp(x * 8, dim=1)", "[torch.randn(64, 4096)]")
    assert found.read_bytes < 0.2 * found.reached_bytes and found.reached_bytes == pytest.approx(64 * 4096 * 4, rel=0.02)


def test_products_are_counted_as_work(tmp_path: Path) -> None:
    found = costs_of(tmp_path, "self, x): return self.lin(x)", "[torch.randn(32, 64)]")
    assert found.work_flop == 2 * 32 * 64 * 64 and found.written_bytes == 32 * 64 * 4


def test_a_time_under_the_traffic_bound_is_impossible() -> None:
    cost = Costs(read_bytes=100_000_000, reached_bytes=100_000_000, written_bytes=80_000_000, work_flop=10)
    assert cost.least_us(GPU) == pytest.approx(120.0)  # of the outputs, what fits in the cache may still be on its way
    assert impossible(cost, GPU, timing(121.0)) is None
    reason = impossible(cost, GPU, timing(119.0))
    assert reason and "119.0 us" in reason and "120.0 us" in reason
    assert impossible(cost, Device("a CPU", "cpp", "x86", 2), timing(0.1)) is None


def test_fractions_are_of_the_peak_and_of_what_was_measured(tmp_path: Path) -> None:
    cost = Costs(read_bytes=100_000_000, reached_bytes=100_000_000, written_bytes=100_000_000, work_flop=50_000_000)
    assert roofline.read(tmp_path, GPU) is None
    roofline.write(tmp_path, GPU, roofline.Roofline(900.0, {"strict": 1.0, "tf32": 4.0, "reduced": 8.0}))
    rates = roofline.read(tmp_path, GPU)
    reached = bounds(cost, GPU, rates, Precision.STRICT, timing(400.0))
    assert (reached.traffic_fraction, reached.work_fraction) == (pytest.approx(0.5), pytest.approx(0.125))
    assert bounds(cost, GPU, None, Precision.STRICT, timing(400.0)).work_fraction == 0.0


def test_disturbed_blocks_are_void_but_do_not_keep_a_race_from_ending() -> None:
    class Side:
        def run(self, mode: str) -> list[float]:
            return [10.0]

    looks = iter([True, False, True, True, False] + [True] * 50)
    assert race(Side(), Side(), "cold", seconds=5.0, steady=lambda: next(looks)).void_blocks == 2
    always = race(Side(), Side(), "cold", seconds=5.0, steady=lambda: False)
    assert len(always.baseline_us) >= 16 and always.void_blocks <= 12
