"""The runner: one disposable process for one candidate kernel and its configurations.

Covers: mapping the buffers it is given, giving up its rights (sandbox.py) before any candidate code is loaded, walking launch plans.
Does not cover: timing on the CPU (only the judge's clock counts), checking (it could not: see below).
Must not know: the reference, expected values, tolerances, seeds. What it answers is trusted for nothing but progress.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch

from .. import targets
from ..channel import Channel, ChannelClosed, Message
from ..codec import decode
from ..kernelfile.steps import Arg, Call, Fill, Launch, Plan, Step
from ..records import Number, Precision, TensorSpec
from . import vendor
from .buffers import Place, Window
from .gpu import Between, Cleaner, GpuWindow, GraphedCall, gpu_bytes, ready_for_launches, timed
from .sandbox import confine, limit_resources

SLOT_MARK = "@"  # a buffer of slot 2 is called `out@2`; weights and persisted buffers have no slot


class LoadedPlan:
    """One plan with its program and its buffers, callable slot by slot."""

    def __init__(
        self, plan: Plan, program: targets.Program, specs: dict[str, TensorSpec], windows: list[AnyWindow], scrub: Callable[[], object] = list,
        cleaner: Cleaner | None = None,
    ) -> None:
        self._plan = plan
        self._scrub = scrub
        self._cleaner = cleaner
        self._device = "cuda" if plan.target == "cuda" else "cpu"
        self._graphs: dict[int, GraphedCall] = {}
        self._program = program
        self._stream = torch.cuda.Stream() if self._device == "cuda" else None
        if self._stream:
            getattr(program, "use_stream", void)(self._stream.cuda_stream)
        self._specs = specs
        self.ranges = {name: span for window in windows for name, span in window.ranges().items()}
        self._windows = {name: window for window in windows for name in window.ranges()}
        slots = {int(name.rpartition(SLOT_MARK)[2]) for name in self._windows if SLOT_MARK in name}
        # By slot: outputs, scratch. The first window holds inputs and weights.
        self._written = {s: [_bytes_of(window, s) for window in windows[1:]] for s in slots} if self._stream else {}
        weights = _bytes_of(windows[0], None) if self._stream else []
        self._inputs = {s: _bytes_of(windows[0], s) + weights for s in slots} if self._stream else {}
        self._staged: dict[int, list[torch.Tensor]] = {}
        self._calls = {slot: self._compiled(plan.steps, slot) for slot in slots}
        self._prepare = self._compiled(plan.prepare, None)
        self._persisted = [b.name for b in plan.buffers if b.kind == "persist"]

    def bind(self) -> None:
        """Prepare the weights once more; what is made is read-only afterwards."""
        for name in self._persisted:
            self._windows[name].protect(name, writable=True)
        with torch.cuda.stream(self._stream) if self._stream else nullcontext():
            for step in self._prepare:
                step()
        if self._stream:
            self._stream.synchronize()
        for name in self._persisted:
            self._windows[name].protect(name, writable=False)

    def call(self, slots: Sequence[int], mode: str = "", poison: Sequence[int] = ()) -> list[float]:
        """Everything a call of the module does, on the buffers of each of these slots. On a GPU their graphs, and what they took (see gpu.timed).

        Args:
            mode: `cold` or `warm`, for what the cleaner does before each call, off the clock (GPU only); nothing for "".
            poison: bytes for the outputs and for the scratch that are filled then, too.
        """
        if not self._stream or not self._cleaner:
            for slot in slots:
                self._walk(slot)
            return []
        calls: list[tuple[Callable[[], object], Callable[[], object]]] = []
        for n, slot in enumerate(slots):
            fill = partial(self._fill_buffers, slot, set(slots[:n]) - set(slots[n:]), poison)
            calls.append((partial(self._cleaner.before, mode, self._graphs[slot], fill), self._graphs[slot]))
        return timed(calls, self._stream)

    def stage(self, slot: int) -> None:
        """Keep the inputs that a slot holds, and the weights, in memory that no plan names. They are put back right before the next timed call on it
        (GPU only)."""
        assert self._stream is not None
        with torch.cuda.stream(self._stream):
            self._staged[slot] = [tensor.clone() for tensor in self._inputs[slot]]
        self._stream.synchronize()  # the judge fills the slot anew

    def _fill_buffers(self, slot: int, done: Collection[int], poison: Sequence[int]) -> None:
        """Before a timed call on a slot: put its staged inputs back. Of what calls have written leave nothing but the outputs of the slots that
        are done, which the judge may look at: otherwise one call could do the work of the next ones, and one that is not timed that of all."""
        for tensor, staged in zip(self._inputs[slot], self._staged.pop(slot, ()), strict=False):
            tensor.copy_(staged)
        for written, buffers in self._written.items() if poison else ():
            for byte, tensors, kept in zip(poison, buffers, (written in done, False), strict=True):
                for tensor in () if kept else tensors:
                    tensor.fill_(byte)

    def ready(self, slot: int) -> None:
        """Off the clock: only this slot's buffers can be reached, and the stacks hold nothing of earlier calls."""
        for name, window in self._windows.items():
            if SLOT_MARK in name:
                window.show(name, visible=name.endswith(f"{SLOT_MARK}{slot}"))
        self._scrub()

    def renumber(self, slot: int, plan: Plan) -> None:
        """Take the numbers of a plan resolved for other scalar arguments for one slot."""
        self._calls[slot] = self._compiled(plan.steps, slot)

    def prime(self, slot: int) -> None:
        """Capture the slot's graph (GPU only); runs the call once, on whatever the slot holds."""
        assert self._stream is not None
        self._graphs[slot] = GraphedCall(lambda: self._walk(slot), self._stream)

    def _walk(self, slot: int) -> None:
        for step in self._calls[slot]:
            step()

    def _compiled(self, steps: tuple[Step, ...], slot: int | None) -> list[Callable[[], None]]:
        clears = [] if slot is None else [self._clear(b.name, slot) for b in self._plan.buffers if b.zero]
        first = 0 if slot is None else sum(isinstance(s, Launch) for s in self._plan.prepare)
        made, index = list(clears), first
        for step in steps:
            if isinstance(step, Launch):
                if step.enabled:
                    made.append(self._launch(index, step.args, slot))
                index += 1
            elif isinstance(step, Fill):
                made.append(self._fill(step, slot))
            elif step.enabled:
                made.append(self._call(step, slot))
        return made

    def _key(self, name: str, slot: int | None) -> str:
        slotted = f"{name}{SLOT_MARK}{slot}"
        return slotted if slotted in self._windows else name

    def _address(self, name: str, slot: int | None) -> int:
        key = self._key(name, slot)
        return self._windows[key].address(key)

    def _tensor(self, name: str, slot: int | None) -> torch.Tensor:
        spec = self._specs[name]
        return vendor.tensor_at(self._address(name, slot), spec.dtype, spec.shape, spec.stride, self._device)

    def _launch(self, index: int, args: tuple[Arg, ...], slot: int | None) -> Callable[[], None]:
        pointers = [self._address(a.tensor, slot) for a in args if a.tensor is not None]
        numbers: list[Number] = [a.value for a in args if a.value is not None]
        launch = self._program.launch
        return lambda: launch(index, pointers, numbers)

    def _call(self, call: Call, slot: int | None) -> Callable[[], None]:
        tensors = {name: self._tensor(name, slot) for name in self._specs if self._key(name, slot) in self._windows}
        return lambda: vendor.run(call, tensors)

    def _fill(self, fill: Fill, slot: int | None) -> Callable[[], None]:
        tensor = self._tensor(fill.buffer, slot)
        return lambda: void(tensor.fill_(fill.value))

    def _clear(self, name: str, slot: int) -> Callable[[], None]:
        tensor = self._tensor(name, slot)
        return lambda: void(tensor.zero_())


