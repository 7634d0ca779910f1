"""What a candidate has to beat: eager and compiled PyTorch, each in a process of its own, on the same kind of buffers and pinning.

The process loads the task itself (it is the user's own code and is not confined like a candidate). Its allocator keeps freed memory
(see zygotes.py), so that no baseline pays for page faults that a user's warm process would not see.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch

from ..channel import Channel, ChannelClosed, Message
from ..codec import decode
from ..errors import JudgeError, TaskError
from ..records import MODES
from ..runner.buffers import Window
from ..runner.gpu import Between, Cleaner, GraphedCall, timed
from ..runner.main import open_window
from ..runner.vendor import set_precision, tensor_at
from ..targets.workplace import put
from ..task import Draw, LoadedTask, load_task
from ..task.source import user_code
from .cases import Case
from .contestant import Contestant, Failure, Seat
from .memory import TaskMemory, slotted
from .zygotes import Zygote

FROZEN = "compile-frozen"  # weights folded by the compiler: the baseline of candidates that prepare weights
_COMPILE_MODE = {"compile": "default", "compile-max-autotune": "max-autotune", FROZEN: "default"}
_START_S = {"eager": 60.0, "graph": 60.0, "compile": 180.0, "compile-max-autotune": 180.0, FROZEN: 180.0}
_ROUNDS = 15
_ROUND_BUDGET_S = 6.0


def baseline_names(target: str) -> tuple[str, ...]:
    """All baselines of a target; `graph` is eager captured in a CUDA graph."""
    return ("eager", *(("graph",) if target == "cuda" else ()), "compile", "compile-max-autotune")


class Baseline:
    """A baseline process and its seat, an entrant of races. It compiles while the judge does other things: `wait` collects it, or its first run."""

    def __init__(self, name: str, zygote: Zygote, task_path: str, memory: TaskMemory, cases: list[Case], environ: Mapping[str, str]) -> None:
        self.name = name
        self.contestant = Contestant(zygote, "evokernel.judge.baselines")
        self.seat = Seat(self.contestant, name, memory)
        self._inputs = [c.placed_inputs for c in cases]
        self._weights = cases[0].placed_weights
        self._refills = True  # inputs, and those weights, until it is seen that it leaves them alone
        self._turn = 0
        self._waiting = True
        memory.fill_weights(self._weights)
        for slot in range(memory.slots):
            memory.fill_inputs(slot, self._inputs[slot % len(cases)])
        window, fds = memory.reads.exported(writable=True)
        setup: Message = {
            "baseline": name, "task": task_path, "environ": dict(environ), "window": window,
            "scalars": [c.draw.scalars for c in cases], "scratch": tempfile.gettempdir(), "between": memory.machine.between,
        }  # fmt: skip
        self.contestant.post(setup, fds)

    def wait(self) -> None:
        """Wait until the baseline is compiled and warm.

        Raises:
            Failure: it cannot be compiled, ended, or took too long.
        """
        if self._waiting:
            self._waiting = False
            self.contestant.collect(_START_S[self.name])
            slots = range(self.seat.memory.slots)
            changed = {n for s in slots for n in self.seat.memory.changed(s, self._inputs[s % len(self._inputs)], self._weights)}
            self._weights = {name: tensor for name, tensor in self._weights.items() if name in changed}
            self._refills = bool(changed - set(self._weights))

    def run(self, mode: str) -> list[float]:
        """The timed calls of one turn (see timing.Entrant). Inputs and buffers that eager code changes are filled in anew, buffers
        before each turn.

        Raises:
            JudgeError: the process ended or hung, for which no candidate is to blame.
        """
        try:
            self.wait()
            return self._timed(mode)
        except Failure as failure:
            raise JudgeError(f"the baseline {self.name} worked and then {failure.message}; run the command again") from failure

    def _timed(self, mode: str) -> list[float]:
        slots = self.seat.next_turn(self._turn % self.seat.memory.slots)
        self._turn += 1
        if self._refills:
            del slots[1:]
        self._refill(slots[0])
        if mode == "warm" and self._refills:
            self.seat.call(slots[0], _START_S["eager"])
            self._refill(slots[0])
            return self.seat.turn(slots, "warmed", _START_S["eager"])
        return self.seat.turn(slots, mode, _START_S["eager"])

    def _refill(self, slot: int) -> None:
        if self._refills:
            self.seat.memory.fill_inputs(slot, self._inputs[slot % len(self._inputs)])
        self.seat.memory.put_weights(self._weights)

    def close(self) -> None:
        self.contestant.kill()
        self.seat.memory.close()


def measure(baselines: Mapping[str, Baseline]) -> dict[str, dict[str, float]]:
    """Median microseconds by baseline and mode, in rounds over all of them."""
    times: dict[str, dict[str, list[float]]] = {name: {mode: [] for mode in MODES} for name in baselines}
    start = time.monotonic()
    for round_number in range(_ROUNDS):
        for name, baseline in baselines.items():
            for mode, collected in times[name].items():
                collected.extend(baseline.run(mode))
        if round_number >= 3 and time.monotonic() - start > _ROUND_BUDGET_S:
            break
    return {name: {mode: statistics.median(values[1:]) for mode, values in modes.items()} for name, modes in times.items()}


def read_cached(path: Path) -> dict[str, dict[str, float]]:
    """Times measured before for the same task, device and versions; empty when there are none."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    good = isinstance(found, dict) and all(
        isinstance(m, dict) and all(isinstance(v, (int, float)) and math.isfinite(v) for v in m.values()) for m in found.values()
    )
    return found if good else {}


