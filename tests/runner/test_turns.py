"""What a runner leaves between the timed calls of one turn on a GPU. The filling itself is the same on any device, and is tried here on the CPU's."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from evokernel.judge.contestant import Contestant, Seat
from evokernel.judge.memory import TaskMemory
from evokernel.judge.timing import first_over_again, uneven
from evokernel.runner import main
from evokernel.runner.gpu import Cleaner
from evokernel.runner.main import LoadedPlan
from evokernel.targets.cuda_program import CudaProgram


def test_only_outputs_that_are_done_survive_from_call_to_call() -> None:
    plan = LoadedPlan.__new__(LoadedPlan)
    plan._written = {slot: [[torch.zeros(4, dtype=torch.uint8)], [torch.zeros(2, dtype=torch.uint8)] * 2] for slot in range(3)}
    plan._inputs, plan._staged = {0: []}, {}
    plan._fill_buffers(0, [], (7, 9))
    assert [plan._written[s][0][0].tolist() for s in range(3)] == [[7] * 4] * 3
    for slot in range(3):  # each call writes all that it can reach
        for buffers in plan._written.values():
            for tensor in (*buffers[0], *buffers[1]):
                tensor.fill_(100 + slot)
        plan._fill_buffers(0, range(slot + 1), (7, 9))
        assert [int(plan._written[s][0][0][0]) for s in range(3)] == [100 + slot if s <= slot else 7 for s in range(3)]
        assert {int(t[0]) for buffers in plan._written.values() for t in buffers[1]} == {9}


def test_without_poison_nothing_is_touched() -> None:
    plan = LoadedPlan.__new__(LoadedPlan)
    plan._inputs, plan._staged, plan._written = {0: []}, {}, {0: []}
    plan._fill_buffers(0, [0], ())


def test_staged_inputs_come_once_and_after_the_call_that_warms_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is a call on what the slot held before. The stream is a double."""
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(main, "timed", lambda calls, stream: [(before(), call()) and 1.0 for before, call in calls])
    plan, met = LoadedPlan.__new__(LoadedPlan), []
    plan._stream = cast(torch.cuda.Stream, SimpleNamespace(synchronize=int))
    plan._inputs, plan._written, plan._staged = {s: [torch.full((2,), s, dtype=torch.uint8)] for s in range(3)}, {}, {}
    plan._graphs = {s: partial(lambda s: met.append((s, int(plan._inputs[s][0][0]))), s) for s in range(3)}  # type: ignore[misc]
    plan._cleaner = cast(Cleaner, SimpleNamespace(before=lambda mode, call, fill: (call(), fill())))
    for slot in (1, 2):
        plan._inputs[slot][0].fill_(10 + slot)
    plan.stage(1)
    plan.stage(2)
    plan._inputs[1][0].fill_(1)
    plan.call([0, 1, 2, 0, 1], "warm", (7, 9))
    assert met == [(0, 0), (0, 0), (1, 1), (1, 11), (2, 12), (2, 12), (0, 0), (0, 0), (1, 11), (1, 11)]


def seat(between: object) -> Seat:
    memory = SimpleNamespace(slots=3, machine=SimpleNamespace(between=between))
    return Seat(cast(Contestant, None), "plan", cast(TaskMemory, memory))


def test_a_turn_is_a_number_of_calls_that_nobody_foresees() -> None:
    quick = seat({})
    assert [len(quick.next_turn(0)) for _ in range(20)] == [3] * 20  # nothing is known of its calls yet
    quick._call_us = 20.0
    turns = [quick.next_turn(n % 3) for n in range(2000)]
    assert {len(t) for t in turns} == set(range(3, 49))
    assert all(t[k] == (n + k) % 3 for n, t in enumerate(turns) for k in range(len(t)))
    quick._call_us = 5000.0
    assert quick.next_turn(2) == [2, 0, 1]
    assert seat(None).next_turn(1) == [1]  # the CPU


