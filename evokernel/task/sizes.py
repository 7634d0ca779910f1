"""How much memory judging a task takes, known before the task allocates any."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from ..errors import TaskError
from ..records import Scalar
from .loaded import as_call
from .tree import Leaf, leaves

_CHILD_S = 10.0
_PR_SET_PDEATHSIG = 1
GIB = 2.0**30


@dataclass(frozen=True)
class Sizes:
    """Bytes of one variant's inputs, weights and outputs. `inputs` describes the largest inputs for a message."""

    inputs: tuple[str, ...]
    input_bytes: int
    weight_bytes: int
    output_bytes: int

    @property
    def judging_bytes(self) -> int:
        """What judging holds at once: three slots, the draws, and truth, noise and scales in double precision."""
        return 8 * (self.input_bytes + self.output_bytes) + 4 * self.weight_bytes


def _bytes(tensor: Tensor) -> int:
    span = 1 + sum((d - 1) * s for d, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    return int(span * tensor.element_size())


def sizes_of(inputs: Sequence[Leaf], weights: Sequence[Tensor], outputs: Sequence[Tensor]) -> Sizes:
    """The sizes of one variant from its (real or fake) tensors."""
    given = [(leaf.path, leaf.value) for leaf in inputs if isinstance(leaf.value, Tensor) and leaf.value.layout is torch.strided]
    given.sort(key=lambda item: -_bytes(item[1]))
    texts = [f"{path} {tuple(t.shape)} {str(t.dtype).removeprefix('torch.')} {_bytes(t) / GIB:.2f} GiB" for path, t in given[:4]]
    return Sizes(tuple(texts), sum(_bytes(t) for _, t in given), sum(map(_bytes, weights)), sum(map(_bytes, outputs)))


def available_bytes() -> int:
    """Memory that can be taken now: free memory of the machine, or what the control group still allows if that is less."""
    free = next(int(line.split()[1]) * 1024 for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
    with suppress(OSError, ValueError):
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        free = min(free, limit - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    return free


def refuse_too_large(sizes: Sizes) -> None:
    """Raises:
    TaskError: judging this would not fit; the sizes are in the message.
    """
    limit = available_bytes()
    if sizes.judging_bytes <= limit:
        return
    raise TaskError(
        f"the task is too large to judge here: inputs {sizes.input_bytes / GIB:.2f} GiB ({'; '.join(sizes.inputs)}), weights "
        f"{sizes.weight_bytes / GIB:.2f} GiB, outputs {sizes.output_bytes / GIB:.2f} GiB; judging needs about "
        f"{sizes.judging_bytes / GIB:.1f} GiB and {limit / GIB:.1f} GiB are available. Use smaller shapes in get_inputs()", refused=True,
    )  # fmt: skip


def sizes_before_allocation(module: ModuleType, variants: Sequence[Mapping[str, Scalar]]) -> list[Sizes]:
    """Sizes from get_inputs, Model and forward under FakeTensorMode, as far as they run there (what does not is left out).

    In a forked child: a cache the user's code fills with fake tensors must not survive into the real run, and a
    hang or crash costs nothing but the estimate.
    """
    FakeTensorMode()  # its first use imports for two seconds; done here, children inherit it
    read, write = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1)
            os.dup2(silent, 2)
            if os.getppid() == parent:
                _report(module, variants, write)
        finally:
            os._exit(0)
    os.close(write)
    try:
        known = {s[0]: Sizes(tuple(s[1]), *s[2:]) for s in map(json.loads, _lines(read))}
        return list(known.values())
    finally:
        os.close(read)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _report(module: ModuleType, variants: Sequence[Mapping[str, Scalar]], write: int) -> None:
    """Write one line of JSON a variant, better known with each step, to the pipe."""
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        init = getattr(module, "get_init_inputs", None)
        for number, variant in enumerate(variants):
            args, kwargs, _ = as_call(module.get_inputs(**variant), "get_inputs()")
            names = [f"argument {i}" for i in range(len(args))]
            given = [leaf for n, a in zip([*names, *kwargs], [*args, *kwargs.values()], strict=True) for leaf in leaves(a, "", n)]
            _send(write, number, sizes_of(given, [], []))
            init_args, init_kwargs, _ = as_call(init() if callable(init) else [], "get_init_inputs()")
            model = module.Model(*init_args, **init_kwargs)
            weights = [*model.parameters(), *model.buffers()]
            _send(write, number, sizes_of(given, weights, []))
            result = [leaf.value for leaf in leaves(model(*args, **kwargs), "", "") if isinstance(leaf.value, Tensor)]
            _send(write, number, sizes_of(given, weights, result))


def _send(write: int, number: int, sizes: Sizes) -> None:
    os.write(write, json.dumps([number, sizes.inputs, sizes.input_bytes, sizes.weight_bytes, sizes.output_bytes]).encode() + b"\n")


def _lines(read: int) -> list[bytes]:
    """Whole lines until the child ends or its time is over."""
    data = b""
    while select.select([read], [], [], _CHILD_S)[0]:
        chunk = os.read(read, 65536)
        if not chunk:
            break
        data += chunk
    return data.splitlines()
