"""What a task costs at least, to set a time against: bytes that must move, and the reference's own work.

Traffic is a hard limit on a GPU: inputs that are in no cache come from memory, and of the outputs at most the second-level cache's size is
still on its way when a call ends. Work is none: algebra may remove it, and products of split precision may beat the rate of whole ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch.utils.flop_counter import FlopCounterMode

from ..records import Bounds, Device, Precision, Timing
from .cases import Cases
from .roofline import Roofline

_SHARE_OF_LARGEST = 1e-4  # gradients below this share of an input's largest may be rounding


@dataclass(frozen=True)
class Costs:
    """Bytes of the inputs that matter (parameters left out) and of the outputs, and the multiply-adds of the reference in FLOP.

    `read_bytes` are those of elements that certainly matter: a time under them is impossible. `reached_bytes`, which is more where most gradients
    are tiny (the logits of a cross entropy), are those of all elements with a gradient: fractions are set against them.
    """

    read_bytes: int
    reached_bytes: int
    written_bytes: int
    work_flop: int

    def least_us(self, device: Device) -> float:
        """Microseconds that no cold call can beat; 0 where the device's bandwidth is not known."""
        if not device.bandwidth_gbs:
            return 0.0
        return (self.read_bytes + max(0, self.written_bytes - device.l2_bytes)) / device.bandwidth_gbs / 1e3


def costs(cases: Cases) -> Costs:
    """The costs of the timed variant. An input counts with the share of its elements that certainly reach an output; where that cannot be
    told (integers, code that autograd does not follow) it counts with nothing, so that no honest kernel is ever called impossible."""
    signature = cases.loaded.task.signature
    shares = _shares(cases)
    read, reached = (
        sum(int(shares.get(t.name, (0.0, 0.0))[which] * min(t.numel, t.span)) * t.itemsize for t in signature.inputs) for which in (0, 1)
    )
    written = sum(min(t.numel, t.span) * t.itemsize for t in signature.outputs)
    with FlopCounterMode(display=False) as counter:
        cases.loaded.run(cases.loaded.draw(0, 0))
    return Costs(read, reached, written, int(counter.get_total_flops()))


def _shares(cases: Cases) -> dict[str, tuple[float, float]]:
    """By input, the share of elements with a gradient that is no rounding, and with any; nothing for inputs that may be drawn anew without
    failing the task's check."""
    loaded, case = cases.loaded, cases.timed()[0]
    other = loaded.draw(0, 1)
    gradients = loaded.gradients(case.draw, case.weights)
    found = {}
    for name, gradient in gradients.items():
        changed = loaded.run(case.draw.replace({name: other.tensors[name]}), case.weights)
        if cases.check(case, changed)[1]:
            size = gradient.abs()
            found[name] = float((size > _SHARE_OF_LARGEST * size.max()).double().mean()), float((size > 0).double().mean())
    return found


def bounds(costs: Costs, device: Device, roofline: Roofline | None, precision: Precision, timing: Timing) -> Bounds:
    """The fractions of both bounds that measured times reach."""
    cold_us = next(m.median_us for m in timing.modes if m.mode == "cold")
    traffic = costs.reached_bytes + costs.written_bytes
    peak_gbs = device.bandwidth_gbs or (roofline.copy_gbs if roofline else 0.0)
    rate = roofline.product_tflops.get(precision.value, 0.0) if roofline else 0.0
    return Bounds(
        traffic, traffic / peak_gbs / 1e3 / cold_us if peak_gbs else 0.0,
        costs.work_flop, costs.work_flop / rate / 1e6 / timing.scored.median_us if rate else 0.0,
    )  # fmt: skip


def impossible(costs: Costs, device: Device, timing: Timing) -> str | None:
    """Why a time cannot be true, None when it can."""
    cold_us = min((m.median_us for m in timing.modes if m.mode == "cold"), default=0.0)
    least_us = costs.least_us(device)
    if cold_us >= least_us:
        return None
    return (
        f"{cold_us:.1f} us cold is impossible: {costs.read_bytes} bytes of inputs that matter and {costs.written_bytes} of outputs take at least "
        f"{least_us:.1f} us at {device.bandwidth_gbs:.0f} GB/s, the peak of {device.name}; some of the work was not done in these calls"
    )