def test_a_slot_that_is_called_again_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[set[int]] = []
    monkeypatch.setattr(main, "timed", lambda calls, stream: [before() for before, _ in calls])
    plan = LoadedPlan.__new__(LoadedPlan)
    plan._cleaner = cast(Cleaner, SimpleNamespace(before=lambda mode, call, fill: fill()))
    plan._stream, plan._graphs = object(), dict.fromkeys(range(3), int)  # type: ignore[assignment,arg-type]
    monkeypatch.setattr(plan, "_fill_buffers", lambda slot, done, poison: kept.append(set(done)))
    plan.call([2, 0, 1, 2, 0], "cold", (7, 9))
    assert kept == [set(), set(), set(), {1}, {1, 2}]


def test_first_calls_that_take_longer_than_their_repetitions_stand_out() -> None:
    honest = [[24.0, 22.0, 22.0, 21.0, 22.0, 21.5], [29.0, 22.0, 21.0]]
    assert first_over_again(honest, 3) == pytest.approx((24.0 + 22.0 + 22.0) / 3 / 21.5)
    assert first_over_again([[60.0, 60.0, 60.0, 5.0, 6.0, 5.0]] * 3, 3) == 12.0
    assert first_over_again([[40.0, 20.0, 5.0, 5.0, 6.0, 5.0]] * 3, 3) > 4  # the first one did the third one's work
    assert first_over_again([[30.0, 23.0, 22.0]], 3) == 1.0
    woken = [[14.0, 3.0, 3.0, 3.0, 3.1, 3.0]] * 3
    assert first_over_again(woken, 3, 1.0) > 1.5 and first_over_again(woken, 3, 1.0, begin=1) < 1.0


def test_a_call_that_does_the_work_of_others_stands_out() -> None:
    assert uneven([[31.0, 23.0, 23.0]] * 5 + [[23.0, 400.0, 23.0]]) == (23.0, 8.0)
    middle, more = uneven([[210.0, 4.0, 3.0]] * 5)
    assert (middle, more) == (4.0, 206.0)
    assert uneven([[9000.0], [9100.0], [9050.0]]) == (9050.0, 0.0)


def test_what_comes_before_each_timed_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU is a double here: it does what comes before a call, then the call, and writes all down."""
    log: list[str] = []

    def timed(calls: Iterable[tuple[Callable[[], object], Callable[[], object]]], stream: object) -> list[float]:
        for before, call in calls:
            before()
            call()
        return [1.0, 2.0]

    monkeypatch.setattr(main, "timed", timed)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=7))
    monkeypatch.setattr(torch, "sum", lambda *_, out: log.append("sweep"))
    cleaner = Cleaner.__new__(Cleaner)
    cleaner._cells, cleaner._sum = torch.zeros(1), torch.zeros(())
    cleaner._program = cast(CudaProgram, SimpleNamespace(use_stream=int, launch=lambda *_: log.append("wipe")))
    plan = LoadedPlan.__new__(LoadedPlan)
    plan._stream, plan._cleaner = object(), cleaner  # type: ignore[assignment]
    plan._graphs = {slot: partial(log.append, f"call {slot}") for slot in range(3)}  # type: ignore[misc]
    monkeypatch.setattr(plan, "_fill_buffers", lambda slot, done, poison: log.append(f"poison but {[*done]} with {poison}"))
    assert plan.call([2, 0], "cold", (7, 0)) == [1.0, 2.0]
    assert log == ["poison but [] with (7, 0)", "wipe", "sweep", "call 2", "poison but [2] with (7, 0)", "wipe", "sweep", "call 0"]
    log.clear()
    plan.call([1, 2], "warm", (7, 9))
    assert log == ["call 1", "poison but [] with (7, 9)", "wipe", "call 1", "call 2", "poison but [1] with (7, 9)", "wipe", "call 2"]
    log.clear()
    plan.call([0])
    assert log == ["call 0"]
