"""Processes that run the task on the judge's buffers and are timed by the judge's clock: candidates and baselines alike."""

from __future__ import annotations

import math
import os
import secrets
import signal
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

import torch

from ..channel import ChannelClosed, ChannelError, ChannelTimeout, Message
from ..codec import Json
from ..records import ErrorRow, Status
from .memory import PlanMemory, TaskMemory, unforeseen
from .zygotes import Zygote

Inputs = Mapping[str, torch.Tensor]
# How a process ends that was killed from outside, for want of memory, say; a kernel that is to blame does it again.
SILENT_ENDS = (
    "the process ended without a word (a stack overflow in a thread, a limit on memory or time)",
    "the process ended between two calls",
)
_TURN_US, _MOST_CALLS = 6000.0, 48
_BESIDE_US = 100.0  # what fills, sweep and launch of a timed call take beside it on an H200
_MEANING = {
    "SIGFPE": "an integer division by zero", "SIGILL": "an illegal instruction (a trap or unreachable code was reached)",
    "SIGABRT": "a parallel region was left by a jump, and its threads went on",
}  # fmt: skip


class Failure(Exception):
    """A contestant failed; for a candidate this becomes its verdict."""

    def __init__(self, status: Status, message: str, rows: tuple[ErrorRow, ...] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.rows = rows


class Contestant:
    """One process that answers our requests. Requests that fail raise `Failure`, and after most of them the process is gone."""

    def __init__(self, zygote: Zygote, entry: str) -> None:
        self._zygote = zygote
        self._channel, self._pid = zygote.fork(entry)
        self._ranges: dict[str, tuple[int, int]] = {}

    def request(self, message: Message, timeout_s: float, fds: tuple[int, ...] = ()) -> Message:
        """Send one request and wait for its answer.

        Raises:
            Failure: the process ended, hung (it is killed), or says that it failed.
            JudgeError: it ended with the zygote.
        """
        self.go()
        self.post(message, fds)
        return self.collect(timeout_s)

    def post(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        """Send a request whose answer `collect` waits for later."""
        try:
            self._channel.send(message, fds)
        except ChannelClosed:
            return  # `collect` says so

    def collect(self, timeout_s: float) -> Message:
        """The answer to what was posted; raises as `request` does."""
        try:
            reply = self._channel.receive(timeout_s)
        except ChannelTimeout:
            self.kill()
            raise Failure(Status.TIMEOUT, f"did not finish within {timeout_s:.0f} s (an endless loop, or far too slow)") from None
        except ChannelClosed:
            self.kill()
            self._zygote.check()
            raise Failure(Status.CRASHED, SILENT_ENDS[0]) from None
        except ChannelError as error:
            raise self._forged(str(error)) from None
        try:
            if "signal" in reply:
                self.kill()
                raise Failure(Status.CRASHED, self._fault(int(reply["signal"]), int(reply["address"]), int(reply["write"])))
            if "error" in reply:
                self.kill()
                raise Failure(*_launch_failure(str(reply["error"])))
            self._ranges.update({str(n): (int(lo), int(hi)) for n, (lo, hi) in dict(reply.get("ranges", {})).items()})
        except (KeyError, TypeError, ValueError) as error:
            raise self._forged(f"a reply of another form ({type(error).__name__})") from None
        return reply

    def _forged(self, what: str) -> Failure:
        self.kill()
        return Failure(Status.CHEATING, f"something other than our runner answered: {what}")

    def stop(self) -> None:
        """Stop every thread of the process. It stays so until `go`: what was put off is not finished, and nothing is begun early."""
        self._signal(signal.SIGSTOP)

    def go(self) -> None:
        """Let it run again."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        try:
            if not self._pid:
                raise ProcessLookupError
            os.kill(self._pid, number)
        except ProcessLookupError:
            self._zygote.check()
            raise Failure(Status.CRASHED, SILENT_ENDS[1]) from None

    def kill(self) -> None:
        """End the process now. Safe to call twice."""
        pid, self._pid = self._pid, 0  # the kernel may give the number to another process later
        self._channel.close()
        if pid:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _fault(self, number: int, address: int, write: int) -> str:
        name = signal.Signals(number).name
        if name not in ("SIGSEGV", "SIGBUS"):
            return f"{name}: {_MEANING[name]}" if name in _MEANING else name
        verb = {0: "read", 1: "write"}.get(write, "access")
        for buffer, (low, high) in self._ranges.items():
            shown = buffer.partition("@")[0]
            if low <= address < high:
                return f"{name}: {verb} of read-only buffer {shown} at byte {address - low} (inputs and weights may only be read)"
            if low - (1 << 16) <= address < low:
                return f"{name}: {verb} {low - address} bytes before the start of {shown} ({high - low} bytes)"
            if high <= address < high + (1 << 16):
                return f"{name}: {verb} {address - high} bytes past the end of {shown} ({high - low} bytes)"
        return f"{name}: {verb} at address {address:#x}, in no buffer of the plan (a wild pointer, an index far out of range, a stack overflow)"


def _launch_failure(text: str) -> tuple[Status, str]:
    """What a library step, the driver or the loader said, in its first line, and the status that it means."""
    first = text.strip().split("\n")[0][:1000]
    said = text.lower().replace("_", " ")  # of torch (words) or of the driver (CUDA_ERROR_...)
    if "out of memory" in said:
        return Status.RESOURCES, first
    crashed = any(word in said for word in ("illegal", "misaligned", "launch failure", "launch failed", "out-of-range"))
    return (Status.CRASHED if crashed else Status.LAUNCH_FAILED), first


class Seat:
    """A contestant with one plan on one variant's memory: what is filled, called, flushed and read back slot by slot."""

    def __init__(self, contestant: Contestant, key: str, memory: TaskMemory, scratch: PlanMemory | None = None) -> None:
        self.contestant = contestant
        self.memory = memory
        self.scratch = scratch
        self._key = key
        self._call_us = math.inf  # of the latest turn
        self._staged: dict[int, Inputs] = {}

    def bind(self, weights: Mapping[str, torch.Tensor], timeout_s: float) -> float:
        """Put one set of weights in place and have them prepared; microseconds that took."""
        self.memory.fill_weights(weights)
        if self.scratch:
            self.scratch.poison_persisted()
        self.memory.machine.settle()
        start = time.perf_counter_ns()
        self.contestant.request({"op": "bind", "plan": self._key}, timeout_s)
        elapsed_us = (time.perf_counter_ns() - start) / 1e3
        if self.scratch and not self.memory.machine.seals:
            self.scratch.remember_persisted()
        return elapsed_us

    def renumber(self, slot: int, resolved: Json, timeout_s: float) -> None:
        """Give a slot the numbers of an encoded plan that was resolved for the scalars of its case."""
        self.contestant.request({"op": "renumber", "plan": self._key, "slot": slot, "resolved": resolved}, timeout_s)

    def prime(self, slot: int, timeout_s: float) -> None:
        """Have the call on a slot captured as a graph (GPU only); it runs once on what the slot holds."""
        self.memory.machine.settle()
        self.contestant.request({"op": "prime", "plan": self._key, "slot": slot}, timeout_s)

    def call(self, slot: int, timeout_s: float) -> float:
        """Run once on a slot and stop the process; microseconds. On the CPU by the judge's clock, from just before the request to just after
        the answer; on a GPU between the events around the graph, which may not be more than the judge's clock saw."""
        return self._run([slot], timeout_s)[0]

    def next_turn(self, slot: int) -> list[int]:
        """The slots of a turn's calls that begins with this one: that one alone on the CPU. On a GPU, where a request takes much longer than most
        calls, all of them, again and again for up to `_TURN_US`: a number of calls that nobody can foresee, so that any may be one of the last,
        whose outputs the judge can look at."""
        if self.memory.machine.between is None:
            return [slot]
        slots = self.memory.slots
        most = min(_MOST_CALLS, max(slots, int(_TURN_US / (self._call_us + _BESIDE_US))))
        return [(slot + n) % slots for n in range(slots + secrets.randbelow(most - slots + 1))]

    def stage(self, inputs: Mapping[int, Inputs], held: Mapping[int, Inputs], timeout_s: float) -> None:
        """Have inputs (weights may be among them) put in place right before the first timed call on each of these slots in the next turn: after the
        call that warms up, which is on what was `held`, as are the calls on other slots. The weights of the last one stay."""
        if self.memory.machine.between is None:
            self._staged = dict(inputs)
            return
        for slot, tensors in inputs.items():
            self._put(slot, tensors)
            self.memory.machine.settle()
            self.contestant.request({"op": "stage", "plan": self._key, "slot": slot}, timeout_s)
            self._put(slot, held[slot])

    def _put(self, slot: int, tensors: Inputs) -> None:
        self.memory.fill_inputs(slot, tensors)
        self.memory.put_weights(tensors)

    def turn(self, slots: Sequence[int], mode: str, timeout_s: float) -> list[float]:
        """As `call`, on each of these slots: `cold` with nothing of it in the caches, `warm` after a call that is not timed (`warmed`: that came), on
        poisoned outputs and scratch of a candidate. All of it is done from here on the CPU, for one slot, on a GPU by the process, whose host code
        is ours."""
        if self.memory.machine.between is not None:
            took_us = self._run(slots, timeout_s, mode)
            self._call_us = statistics.median(took_us)
            return took_us
        if mode == "warm":
            self.call(slots[0], timeout_s)
            if self.scratch:  # a candidate's stacks would keep what it has computed
                self.ready(slots[0], timeout_s)
        if staged := self._staged.pop(slots[0], None):
            self._put(slots[0], staged)
        if self.scratch:
            self.poison(slots[0])
        if mode == "cold":
            self.memory.flush(slots[0], self.scratch.raws(slots[0]) if self.scratch else ())
        return self._run(slots, timeout_s)

    def _run(self, slots: Sequence[int], timeout_s: float, mode: str = "") -> list[float]:
        poison = unforeseen() if mode and self.scratch else ()
        message: Message = {"op": "run", "plan": self._key, "slots": list(slots), "mode": mode, "poison": poison}
        self.memory.machine.settle()
        self.contestant.go()
        start = time.perf_counter_ns()
        self.contestant.post(message)  # `request` would send a second signal, on the clock
        reply = self.contestant.collect(timeout_s * min(len(slots), self.memory.slots))
        wall_us = (time.perf_counter_ns() - start) / 1e3
        self.contestant.stop()
        if self.memory.machine.seals:
            return [wall_us]
        device_us = [float(us) for us in reply["device_us"]]
        if sum(device_us) > wall_us:
            raise Failure(Status.CHEATING, f"events say {sum(device_us):.1f} us where the judge's clock says {wall_us:.1f}")
        return device_us

    def ready(self, slot: int, timeout_s: float) -> None:
        """Off the clock: have the process put everything but this slot out of reach."""
        self.contestant.request({"op": "ready", "plan": self._key, "slot": slot}, timeout_s)
        self.contestant.stop()  # nothing runs while the slot is poisoned and flushed

    def poison(self, slot: int, *, nan: bool = False) -> None:
        """Make outputs and scratch of a slot worthless: by NaN, which explains best, or by something else at random. Where the other slots cannot
        be put out of reach (`ready`), theirs too: nothing of an earlier call is left in any."""
        for each in (slot,) if self.memory.machine.seals else range(self.memory.slots):
            self.memory.poison(each, nan=nan)
            if self.scratch:
                self.scratch.poison(each)

    def changed(self, slot: int, inputs: Mapping[str, torch.Tensor], weights: Mapping[str, torch.Tensor]) -> list[str]:
        """Inputs, weights and persisted buffers that are not any more what was filled in or prepared."""
        return self.memory.changed(slot, inputs, weights) + (self.scratch.changed_persisted() if self.scratch else [])

    def damaged(self) -> list[str]:
        """Buffers that were written outside their bounds."""
        found = self.memory.damaged() + (self.scratch.arena.damaged() if self.scratch else [])
        return [name.partition("@")[0] for name in found]
