"""Descriptions of common GPUs, so that `cuda` plans resolve on machines without one."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ..errors import UsageError
from ..records import Device
from .located import suggest


@cache
def shipped_gpus() -> tuple[Device, ...]:
    """All shipped descriptions (figures from the public datasheets and the CUDA programming guide)."""
    import json  # costs a third of the package's import time

    rows = json.loads(Path(__file__).with_name("gpus.json").read_text(encoding="utf-8"))
    return tuple(Device(target="cuda", **row) for row in rows)


def shipped_gpu(name: str) -> Device:
    """The description of a GPU by its name or its last part (`H200`).

    Raises:
        UsageError: none is shipped for it.
    """
    for device in shipped_gpus():
        if name.lower() in (device.name.lower(), device.name.lower().removeprefix("nvidia ").removeprefix("geforce ")):
            return device
    raise UsageError(f"no description of the GPU {name!r} is shipped; {suggest(name, [d.name for d in shipped_gpus()])}")
