"""Timed calls on inputs that a kernel's process has not met: what remembers its answers is slower on them, what guesses is unlike the reference."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from evokernel import targets
from evokernel.judge.candidate import Candidate
from evokernel.judge.cases import Cases, Unseen
from evokernel.judge.contestant import Failure
from evokernel.judge.field import Field
from evokernel.judge.funnel import Funnel
from evokernel.judge.timed import Meeting, TimedCandidate
from evokernel.judge.workshop import Workshop
from evokernel.judge.zygotes import Zygote, preload, zygote_environment
from evokernel.kernelfile import make_kernel
from evokernel.records import Status
from evokernel.task import load_task

TASK = Path(__file__).parent.parent / "cheats" / "tasks" / "softmax.py"
MARK = 77.0  # stands for "not met before", as C++ kernels have no place left to remember in
SOFTMAX = """// @flags fast_math
// @launch softmax(x, out, x.shape[0], x.shape[1])
void softmax(const float* x, float* out, int64_t rows, int64_t columns)
{{
    {before}
    for (int64_t r = 0; r < rows; ++r, x += columns, out += columns) {{
        float top = x[0], sum = 0;
        for (int64_t i = 1; i < columns; ++i) top = x[i] > top ? x[i] : top;
        for (int64_t i = 0; i < columns; ++i) sum += out[i] = expf(x[i] - top);
        for (int64_t i = 0; i < columns; ++i) out[i] /= sum;
    }}
}}
"""
AGAIN = f"if (x[0] == {MARK}f) for (int64_t n = 0; n < 2000; ++n) for (int64_t i = 0; i < rows * columns; ++i) out[i] = expf(x[i] + out[i] * 1e-30f);"


@pytest.fixture(scope="module")
def shop(own_folders: Path) -> Iterator[Workshop]:
    cpp = targets.get("cpp")
    zygote = Zygote(zygote_environment(1, os.environ), preload("cpp"))
    yield Workshop(load_task(TASK), cpp, zygote, own_folders / "cache" / "evokernel", dict(os.environ))
    zygote.close()


@pytest.fixture
def entrant(shop: Workshop) -> Iterator[Callable[..., TimedCandidate]]:
    candidates: list[Candidate] = []

    def made(before: str, unseen: list[Unseen], seconds: float = 0.0, mode: str = "cold") -> TimedCandidate:
        candidate = Candidate(shop, make_kernel(SOFTMAX.format(before=before), "cpp"), 20.0)
        candidates.append(candidate)
        return TimedCandidate(candidate, candidate.load(candidate.build(0, None)), shop.cases.timed(), {mode: Meeting(unseen, seconds)})

    yield made
    for candidate in candidates:
        candidate.close()


def test_they_are_met_nowhere_else() -> None:
    cases = Cases(load_task(TASK), master_seed=3)
    unseen = cases.unseen(prepares=False)
    assert list(unseen) == ["cold", "warm"] and {len(found) for found in unseen.values()} == {12}
    draws = [u.inputs for found in unseen.values() for u in found] + [c.placed_inputs for c in cases.correctness() if not c.variant]
    assert len({float(d["x"].double().sum()) for d in draws}) == len(draws)
    assert all(torch.equal(u.outputs["out"], torch.softmax(u.inputs["x"], -1)) for u in unseen["warm"])


def test_weights_are_unseen_too_unless_the_kernel_prepares_something_from_them() -> None:
    cases = Cases(load_task(TASK.with_name("warm.py")), master_seed=3)
    own, bound = (cases.unseen(prepares=prepares)["warm"][0] for prepares in (False, True))
    assert set(own.inputs) == {"x", "weight"} and set(bound.inputs) == {"x"}
    assert all(not torch.equal(own.inputs["weight"], known["weight"]) for known in cases.weights.values())
    for unseen, weight in ((own, own.inputs["weight"]), (bound, cases.weights[0]["weight"])):
        assert torch.allclose(unseen.outputs["out"], unseen.inputs["x"] @ torch.softmax(weight, -1), atol=1e-5)
    assert cases.alike(own, own.outputs) and not cases.alike(own, bound.outputs)


def test_which_outputs_are_like_the_reference() -> None:
    cases = Cases(load_task(TASK), master_seed=4)
    one, other = cases.unseen(prepares=False)["cold"][:2]
    noise = 1 + 1e-6 * torch.randn_like(one.outputs["out"])
    assert cases.alike(one, {"out": one.outputs["out"] * noise})
    assert not cases.alike(one, other.outputs)
    assert not cases.alike(one, {"out": torch.full_like(noise, float("nan"))})
    some = one.outputs["out"].clone()
    some[: len(some) // 4] = other.outputs["out"][: len(some) // 4]
    assert not cases.alike(one, {"out": some})


def marked(shop: Workshop) -> Unseen:
    x = shop.cases.timed()[0].placed_inputs["x"].clone()
    x.view(-1)[0] = MARK
    return Unseen({"x": x}, {"out": torch.softmax(x, -1)})


def test_slower_on_what_it_has_not_met_is_remembering(shop: Workshop, entrant: Callable[..., TimedCandidate]) -> None:
    for before, mode, remembers in ((AGAIN, "cold", True), (AGAIN, "warm", True), ("", "cold", False), ("", "warm", False)):
        timed = entrant(before, [marked(shop)] * 7, mode=mode)
        for _ in range(60):
            timed.run(mode)
        if not remembers:
            timed.computes()
            continue
        with pytest.raises(Failure, match=r"times as long on inputs that it has not met before") as failure:
            timed.computes()
        assert failure.value.status is Status.CHEATING


def test_a_race_does_not_end_before_enough_was_met(shop: Workshop, entrant: Callable[..., TimedCandidate]) -> None:
    never, now = (entrant(AGAIN, [marked(shop)] * 12, seconds) for seconds in (1e9, 0.0))
    for _ in range(10):
        never.run("cold")
    assert not never.met_enough("cold") and never.met_enough("warm")
    never.computes()  # nothing was due
    while not now.met_enough("cold"):
        now.run("cold")
    with pytest.raises(Failure, match=r"times as long on inputs that it has not met before"):
        now.computes()


def test_a_kernel_whose_work_depends_on_the_data_is_cleared_by_other_data(shop: Workshop) -> None:
    field = Field(shop, "cold", ("eager",))
    field.start()
    field.settle()
    known = " || ".join(f"x[0] == {float(c.placed_inputs['x'].view(-1)[0])!r}f" for c in shop.cases.timed())
    verdict = Funnel(shop, field).judge(make_kernel(SOFTMAX.format(before=AGAIN.replace(f"x[0] == {MARK}f", f"!({known})")), "cpp"))
    field.close()
    assert verdict.status is Status.VERIFIED, verdict.message


def test_what_is_like_the_reference_is_so_in_proportion() -> None:
    cases = Cases(load_task(TASK.with_name("total.py")), master_seed=5)
    several = cases.unseen(prepares=False)["cold"]
    assert all(cases.alike(unseen, {"out": torch.exp(unseen.inputs["x"].flatten().cumsum(0)[-1] / 4)}) for unseen in several)
    largest = max(several, key=lambda unseen: float(unseen.outputs["out"]))
    assert not cases.alike(largest, {"out": largest.outputs["out"] * 1.01})


def test_a_guess_on_what_it_has_not_met_is_wrong(shop: Workshop, entrant: Callable[..., TimedCandidate]) -> None:
    for mode, unseen in shop.cases.unseen(prepares=False).items():
        first = float(unseen[0].inputs["x"].view(-1)[0])
        timed = entrant(f"if (x[0] == {first!r}f) {{ out[0] = 0; return; }}", unseen[:1], mode=mode)
        with pytest.raises(Failure, match="wrong on inputs that it has not met before") as failure:
            for _ in range(60):
                timed.run(mode)
        assert failure.value.status is Status.MISMATCH
