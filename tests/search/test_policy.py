from evokernel.archive.runs import Answered, Asked, Judged, Logged, RunSettings, Started, StoneRef
from evokernel.records import Placement, Proposal, Reply
from evokernel.search import policy
from evokernel.search.policy import Stop
from evokernel.search.state import State
from tests.contracts.policy_contract import PolicyContract
from tests.search.fake_judge import DEVICE, FakeJudge, kernel_text, make


class TestRanked(PolicyContract):
    name = "ranked"

    def test_the_order_is_start_transplants_up_to_a_third_then_tune(self) -> None:
        _, made, _ = self.played(self.settings(candidates=9), steps=5)
        assert [p.operator for p in made] == ["start", "transplant", "transplant", "transplant", "tune"]

    def test_stones_left_over_are_tried_in_the_end(self) -> None:
        state, made, _ = self.played(self.settings(candidates=150))
        assert sum(p.operator == "transplant" for p in made) == len(state.started.stones)


class TestRandomOperator(PolicyContract):
    name = "random-operator"


def test_without_anything_to_try_it_says_what_would_help() -> None:
    decision = policy.decide(State(Started("task", DEVICE, RunSettings("cpp"), (), "task.py")))
    assert isinstance(decision, Stop) and "start kernel" in decision.reason


def test_a_parent_with_four_stale_children_rests() -> None:
    judge = FakeJudge()
    state = State(Started("task", DEVICE, RunSettings("cpp"), (), "task.py"))
    good, other = (make(kernel_text(100 + n, tunes=f"CHUNK = {n} in 1 2")) for n in (1, 2))
    for number, kernel in enumerate((good, other)):
        _judged(state, Proposal(number, f"op{number}"), judge.judge(kernel))
    state.tuned.update(state.members)  # each is its own family
    assert policy.decide(state) == Proposal(2, "recombine", tuple(sorted((good.id, other.id))))
    for number in range(2, 6):
        _judged(state, Proposal(number, f"op{number}", (good.id,)), judge.judge(make(kernel_text(900 + number, tunes=""))))
    assert isinstance(policy.decide(state), Stop)
    _judged(state, Proposal(6, "op6", (good.id,)), judge.judge(make(kernel_text(10, tunes=""))))
    assert isinstance(policy.decide(state), Proposal)


def test_a_stone_that_is_a_member_is_not_transplanted() -> None:
    kernel = make(kernel_text(tunes=""))
    state = State(Started("task", DEVICE, RunSettings("cpp"), (StoneRef(kernel.id, "task"),), "task.py"))
    assert policy.decide(state) == Proposal(0, "transplant", (kernel.id,))
    _judged(state, Proposal(0, "start"), FakeJudge().judge(kernel))
    assert isinstance(policy.decide(state), Stop)


def _judged(state: State, proposal: Proposal, verdict) -> None:
    for event in (Asked(proposal), Answered(proposal.number, Reply("text")), Judged(proposal.number, Placement.KEPT, verdict)):
        state.apply(Logged(0.0, event))
