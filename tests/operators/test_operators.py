import math
from dataclasses import replace

import pytest

from evokernel import operators
from evokernel.archive.stones import Stone
from evokernel.errors import UsageError
from evokernel.kernelfile import make_kernel, parse
from evokernel.operators import Batch, OperatorContext, Parent
from evokernel.operators.transplant import name_mapping
from evokernel.records import Config, Reply, Role, ScalarSpec, Screen, Signature, Status
from tests.contracts.operator_contract import OperatorContract
from tests.search.fake_judge import DEVICE, FakeJudge, kernel_text, make, make_task, tensor, verified

TASK = make_task()
WIDE = "CHUNK = 1 in 1 2 4 8 16 32; UNROLL = 1 in 1 2 4 8; WIDTH = 4 in 4 8 16 32 64"


def parent(text: str, time_us: float = 500.0) -> Parent:
    kernel = make(text)
    return Parent(kernel, verified(kernel, time_us, config={t.name: t.default for t in parse(kernel).tunables}))


def context(*texts: str, **changed) -> OperatorContext:
    return OperatorContext(TASK, DEVICE, 1, tuple(parent(t, 500.0 - 10 * n) for n, t in enumerate(texts)), **changed)


def stone(text: str, signature: Signature | None = None) -> Stone:
    return Stone(make(text), "other", "other_task", signature or TASK.signature, (), 1.5)


def run(name: str, given: OperatorContext, judge: FakeJudge | None = None) -> tuple[list[Batch], Reply]:
    answering, batches = operators.get(name).run(given), []
    try:
        batch = next(answering)
        while True:
            batches.append(batch)
            batch = answering.send((judge or FakeJudge()).screen(batch.kernel, batch.configs))
    except StopIteration as done:
        return batches, done.value


def defaults(text: str) -> Config:
    return {t.name: t.default for t in parse(make_kernel(text, "cpp")).tunables}


class TestTune(OperatorContract):
    operator = operators.get("tune")
    context = context(kernel_text(tunes=WIDE))


class TestTransplant(OperatorContract):
    operator = operators.get("transplant")
    context = context(stones=(stone(kernel_text()),))


class TestRecombine(OperatorContract):
    operator = operators.get("recombine")
    context = context(kernel_text(), kernel_text(300, tunes="CHUNK = 8 in 1 2 4 8 16"))


def test_the_registry_names_the_built_in_ones_and_refuses_others() -> None:
    assert operators.names()[:3] == ("transplant", "tune", "recombine")
    with pytest.raises(UsageError, match="known operators: transplant"):
        operators.get("nonesuch")


@pytest.mark.parametrize("name", ["transplant", "tune", "recombine"])
def test_missing_parents_are_our_error(name: str) -> None:
    with pytest.raises(UsageError, match="needs"):
        run(name, context())


def test_tune_finds_the_best_of_a_small_space() -> None:
    batches, reply = run("tune", context(kernel_text(tunes="CHUNK = 2 in 1 2 4 8 16; UNROLL = 1 in 1 2 4 8")))
    assert defaults(reply.text) == {"CHUNK": 8, "UNROLL": 4}
    assert reply.note.splitlines()[0] == "20 built, defaults 580.0 us" and "500.0 us: CHUNK=8,UNROLL=4" in reply.note
    assert all(len(b.configs) <= 8 for b in batches)


def test_tune_gets_close_in_a_space_that_it_cannot_build_whole() -> None:
    given = context(kernel_text(tunes=WIDE))
    batches, reply = run("tune", given)
    configs = {tuple(c.items()) for b in batches for c in b.configs}
    assert 16 < len(configs) <= 32
    best = sum(abs(math.log2(v / {"CHUNK": 8, "UNROLL": 4, "WIDTH": 16}[n])) for n, v in defaults(reply.text).items())
    assert best <= 1  # of 7 octaves away at the defaults


def test_tune_keeps_to_its_builds() -> None:
    batches, _ = run("tune", replace(context(kernel_text(tunes=WIDE)), builds=6))
    assert len({tuple(c.items()) for b in batches for c in b.configs}) <= 6


def test_tune_only_builds_what_require_allows() -> None:
    text = kernel_text(tunes=WIDE).replace("// @launch", "// @require CHUNK * UNROLL <= 8\n// @launch")
    batches, reply = run("tune", context(text))
    assert all(c["CHUNK"] * c["UNROLL"] <= 8 for b in batches for c in b.configs)
    assert defaults(reply.text)["CHUNK"] * defaults(reply.text)["UNROLL"] <= 8


def test_tune_shows_the_same_code_once() -> None:
    class Same(FakeJudge):
        def screen(self, kernel, configs):
            return [replace(s, code_hash="same", time_us=100.0 + n) for n, s in enumerate(super().screen(kernel, configs))]

    batches, reply = run("tune", context(kernel_text(tunes=WIDE)), Same())
    assert reply.text is None and "defaults are the best" in reply.note and len(reply.note.splitlines()) == 2
    assert batches  # and it stopped: the neighbours of one code are soon built