def write_cached(path: Path, times: Mapping[str, Mapping[str, float]]) -> None:
    """Store measured times; readers see the old file or the new one."""
    put(path, json.dumps(times, indent=1).encode())


def main(channel: Channel) -> None:
    """Entry of the forked child: load, bind, compile, then one call of the module a request."""
    message, fds = channel.receive_fds()
    os.environ.clear()
    os.environ.update(message["environ"])
    try:
        with user_code(f"the baseline {message['baseline']}", message["task"]):
            calls, stream = _prepared(message, fds)
            cleaner = Cleaner(decode(Between, message["between"])) if message["between"] is not None else None
    except TaskError as error:
        channel.send({"error": str(error).splitlines()[0]})
        return
    channel.send({})
    with torch.no_grad(), suppress(ChannelClosed):
        try:
            with user_code("forward()", message["task"]):
                while True:
                    request = channel.receive()
                    chosen, mode, us = [calls[slot] for slot in request["slots"]], request["mode"], []
                    if stream and cleaner:
                        us = timed([(partial(cleaner.before, mode, call), call) for call in chosen], stream)
                    else:
                        chosen[0]()
                    channel.send({"device_us": us})
        except TaskError as error:  # it has worked so far
            channel.send({"error": str(error).splitlines()[0]})


def _prepared(message: Message, fds: list[int]) -> tuple[list[Callable[[], object]], torch.cuda.Stream | None]:
    """A ready call for each slot, warmed up, and on a GPU the stream that they run on: eager code's is the default one."""
    loaded = load_task(message["task"], known=True)
    window = open_window(message["window"], fds)
    device = "cpu" if isinstance(window, Window) else "cuda"
    set_precision(loaded.task.options.precision)
    loaded.model.to(device)
    weights = {w.name: tensor_at(window.address(w.name), w.dtype, w.shape, w.stride, device) for w in loaded.task.signature.weights}
    loaded.bind(weights)
    if message["baseline"] in _COMPILE_MODE:
        _throw_away(message["scratch"])
    model = _model(loaded, message["baseline"], device)
    graphed = device == "cuda" and message["baseline"] != "eager"
    stream = (torch.cuda.Stream() if graphed else torch.cuda.current_stream()) if device == "cuda" else None
    calls: list[Callable[[], object]] = []
    for slot, scalars in enumerate(message["scalars"]):
        inputs = {
            t.name: tensor_at(window.address(slotted(t.name, slot)), t.dtype, t.shape, t.stride, device) for t in loaded.task.signature.inputs
        }
        args, kwargs = loaded.arguments(Draw(0, inputs, scalars))
        call = partial(model, *args, **kwargs)
        with torch.no_grad():
            _first(call, device)
            calls.append(GraphedCall(call, stream) if graphed and stream else call)
    return calls, stream


def _first(call: Callable[[], object], device: str) -> None:
    """Call once. Where forward makes tensors and does not say where, they come to be on this device from then on, which costs eager code time."""
    try:
        call()
    except RuntimeError:
        if device == "cpu":
            raise
        torch.set_default_device(device)
        call()


def _throw_away(scratch: str) -> None:
    """From here on temporary files, those of compilers too, go where the judge's do, and with them."""
    import torch._inductor.codecache  # noqa: F401 - keeps precompiled headers, which take seconds to make, where temporary files went until now

    os.environ["TMPDIR"] = tempfile.tempdir = scratch


def _model(loaded: LoadedTask, name: str, device: str) -> Callable[..., object]:
    model: Callable[..., object] = loaded.model
    if name in _COMPILE_MODE:
        import torch._inductor.config as inductor

        inductor.freezing = name == FROZEN
        mode = _COMPILE_MODE[name]
        # Graphs are captured by us, for every slot, so that the compiler's own do not copy the inputs first.
        model = torch.compile(model, mode=f"{mode}-no-cudagraphs" if device == "cuda" and mode == "max-autotune" else mode)
    return model
