"""What a verdict's figures are made of, and which bottleneck they name."""

import re
import subprocess
import sys

import pytest

from evokernel import codec
from evokernel.records import (
    BaselineTime,
    Bounds,
    Device,
    Environment,
    Interval,
    ModeTiming,
    Resources,
    Status,
    Timing,
    Verdict,
)  # fmt: skip
from evokernel.records.profile import Profile, profile

GPU = Device("some GPU", "cuda", "sm_90a", 132, bandwidth_gbs=4000.0)
CPU = Device("some CPU", "cpp", "x86", 8)
LARGE = Resources(registers=32, occupancy=1.0, blocks=4096)


def verdict(cold_us: float, bounds: Bounds, made: Resources) -> Verdict:
    rows = (BaselineTime("eager", 3 * cold_us, Interval(2.9, 3.0, 3.1), live=True),)
    timing = Timing("warm", (ModeTiming("cold", cold_us, cold_us, cold_us, 9, rows), ModeTiming("warm", cold_us / 2, 1.0, 1.0, 9, rows)))
    here = Environment("somewhere", "some", "some", "none", {})
    return Verdict(Status.VERIFIED, "done", "", "k", {}, here, timing=timing, resources=made, bounds=bounds, milestone=1)


def figures(found: Profile) -> dict[str, float | int | str]:
    return {f.name: f.value for f in found.figures}


def test_figures_follow_from_times_and_bounds_without_rounding() -> None:
    bounds = Bounds(traffic_bytes=123_456_789, traffic_fraction=0.7654321987, work_flop=987_654_321, work_fraction=0.0123456789)
    made = Resources(900, 40, 16, 4096, ("shuffles", "vector_loads"), 0.75, 528)
    found = profile(verdict(33.7712345, bounds, made), GPU)
    shown = figures(found)
    assert shown["bandwidth by that traffic, cold"] == 123_456_789 / 33.7712345 / 1e3  # GB/s
    assert shown["rate by that work"] == 987_654_321 / (33.7712345 / 2) / 1e6  # TFLOP/s, in the mode that counts
    assert shown["share of the peak bandwidth"] == 0.7654321987
    assert (shown["registers"], shown["spills and stack"], shown["static shared memory"], shown["occupancy"]) == (40, 16, 4096, 0.75)
    assert 10 <= len(found.figures) <= 16
    assert "time, cold: 33.7712 us" in found.text and "traffic that must be: 123456789 bytes" in found.text


@pytest.mark.parametrize(
    ("bounds", "made", "device", "cold_us", "bottleneck", "says"),
    [
        (Bounds(1, 0.8, 1, 0.1), LARGE, GPU, 90.0, "memory", "80.0% of the peak bandwidth and 10.0%.*fewer bytes"),
        (Bounds(1, 0.3, 0, 0.0), LARGE, GPU, 90.0, "memory", "more than once.*16 bytes a thread"),
        (Bounds(1, 0.1, 1, 0.9), LARGE, GPU, 90.0, "compute", "less work"),
        (Bounds(1, 0.1, 1, 0.3), LARGE, GPU, 90.0, "compute", "tensor cores"),
        (Bounds(1, 0.1, 1, 0.0), LARGE, GPU, 4.0, "latency", "4 us is little more than a launch"),
        (Bounds(1, 0.1, 1, 0.0), Resources(registers=32, occupancy=1.0, blocks=64), GPU, 90.0, "latency", "64 blocks for 132"),
        (Bounds(1, 0.1, 1, 0.0), Resources(registers=255, occupancy=0.125, blocks=640), GPU, 90.0, "latency", "occupancy 0.12"),
        (Bounds(1, 0.1, 1, 0.0), Resources(registers=32, spill_bytes=48, occupancy=1.0, blocks=640), GPU, 90.0, "latency", "48 bytes a thread"),
        (Bounds(1, 0.7, 1, 0.0), Resources(registers=32, occupancy=0.125, blocks=64), GPU, 90.0, "memory", "fewer bytes"),  # slow for no such reason
        (Bounds(1, 0.3, 1, 0.0), Resources(features=("avx2",)), CPU, 900.0, "latency", "one of 8 cores"),
        (Bounds(1, 0.3, 1, 0.0), Resources(features=("openmp",)), CPU, 900.0, "memory", "stream in order"),
        (Bounds(1, 0.1, 1, 0.2), Resources(features=("openmp",)), CPU, 900.0, "compute", "vectorise"),
        (Bounds(1, 0.0, 1, 0.0), Resources(features=("openmp",)), CPU, 900.0, "unknown", "doctor --measure"),
    ],
)  # fmt: skip
def test_the_bottleneck_is_named_with_what_would_help(
    bounds: Bounds, made: Resources, device: Device, cold_us: float, bottleneck: str, says: str
) -> None:
    found = profile(verdict(cold_us, bounds, made), device)
    assert found.bottleneck == bottleneck, found.why
    assert re.search(says, found.why), found.why


def test_a_kernel_that_failed_has_what_the_compiler_said() -> None:
    here = Environment("somewhere", "sm_90a", "some", "none", {})
    found = profile(Verdict(Status.MISMATCH, "correctness", "wrong", "k", {}, here, resources=LARGE))
    assert found.bottleneck == "unknown" and "mismatch" in found.why and figures(found)["registers"] == 32
    assert profile(Verdict(Status.BUILD_FAILED, "build", "no", "k", {}, here)).figures == ()


def test_it_travels_as_json_and_needs_no_torch() -> None:
    found = profile(verdict(20.0, Bounds(1000, 0.5), LARGE))
    assert codec.loads(Profile, codec.dumps(found)) == found
    code = "import sys, evokernel.records.profile; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