def test_tune_drops_a_configuration_that_fails_once() -> None:
    class Late(FakeJudge):
        """The best configuration is wrong at its second look."""

        def screen(self, kernel, configs):
            seen = list(self.screened)
            screens = super().screen(kernel, configs)
            return [Screen(c, Status.MISMATCH, "late") if c == {"CHUNK": 8} and c in seen else s for c, s in zip(configs, screens, strict=True)]

    _, reply = run("tune", context(kernel_text()), Late())
    assert defaults(reply.text)["CHUNK"] in (4, 16)


def test_tune_says_when_nothing_works_or_there_is_nothing_to_tune() -> None:
    _, reply = run("tune", context(kernel_text(extra="int WRONG;")))
    assert reply.text is None and "none of 5" in reply.note and "expected 1, got nan" in reply.note
    _, reply = run("tune", context(kernel_text(tunes="")))
    assert reply.text is None and "nothing to tune" in reply.note
    _, reply = run("tune", context(kernel_text(tunes="CHUNK = 8 in 1 2 4 8 16")))
    assert reply.text is None and "defaults are the best" in reply.note


def test_tune_keeps_times_at_full_precision() -> None:
    class Fine(FakeJudge):
        def screen(self, kernel, configs):
            return [replace(s, time_us=s.time_us / 3) for s in super().screen(kernel, configs)]

    _, reply = run("tune", context(kernel_text()), Fine())
    assert f"{500 / 3!r} us" in reply.note


def test_recombine_crosses_shared_tunables_into_the_faster_text() -> None:
    slow = kernel_text(500, tunes="CHUNK = 16 in 1 2 4 8 16; WIDTH = 8 in 4 8")
    fast = kernel_text(400, tunes="CHUNK = 1 in 1 2 16; UNROLL = 2 in 1 2")
    _, reply = run("recombine", context(slow, fast))
    assert "BASE = 400" in reply.text and defaults(reply.text) == {"CHUNK": 16, "UNROLL": 2}


def test_recombine_says_when_the_values_are_not_allowed() -> None:
    slow, fast = kernel_text(500, tunes="CHUNK = 8 in 4 8"), kernel_text(400, tunes="CHUNK = 1 in 1 2")
    _, reply = run("recombine", context(slow, fast))
    assert reply.text is None and "no tunable" in reply.note
    _, reply = run("recombine", context(slow, kernel_text(400, tunes="UNROLL = 1 in 1 2")))
    assert reply.text is None


THEIRS = Signature(
    (
        tensor("v", Role.INPUT, (8, 8)), tensor("idx", Role.INPUT, (8,), "int64"), tensor("w", Role.PARAMETER, (8, 8)),
        tensor("b", Role.PARAMETER, (8,)), tensor("out", Role.OUTPUT, (8, 8)),
    ),
    (ScalarSpec("alpha", "alpha", 0.5),),
)  # fmt: skip
OURS = Signature(
    (
        tensor("index", Role.INPUT, (4,), "int64"), tensor("x", Role.INPUT, (4, 4)), tensor("fc_weight", Role.PARAMETER, (4, 4)),
        tensor("fc_bias", Role.PARAMETER, (4,)), tensor("out0", Role.OUTPUT, (4, 4)), tensor("out1", Role.OUTPUT, (4,)),
    ),
    (ScalarSpec("n", "n", 3), ScalarSpec("slope", "slope", 0.1)),
)  # fmt: skip


def test_names_are_mapped_by_role_and_kind() -> None:
    assert name_mapping(THEIRS, OURS) == {
        "v": "x", "idx": "index", "w": "fc_weight", "b": "fc_bias", "out": "out0", "alpha": "slope",
    }  # fmt: skip
    assert name_mapping(THEIRS, THEIRS) == {}


def test_names_that_two_tasks_share_stay_where_they_are() -> None:
    one = Signature((tensor("a", Role.INPUT, (2,)), tensor("b", Role.INPUT, (2,)), tensor("out", Role.OUTPUT, (2,))))
    two = Signature((tensor("b", Role.INPUT, (2,)), tensor("a", Role.INPUT, (2,)), tensor("out", Role.OUTPUT, (2,))))
    assert name_mapping(one, two) == {}


def test_transplant_renames_the_plan_for_the_task() -> None:
    text = kernel_text().replace("relu(x, out, x.numel)", "relu(v, res, v.numel)")
    theirs = Signature((tensor("v", Role.INPUT, (8, 8)), tensor("res", Role.OUTPUT, (8, 8))))
    _, reply = run("transplant", context(stones=(stone(text, theirs),)))
    assert "// @launch relu(x, out, x.numel)" in reply.text and "1.5x there" in reply.note


def test_a_stone_of_the_same_task_stays_as_it_is() -> None:
    _, reply = run("transplant", context(stones=(stone(kernel_text()),)))
    assert reply.text == kernel_text()


def test_a_stone_that_does_not_fit_is_skipped_with_its_located_reason() -> None:
    text = kernel_text().replace("relu(x, out, x.numel)", "relu(x, out, mask.numel)")
    _, reply = run("transplant", context(stones=(stone(text),)))
    assert reply.text is None and "line 4" in reply.note and "mask" in reply.note


def test_a_stone_whose_defaults_do_not_fit_gets_others() -> None:
    text = kernel_text(tunes="CHUNK = 3 in 3 8").replace("// @launch", "// @require x.shape[1] % CHUNK == 0\n// @launch")
    _, reply = run("transplant", context(stones=(stone(text),)))
    assert defaults(reply.text) == {"CHUNK": 8}
