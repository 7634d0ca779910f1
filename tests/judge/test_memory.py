"""Buffers on the judge's side: nothing that a kernel could rely on or come back to stands in them."""

from pathlib import Path

import pytest
import torch

from evokernel.judge.machines import HostMachine
from evokernel.judge.memory import SLOTS, PlanMemory, TaskMemory
from evokernel.judge.own_code import build_native
from evokernel.kernelfile import make_kernel, parse, resolve
from evokernel.records import Device
from evokernel.runner.buffers import ALIGNMENT_BYTES, PAGE_BYTES
from evokernel.task import LoadedTask, load_task

TASK = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64))

    def forward(self, x):
        return x * self.weight

def get_inputs():
    return [torch.randn(5, 64)]
"""
KERNEL = """// @scratch mine int32 [64]
// @persist kept float32 [weight.numel]
// @prepare launch keep(weight, kept)
// @launch f(x, kept, mine, out)
void keep(const float* w, float* k) {}
void f(const float* x, const float* w, int32_t* mine, float* y) {}
"""


@pytest.fixture
def loaded(tmp_path: Path) -> LoadedTask:
    (tmp_path / "task.py").write_text(TASK)
    return load_task(tmp_path / "task.py")


@pytest.fixture
def machine(build_directory: Path) -> HostMachine:
    return HostMachine(build_native(build_directory))


def plan_memory(loaded: LoadedTask, machine: HostMachine) -> PlanMemory:
    device = Device("any", "cpp", "x86-64", sm_count=2)
    return PlanMemory(machine, resolve(parse(make_kernel(KERNEL, "cpp")), loaded.task.signature, device, None), SLOTS)


def test_a_candidate_that_prepares_weights_finds_nothing_of_any_slot(loaded: LoadedTask, machine: HostMachine) -> None:
    memory, scratch = TaskMemory(machine, loaded.task.signature, sealed=True, slots=SLOTS), plan_memory(loaded, machine)
    draw = loaded.draw(0, 1)
    for slot in range(SLOTS):
        memory.fill_inputs(slot, draw.tensors)
        memory.writes.raw(f"out@{slot}").copy_(loaded.run(draw)["out"].view(-1).view(torch.uint8))
        scratch.arena.raw(f"mine@{slot}").copy_(torch.arange(256).to(torch.uint8))
    memory.fill_weights(loaded.weights())
    scratch.poison_persisted()
    for slot in range(SLOTS):
        for left in (memory.reads.raw(f"x@{slot}"), memory.writes.raw(f"out@{slot}"), scratch.arena.raw(f"mine@{slot}")):
            assert bool((left == left[0]).all())
    assert memory.changed(0, {"x": torch.zeros(5, 64)}, loaded.weights()) == []


def test_scratch_and_what_is_prepared_begin_with_something_else_each_time(loaded: LoadedTask, machine: HostMachine) -> None:
    scratch = plan_memory(loaded, machine)
    seen: dict[str, set[int]] = {"mine@0": set(), "kept": set()}
    for _ in range(60):
        scratch.poison_persisted()
        scratch.poison(0)
        for name, found in seen.items():
            found.add(int(scratch.arena.raw(name)[0]))
    assert {0, 0xFF} <= seen["mine@0"] and 0xFF in seen["kept"] and min(len(found) for found in seen.values()) > 8


def test_only_the_first_slot_ends_with_its_pages(loaded: LoadedTask, machine: HostMachine) -> None:
    memory = TaskMemory(machine, loaded.task.signature, sealed=True, slots=SLOTS)
    for name, place in (memory.reads.places | memory.writes.places).items():
        behind = place.region_bytes - place.lead_bytes - place.size_bytes
        assert place.lead_bytes % ALIGNMENT_BYTES == 0 and place.lead_bytes >= ALIGNMENT_BYTES and place.region_bytes % PAGE_BYTES == 0
        assert (behind < ALIGNMENT_BYTES) == (name in ("weight", "x@0", "out@0"))
