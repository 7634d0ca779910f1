"""Runs by post: prompts, answers and verdicts through files, mixed with live steps. The judge is a double, the archive and the replies are real."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from evokernel.archive.runs import Called, Judged, RunSettings, Uncalled
from evokernel.archive.search import Filters
from evokernel.archive.store import Archive
from evokernel.errors import UsageError
from evokernel.kernelfile import make_kernel
from evokernel.models.file import AnsweredByFile
from evokernel.records import PROTOCOL, BatchCandidate, BatchOutcome, Placement
from evokernel.search.post import Answer, ask, begin, candidates, tell
from evokernel.search.run import resume
from evokernel.search.state import fold

from .fake_judge import DEVICE, FakeJudge, kernel_text, make_task

MODELS = {"file/answers": AnsweredByFile("file/answers")}


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    with Archive(tmp_path / "a.db") as opened:
        yield opened


@pytest.fixture
def run_id(archive: Archive) -> str:
    return begin(archive, make_task(), DEVICE, RunSettings("cpp", 12, models=("file/answers",)))


def fenced(n: int, extra: str = "") -> str:
    return f"```cpp\n{kernel_text(300 + n, extra=f'{extra}int n{n};', strategy=f'Answer {n}.')}```"


def judged(judge: FakeJudge, candidate: BatchCandidate) -> BatchOutcome:
    verdict = judge.judge(make_kernel(candidate.text, candidate.target))
    return BatchOutcome(PROTOCOL, candidate.key, candidate.id, judge.task.id, verdict.kernel_id, verdict)


def test_a_whole_run_by_post(archive: Archive, run_id: str) -> None:
    judge, seen = FakeJudge(), []
    for _ in range(20):
        questions = ask(archive, run_id, 4)
        if not questions:
            break
        seen += questions
        told = tell(archive, run_id, [Answer(q.number, fenced(q.number), run_id, input_tokens=10, output_tokens=5) for q in questions])
        assert told.answers == len(questions) and not told.passed_over
        waiting = candidates(archive, run_id)
        assert tell(archive, run_id, [judged(judge, c) for c in waiting]).verdicts == len(waiting)
    numbers = [q.number for q in seen]
    assert len(numbers) == len(set(numbers)) and {q.operator for q in seen} > {"translate", "mutate"}
    assert len({q.prefix for q in seen}) == 1
    result = resume(archive, judge, run_id, models=MODELS)
    assert result.candidates == 12 and result.confirmed and not result.resumable and result.tokens == 15 * len(seen)


def test_the_same_prompts_until_they_are_answered(archive: Archive, run_id: str) -> None:
    first, again = ask(archive, run_id, 3), ask(archive, run_id, 3)
    assert first == again and len(first) == 3
    tell(archive, run_id, [Answer(first[0].number, fenced(0))])
    assert [q.number for q in ask(archive, run_id, 3)][:2] == [first[1].number, first[2].number]


def test_what_does_not_fit_is_passed_over_with_the_reason(archive: Archive, run_id: str) -> None:
    (one, two) = ask(archive, run_id, 2)
    answers = [Answer(one.number, fenced(1)), Answer(one.number, fenced(2)), Answer(99, "x"), Answer(two.number, "x", prompt_hash="other")]
    told = tell(archive, run_id, answers)
    assert told.answers == 1
    waiting = candidates(archive, run_id)[0]
    failed = BatchOutcome(PROTOCOL, waiting.key, waiting.id, error="JudgeError", message="no GPU")
    late = tell(archive, run_id, [judged(FakeJudge(), replace(waiting, text=kernel_text(7))), failed])
    assert late.verdicts == 0
    said = "\n".join(told.passed_over + late.passed_over)
    for part in (f"number {one.number} waits for no answer", "number 99", "another prompt", "waits for the verdict", "no GPU"):
        assert part in said, said
    with pytest.raises(UsageError, match="is for run"):
        tell(archive, run_id, [Answer(two.number, "x", run="other")])


def test_a_verdict_of_another_device_is_not_taken(archive: Archive, run_id: str) -> None:
    (one,) = ask(archive, run_id, 1)
    tell(archive, run_id, [Answer(one.number, fenced(1))])
    outcome = judged(FakeJudge(), candidates(archive, run_id)[0])
    assert outcome.verdict
    elsewhere = replace(outcome, verdict=replace(outcome.verdict, environment=replace(outcome.verdict.environment, device="Other")))
    assert "was judged on Other" in tell(archive, run_id, [elsewhere]).passed_over[0]
    assert tell(archive, run_id, [outcome]).verdicts == 1 and not candidates(archive, run_id)


def test_an_outcome_by_force_marks_the_verdict(archive: Archive, run_id: str) -> None:
    (question,) = ask(archive, run_id, 1)
    tell(archive, run_id, [Answer(question.number, fenced(1))])
    assert tell(archive, run_id, [replace(judged(FakeJudge(), candidates(archive, run_id)[0]), forced=True)]).verdicts == 1
    (entry,) = archive.entries(Filters())
    assert entry.verdict and entry.verdict.environment.forced


def test_an_answer_without_a_kernel_is_done_at_once(archive: Archive, run_id: str) -> None:
    (one,) = ask(archive, run_id, 1)
    told = tell(archive, run_id, [Answer(one.number, "I cannot.")])
    assert told.without_kernel == 1 and not candidates(archive, run_id)
    events = [e.event for e in archive.events(run_id) if isinstance(e.event, Judged)]
    assert [e.placement for e in events] == [Placement.REJECTED]


def test_a_live_session_judges_what_was_answered_and_asks_for_files_for_the_rest(archive: Archive, run_id: str) -> None:
    questions = ask(archive, run_id, 3)
    tell(archive, run_id, [Answer(q.number, fenced(q.number)) for q in questions[:2]])
    result = resume(archive, FakeJudge(), run_id, models=MODELS)
    assert result.resumable and "come by file" in result.reason and result.candidates >= 2
    assert questions[2].number in {q.number for q in ask(archive, run_id, 4)}


def test_a_live_call_that_came_to_nothing_or_was_killed_does_not_spoil_an_answer_by_file(archive: Archive, run_id: str) -> None:
    (one, two) = ask(archive, run_id, 2)
    log = archive.acquire_run(run_id)
    log.append(Called(one.number, 50_000, 1.5, one.prompt_hash), 0.0)
    log.append(Called(two.number, 50_000, 1.5, two.prompt_hash), 0.0)
    log.append(Uncalled(two.number), 0.0)
    log.release()
    told = tell(archive, run_id, [Answer(one.number, fenced(1)), Answer(two.number, fenced(2))])
    assert told.answers == 2
    assert fold(archive.events(run_id)).written.spending.total == (50_000, 1.5), "the killed call stays spent"


@pytest.mark.parametrize("count", [-1, 10**30])
def test_impossible_token_counts_are_refused_before_anything_is_stored(count: int) -> None:
    with pytest.raises(ValueError, match="token"):
        Answer(1, "x", output_tokens=count)