def _bytes_of(window: AnyWindow, slot: int | None) -> list[torch.Tensor]:
    """The buffers of one slot, or of none, in a window of GPU memory, uint8."""
    of = "" if slot is None else str(slot)
    return [gpu_bytes(low, high - low) for name, (low, high) in window.ranges().items() if name.partition(SLOT_MARK)[2] == of and high > low]


def void(_: object) -> None:
    """Drop a result."""


class Runner:
    """Answers the judge's requests about one kernel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._plans: dict[str, LoadedPlan] = {}
        self._scrub: Callable[[], object] = lambda: None
        self._cleaner: Cleaner | None = None
        self._gpu_windows: dict[str, AnyWindow] = {}  # by handle: opening one takes longer than all else of loading

    def serve(self) -> None:
        """Set up, then answer until the judge hangs up."""
        with torch.no_grad():
            while True:
                try:
                    request, fds = self._channel.receive_fds()
                    self._channel.send(self._answered(request, fds))
                except ChannelClosed:
                    return

    def _answered(self, request: Message, fds: list[int]) -> Message:
        try:
            return self._answer(request, fds)
        except (RuntimeError, OSError, MemoryError) as error:  # a library step, the driver or the loader refused
            return {"error": f"{type(error).__name__}: {error}"[:4000]}

    def _answer(self, request: Message, fds: list[int]) -> Message:
        op = request["op"]
        if op == "run":
            plan = self._plans[request["plan"]]
            return {"device_us": plan.call(request["slots"], request["mode"], request["poison"])}
        if op == "prime":
            self._plans[request["plan"]].prime(request["slot"])
        elif op == "stage":
            self._plans[request["plan"]].stage(request["slot"])
        elif op == "ready":
            self._plans[request["plan"]].ready(request["slot"])
        elif op == "bind":
            self._plans[request["plan"]].bind()
        elif op == "renumber":
            self._plans[request["plan"]].renumber(request["slot"], decode(Plan, request["resolved"]))
        elif op == "load":
            return self._load(request, fds)
        elif op == "setup":
            return self._setup(request)
        return {}

    def _setup(self, request: Message) -> Message:
        if request["target"] == "cuda":
            ready_for_launches()
            self._cleaner = Cleaner(decode(Between, request["between"]))
        else:
            torch.empty(1 << 20).fill_(0.0).add_(1.0)  # starts and pins the pool of threads, which may not be done later
            native = ctypes.CDLL(request["native"])
            native.evokernel_report_faults(self._channel.fileno())
            limit_resources(request["memory_bytes"], request["cpu_seconds"])
            native.evokernel_scrub()
            self._scrub = native.evokernel_scrub
        return {"sandbox": confine(tuple(Path(p) for p in request["readable"]))}

    def _load(self, request: Message, fds: list[int]) -> Message:
        plan = decode(Plan, request["resolved"])
        vendor.set_precision(Precision(request["precision"]))
        specs = {spec.name: spec for spec in (decode(TensorSpec, s) for s in request["specs"])}
        windows = [self._window(window, fds) for window in request["windows"]]
        program = targets.get(plan.target).load(decode(targets.Artifact, request["artifact"]))
        loaded = self._plans[request["plan"]] = LoadedPlan(plan, program, specs, windows, self._scrub, self._cleaner)
        return {"ranges": loaded.ranges}

    def _window(self, window: Message, fds: list[int]) -> AnyWindow:
        handle = window.get("handle", "")
        if handle not in self._gpu_windows:
            opened = open_window(window, fds)
            if not handle:
                return opened
            self._gpu_windows[handle] = opened
        return self._gpu_windows[handle]


AnyWindow = Window | GpuWindow


def open_window(window: Message, fds: list[int]) -> AnyWindow:
    """Map what the judge exported; takes its descriptor, if it has one, off the front of `fds`."""
    if "handle" in window:
        return GpuWindow(bytes.fromhex(window["handle"]), (decode(Place, p) for p in window["places"]))
    return Window(fds.pop(0), (decode(Place, p) for p in window["places"]), writable=window["writable"])


def main(channel: Channel) -> None:
    """Entry of the forked child."""
    Runner(channel).serve()
