"""What every policy must keep to. Subclass PolicyContract and set `name`."""

from __future__ import annotations

import random

from evokernel.archive.runs import Answered, Asked, Judged, Logged, RunSettings, Started, StoneRef
from evokernel.records import Placement, Proposal, Reply
from evokernel.search import policy
from evokernel.search.policy import Stop
from evokernel.search.state import State
from tests.search.fake_judge import DEVICE, FakeJudge, kernel_text, make


class PolicyContract:
    name: str

    def played(self, settings: RunSettings, steps: int = 400) -> tuple[State, list[Proposal], Stop | None]:
        """A run whose every proposal gives a new verified kernel, as far as the policy goes."""
        judge, made = FakeJudge(), []
        stones = tuple(StoneRef(f"stone{n}", "task") for n in range(5))
        state = State(Started("task", DEVICE, settings, stones, "task.py"))
        for n in range(steps):
            decision = policy.decide(state)
            if isinstance(decision, Stop):
                return state, made, decision
            made.append(decision)
            text = kernel_text(300 + n % 7, tunes=f"CHUNK = {2 ** (n % 5)} in 1 2 4 8 16", extra=f"int n{n};")
            verdict = judge.judge(make(text))
            for event in (Asked(decision), Answered(decision.number, Reply(text)), Judged(decision.number, Placement.KEPT, verdict)):
                state.apply(Logged(state.elapsed_s + 0.5, event))
        return state, made, None

    def settings(self, **changed: object) -> RunSettings:
        return RunSettings("cpp", policy=self.name, start=kernel_text(), **changed)  # type: ignore[arg-type]

    def test_the_same_state_and_stream_give_the_same_decision(self) -> None:
        state, _, _ = self.played(self.settings(candidates=20), steps=9)
        choose = policy.get(self.name)
        assert choose(state, random.Random(3)) == choose(state, random.Random(3))

    def test_deciding_changes_nothing(self) -> None:
        state, _, _ = self.played(self.settings(candidates=20), steps=9)
        before = repr(state)
        policy.decide(state)
        assert repr(state) == before

    def test_the_start_kernel_comes_first(self) -> None:
        _, made, _ = self.played(self.settings(candidates=5))
        assert [p.operator for p in made].index("start") == 0

    def test_it_stops_at_the_candidates(self) -> None:
        state, made, stop = self.played(self.settings(candidates=12))
        assert stop and "12 candidates" in stop.reason and state.candidates == len(made) == 12

    def test_it_stops_at_the_seconds(self) -> None:
        _, _, stop = self.played(self.settings(candidates=10_000, seconds=20.0))
        assert stop and "20 seconds" in stop.reason

    def test_nothing_is_proposed_twice_and_numbers_count(self) -> None:
        _, made, _ = self.played(self.settings(candidates=150))
        assert len({(p.operator, p.parents) for p in made}) == len(made)
        assert [p.number for p in made] == list(range(len(made)))

    def test_parents_are_members_or_stones(self) -> None:
        state, made, _ = self.played(self.settings(candidates=60))
        known = {*state.members, *(s.kernel_id for s in state.started.stones)}
        assert all(parent in known for p in made for parent in p.parents)
