"""What the task itself costs at least, to set a time against: bytes that must move, and the reference's own work."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from ..records import Bounds
from ..task import LoadedTask

_cache: dict[str, Bounds] = {}


def bounds(loaded: LoadedTask) -> Bounds:
    """Compulsory traffic in bytes (inputs and outputs once, parameters left out) and the multiply-add work of the reference in FLOP.

    The fractions are 0: a CPU has no datasheet bandwidth, and work is only ever reported.
    """
    task = loaded.task
    if task.id not in _cache:
        traffic = sum(min(t.numel, t.span) * t.itemsize for t in (*task.signature.inputs, *task.signature.outputs))
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            loaded.run(loaded.draw(0, 0))
        _cache[task.id] = Bounds(traffic_bytes=traffic, work_flop=int(counter.get_total_flops()))
    return _cache[task.id]
