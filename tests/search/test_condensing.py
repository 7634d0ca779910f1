"""Lessons condensed by a model at the end of a run: what is asked, what is kept, what it costs, and that no failure changes anything."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from evokernel.archive.lessons import CONDENSED, HALF_LIFE_DAYS, SHOWN, TRAP, WIN, Lesson, standing
from evokernel.archive.runs import CONDENSING, Called, Condensed, Ended, RunSettings, Uncalled
from evokernel.archive.store import Archive
from evokernel.errors import ModelError
from evokernel.models import Completion, ModelSpec, Prompt, Unavailable, open_model
from evokernel.search import condensing
from evokernel.search.run import RunResult, resume, run_search
from tests.archive.test_lessons import kernel, recorder
from tests.models.loopback import Answer, Request, serving

from .fake_judge import FakeJudge, failed, kernel_text, make_task, verified

TASK = make_task()
NAME = "openai/scripted@http://localhost:1/v1"
TRAPS = 8


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    """With a win and TRAPS traps, more than a prompt shows."""
    with Archive(tmp_path / "a.db") as opened:
        record = recorder(opened)
        slow, fast = kernel(100), kernel(101, "Rows in registers.")
        record(slow, verified(slow, 900))
        record(fast, verified(fast, 600), parents=(slow.id,))
        for n in range(TRAPS):
            record(kernel(n), failed(kernel(n), message=f"no {chr(97 + n)} here"))
        record.log.release()
        yield opened


def ids(text: str) -> list[str]:
    """The kernels that the lessons in a prompt rest on."""
    return re.findall(r"\b[0-9a-f]{16}\b", text)


class Scripted:
    """Writes slow kernels, and answers with `said` where it is to condense: an answer, an error, or what makes one of the lessons."""

    def __init__(self, said: Callable[[str], str] | Completion | Exception, draft_tokens: int = 1000) -> None:
        self.said, self.prompts, self.condensing = said, list[Prompt](), list[Prompt]()
        self.draft_tokens = draft_tokens

    def complete(self, prompt: Prompt, settings: object) -> Completion:
        if not prompt.prefix.startswith("You condense"):
            self.prompts.append(prompt)
            return Completion(f"```cpp\n{kernel_text(700, extra=f'int n{len(self.prompts)};')}```", "end", self.draft_tokens, output_tokens=100)
        self.condensing.append(prompt)
        if isinstance(self.said, Exception):
            raise self.said
        return self.said if isinstance(self.said, Completion) else Completion(self.said(prompt.rest), "end", 500, output_tokens=50)


def searched(archive: Archive, model: Scripted, **changed: object) -> RunResult:
    settings = RunSettings("cpp", candidates=2, models=(NAME,), prices=(f"{NAME}=10,100",), policy="best-of-n", **changed)  # type: ignore[arg-type]
    return run_search(archive, FakeJudge(), settings, models={NAME: model})


def kinds(archive: Archive) -> list[str]:
    return [lesson.kind for lesson in archive.lessons(TASK.id, "cpp")]


def events(archive: Archive, result: RunResult) -> list[object]:
    return [logged.event for logged in archive.events(result.run_id)]


def test_what_a_model_says_is_shown_in_place_of_the_lessons_it_rests_on(archive: Archive) -> None:
    asked: list[str] = []

    def answers(request: Request) -> Answer:
        system, user = (message["content"] for message in request.body["messages"])
        if not system.startswith("You condense"):
            asked.append(user)
            return Answer(f"```cpp\n{kernel_text(700, extra=f'int n{len(asked)};')}```")
        assert request.body["max_tokens"] == condensing.CALL.max_tokens
        known = [line for line in user.splitlines() if line.startswith("- failed")]
        return Answer(f"- Declare ````` the letters. [{', '.join(k for line in known for k in ids(line))}]", usage=(900, 0, 0, 40))

    with serving(answers) as server:
        name = f"openai/m@{server.url}"
        models = {name: open_model(ModelSpec.parse(name), {})}
        settings = RunSettings("cpp", candidates=2, models=(name,), policy="best-of-n")
        first = run_search(archive, FakeJudge(), settings, models=models)
        told = len(asked)
        second = run_search(archive, FakeJudge(), replace(settings, seed=1), models=models)
    (made,) = [e for e in events(archive, first) if isinstance(e, Condensed)]
    assert made == Condensed(("condensed: Declare ````` the letters.",), 940, 0.0) and isinstance(events(archive, first)[-1], Ended)
    assert first.tokens == 940 + 110 * told
    (lesson,) = [x for x in archive.lessons(TASK.id, "cpp") if x.kind == CONDENSED]
    assert (lesson.evidence, len(lesson.kernels), lesson.gain) == (TRAPS, TRAPS, None) and kinds(archive).count(TRAP) == TRAPS
    seen = [re.findall(r"(?s)## What earlier runs saw.*?# Your question", prompt)[0] for prompt in asked]
    before, after = "\n".join(seen[:told]), "\n".join(seen[told:])
    assert "here" in before and "letters" not in before
    fence = re.search(r"(`{6,})\n(.*?)\n\1", after, re.DOTALL)
    assert fence and "Declare ````` the letters." in fence[2] and "Rows in registers" in fence[2] and "here" not in after
    assert not any(isinstance(e, Called) and e.number == CONDENSING for e in events(archive, second)), "nothing new"


def test_a_sentence_without_evidence_is_dropped_and_the_rest_is_bounded(archive: Archive) -> None:
    def said(rest: str) -> str:
        known = ids(rest)
        lines = [f"* Line {chr(97 + n)} \ud800 {'x' * 5000}\x1b [{k}, 0123456789abcdef]" for n, k in enumerate(known)]
        return "\n".join(["No ids.", "Unknown. [0123456789abcdef]", f"[{known[0]}]", "Open [", "[" * 100_000, *lines])

    model = Scripted(said)
    searched(archive, model)
    made = [x for x in archive.lessons(TASK.id, "cpp") if x.kind == CONDENSED]
    assert len(made) == condensing.MOST and all(len(x.text) < 300 and len(x.kernels) == 1 and "Line" in x.text for x in made)
    assert archive.check() == []
    (prompt,) = model.condensing
    assert len(ids(prompt.rest)) == TRAPS + 1 and not ids(prompt.prefix.partition("Answer with")[0])


A, B, C = "00000000000000aa", "00000000000000bb", "00000000000000cc"


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (f"Use tiles. [{A}], [{B}]", [("Use tiles.", (A, B))]), (f"- Use tiles [{A}] [{B}]; [{C}].", [("Use tiles.", (A, B, C))]),
        (f"1. Use tiles [{A.upper()}]", [("Use tiles", (A,))]), (f"* 2) 2.5x by out[3] tiles [kernel {B}]", [("2.5x by out[3] tiles", (B,))]),
        (f"Same [{A}]\nOther [{A}]\nSame  [{B}]", [("Same", (A, B)), ("Other", (A,))]),
        (f"Use 4 [{A}]\nUse 8 [{B}]", [("Use 4", (A,)), ("Use 8", (B,))]), (f"[{A}]: Use [{B}] tiles", [("Use tiles", (A, B))]),
        (f"[{A}]", []), ("Use tiles [x, 0123456789abcdef]", []), (f"Use tiles {A}", []),
    ],
)  # fmt: skip
def test_what_is_kept_of_an_answer(said: str, kept: list[tuple[str, tuple[str, ...]]]) -> None:
    known = [Lesson(k, TRAP, "cpp", "t", k, None, 1, 1.0, 1.0, (k,)) for k in (A, B, C)]
    made = condensing.read(Completion(said, "end"), known)
    assert [(x.text.removeprefix("condensed: "), x.kernels) for x in made] == kept and len({x.id for x in made}) == len(kept)


@pytest.mark.parametrize(
    ("said", "tokens"),
    [
        (Completion("", "refused", 500, output_tokens=50), 550),
        (Completion("I have nothing to say.", "end", 500, output_tokens=50), 550),
        (Unavailable("overloaded"), 0),
        (ModelError("out of quota"), 0),
        (Unavailable("cut off", consumed=True), None),
    ],
)  # fmt: skip
def test_a_call_that_fails_costs_its_price_and_changes_nothing(archive: Archive, said: Completion | Exception, tokens: int | None) -> None:
    before = archive.lessons(TASK.id)
    model = Scripted(said)
    result = searched(archive, model)
    assert len(model.condensing) == 1 and archive.lessons(TASK.id) == before and not result.resumable and not result.stopped and result.confirmed
    (called,) = [e for e in events(archive, result) if isinstance(e, Called) and e.number == CONDENSING]
    assert result.tokens - 1100 * len(model.prompts) == (called.tokens if tokens is None else tokens)
    assert isinstance(events(archive, result)[-2], Uncalled) is (tokens == 0)


def test_no_call_over_the_budget_for_few_lessons_or_without_models(archive: Archive) -> None:
    first = searched(archive, Scripted(Completion("", "refused")))
    (most,) = {e.tokens for e in events(archive, first) if isinstance(e, Called) and e.number == CONDENSING}
    draft = max(e.tokens for e in events(archive, first) if isinstance(e, Called) and e.number != CONDENSING)
    for room in (-1, 0):
        model = Scripted(lambda rest: "nothing", draft_tokens=draft)
        result = searched(archive, model, budget_tokens=draft + 100 + most + room)
        assert len(model.condensing) == room + 1 and len(model.prompts) == 1 and "budget" in result.reason
    model.condensing.clear()
    run_search(archive, FakeJudge(), RunSettings("cpp", candidates=1, start=kernel_text(650)))
    assert CONDENSED not in kinds(archive)
    with Archive(archive.database.path.with_name("few.db")) as few:
        record = recorder(few)
        for n in range(SHOWN):
            record(kernel(n), failed(kernel(n), message=f"no {chr(97 + n)} here"))
        record.log.release()
        searched(few, model)
    assert model.condensing == []


def interrupted(rest: str) -> str:
    """Ctrl-C while the model is asked."""
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.3)
    return "late"


@pytest.mark.parametrize("said", [RuntimeError("as if killed"), interrupted])
def test_a_run_that_ends_in_the_call_asks_again_and_both_calls_are_spent(archive: Archive, said: Exception | Callable[[str], str]) -> None:
    with pytest.raises(RuntimeError) if isinstance(said, Exception) else contextlib.nullcontext():
        assert searched(archive, Scripted(said)).reason == "interrupted"
    (run_id, *_) = (run.id for run in archive.runs())
    model = Scripted(lambda rest: f"All. [{', '.join(ids(rest))}]")
    result = resume(archive, FakeJudge(), run_id, models={NAME: model})
    first, second = [e for e in events(archive, result) if isinstance(e, Called) and e.number == CONDENSING]
    assert first.tokens == second.tokens and not model.prompts and len(model.condensing) == 1 and kinds(archive).count(CONDENSED) == 1
    written = [e for e in events(archive, result) if isinstance(e, Called) and e.number != CONDENSING]
    assert result.tokens == 1100 * len(written) + first.tokens + 550
    assert result.cost_usd == pytest.approx(len(written) * 0.02 + first.usd + 0.01)
    assert archive.stats().cost_usd == pytest.approx(len(written) * 0.02 + 0.01)
    assert not resume(archive, FakeJudge(), run_id, models={NAME: model}).resumable and len(model.condensing) == 1


def test_a_later_sentence_replaces_an_older_one_that_rests_on_the_same_kernels(archive: Archive) -> None:
    searched(archive, Scripted(lambda rest: "\n".join(f"{chr(65 + n)} first. [{k}]" for n, k in enumerate(ids(rest)[:2]))))
    record = recorder(archive)
    for n in range(10, 18):
        record(kernel(n), failed(kernel(n), message=f"other {chr(97 + n)} there"))
    record.log.release()
    old = {x.kernels[0]: x for x in archive.lessons(TASK.id, "cpp") if x.kind == CONDENSED}
    gone, stays = old
    searched(archive, Scripted(lambda rest: f"Second. [{', '.join(k for k in ids(rest) if k != stays)}]"))
    made = [x for x in archive.lessons(TASK.id, "cpp") if x.kind == CONDENSED]
    assert sorted(x.text for x in made) == sorted((old[stays].text, "condensed: Second.")) and gone in {k for x in made for k in x.kernels}


def test_a_condensed_lesson_weighs_fades_and_travels_like_what_it_stands_for(archive: Archive) -> None:
    searched(archive, Scripted(lambda rest: f"All of it. [{', '.join(ids(rest))}]"))
    found = archive.lessons(TASK.id, "cpp")
    (whole,) = [x for x in found if x.kind == CONDENSED]
    (win,) = [x for x in found if x.kind == WIN]
    assert whole.gain == win.gain and whole.evidence == TRAPS + 1 and whole.line.startswith(f"gained at least {win.gain:.2f}x, condensed: All of it.")
    assert found[0] == whole and whole.last_seen == max(x.last_seen for x in found)
    later = whole.last_seen + HALF_LIFE_DAYS * 86_400
    assert whole.weight(later) == pytest.approx(whole.weight(whole.last_seen) / 2)
    archive.database.rows("UPDATE runs SET ended = 'done'")
    assert archive.prune(0.0, 1, apply=True).kernels
    assert archive.lessons(TASK.id, "cpp") == found, "lessons outlive their kernels"
    with Archive(archive.database.path.with_name("other.db")) as other:
        other.merge(archive.database.path)
        assert whole in other.lessons(TASK.id, "cpp") and len(other.lessons()) == len(found)
        lines = "\n".join(other.advice(make_task("new").id, "cpp", [TASK.id]))
        assert "All of it." in lines and "Rows in registers" not in lines.partition("this change")[0]


def test_what_is_seen_again_keeps_its_condensed_lesson_fresh(archive: Archive) -> None:
    searched(archive, Scripted(lambda rest: f"All of it. [{', '.join(ids(rest))}]"))
    archive.database.rows("UPDATE lessons SET last_seen = last_seen - 1e6")
    found = archive.lessons(TASK.id)  # brings the others up to date
    (shown,) = standing(found)
    assert shown.kind == CONDENSED and shown.last_seen == max(x.last_seen for x in found) > min(x.last_seen for x in found)


def test_lessons_of_an_older_archive_get_their_kernels_from_its_verdicts(archive: Archive) -> None:
    archive.lessons(TASK.id)
    archive.database.rows("UPDATE lessons SET kernels = ''")
    archive.database.rows("INSERT INTO lessons VALUES (99, 'x', 'trap', 'cpp', ?, 'pruned', NULL, 5, 1.0, 1.0, '')", TASK.id)
    found: list[Lesson] = archive.lessons(TASK.id)
    assert sorted(len(x.kernels) for x in found) == [0, *[1] * (TRAPS + 1)]
    assert {x.text for x in condensing.due(found)} == {x.text for x in found if x.kernels}
