"""The archive's commands as a user runs them: lessons, lineage, stats, judging again, pruning, merging, repair."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evokernel import batch
from evokernel.api import Session, read_kernel
from evokernel.archive.runs import RunSettings, Started
from evokernel.archive.search import Filters
from evokernel.archive.store import Archive
from evokernel.archive.verdicts import Origin
from evokernel.judge.lane import Lane, LaneSettings
from evokernel.records import Attempt, Device, Proposal, Reply, Status
from evokernel.task import load_task
from tests.cli.conftest import Here
from tests.search.fake_judge import environment, kernel_text, make, verified

FIXTURES = Path(__file__).parent.parent / "cheats"
Run = Callable[..., tuple[int, dict[str, Any], str]]
ELSEWHERE = Device("Elsewhere", "cpp", "x86-64-test", 2)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive that another machine measured: a right kernel, and a faster one made of it that is wrong."""
    file = tmp_path_factory.mktemp("elsewhere") / "a.db"
    right, wrong = read_kernel(FIXTURES / "honest" / "plain_softmax.cpp"), read_kernel(FIXTURES / "cpp" / "no_max_subtracted.cpp")
    task = replace(load_task(FIXTURES / "tasks" / "softmax.py").task, path="/gone/softmax.py")
    with Archive(file) as archive:
        archive.add_task(task)
        log = archive.start_run(Started(task.id, ELSEWHERE, RunSettings("cpp"), (), task.path))
        for number, (kernel, time_us, parents) in enumerate(((right, 500.0, ()), (wrong, 100.0, (right.id,)))):
            verdict = verified(kernel, time_us, where=environment(ELSEWHERE.name))
            archive.record(Attempt(Proposal(number, "mutate", parents), Reply(kernel.text), kernel, verdict), task, log, 1.0)
        log.release()
    return file


@pytest.fixture
def folder(tmp_path: Path, elsewhere: Path) -> Path:
    """A folder with a copy of that archive."""
    shutil.copy(elsewhere, tmp_path)
    return tmp_path


@pytest.fixture
def run(folder: Path, here: Here) -> Run:
    """`run(*arguments, archive="a.db")`: the exit code of an archive command, its object, and what it says beside."""

    def ran(*arguments: str, archive: str = "a.db") -> tuple[int, dict[str, Any], str]:
        code, out, err = here(folder, "archive", *arguments, "--archive", archive, "--json")
        return code, json.loads(out.strip().splitlines()[-1]), err

    return ran


def test_what_was_learned_is_told(run: Run) -> None:
    code, found, err = run("lessons", "softmax")
    assert code == 0 and len(found["lessons"]) == 1 and found["lessons"][0]["gain"] > 4, err
    _, rows, _ = run("runs")
    code, found, err = run("lineage", "--run", rows["runs"][0]["id"][:15])
    assert code == 0 and [(o["name"], o["raised"]) for o in found["operators"]] == [("mutate", 2)] and "raised a run's best by" in err
    code, found, err = run("stats")
    assert code == 0 and found["devices"]["Elsewhere"] == 2 and "operator" in err
    child = read_kernel(FIXTURES / "cpp" / "no_max_subtracted.cpp").id
    code, found, err = run("lineage", child, "--dot")
    assert code == 0 and len(found["kernels"]) == 2 and found["edges"][0]["operator"] == "mutate" and err.startswith("digraph")
    assert run("lineage")[0] == 2 and run("lineage", child, "--run", "x")[0] == 2
    assert "--run RUN" in run("lineage", "--run", "")[1]["message"] and run("show", child.upper())[1]["kernel"]["id"] == child


def test_judging_again_finds_the_wrong_one_and_is_done_once(folder: Path, own_folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def quick_lane(task: str, target: str, session: Session) -> Iterator[Lane]:
        lane = Lane(LaneSettings(str(task), target, own_folders / "cache" / "evokernel", dict(os.environ), baselines=("eager",)))
        yield lane
        lane.close()

    monkeypatch.setattr(batch, "open_lane", quick_lane)
    place = batch.here("cpp")
    with Archive(folder / "a.db") as archive:
        work = archive.due("cpp", place, "softmax")
        judged = list(batch.rejudge(archive, work, [None], Session()))
        wrong, right = (v for _, v in judged)
        assert [d for d, _ in judged] == work and wrong.status is Status.MISMATCH and right.status is Status.VERIFIED
        assert archive.due("cpp", place) == [] and archive.best(work[0].task.id, "cpp", place.device).kernel == work[1].kernel
        assert len(archive.entries(Filters(task_id=work[0].task.id))) == 4 and archive.check() == []


def test_pruning_merging_and_repair(folder: Path, run: Run) -> None:
    code, found, err = run("prune", "--older-than", "0", "--keep", "1")
    assert code == 0 and found["kernels"] == [] and "would be removed" in err
    assert run("merge", "a.db", archive="b.db")[0] == 2 and not (folder / "b.db").exists()
    Archive(folder / "b.db").close()
    assert run("import", "nope", archive="new/b.db")[0] == 2 and not (folder / "new").exists()
    code, found, err = run("merge", "a.db", archive="b.db")
    assert code == 0 and (found["kernels"], found["runs"], found["attempts"], found["edges"]) == (2, 1, 2, 1), err
    assert run("merge", "b.db", archive="b.db")[0] == 2
    with Archive(folder / "b.db") as archive:
        archive.database.rows("UPDATE verdicts SET time_us = 1.0 WHERE seq = (SELECT max(seq) FROM verdicts)")
    code, found, err = run("check", archive="b.db")
    assert code == 1 and len(found["findings"]) == 1
    code, found, err = run("check", "--repair", archive="b.db")
    assert code == 0 and found["status"] == "sound" and len(found["repairs"]) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [("lessons nope", "no task 'nope'"), ("lessons --limit -1", "--limit"), ("lessons --target gpu", "known targets: cuda, cpp"),
     ("list --limit 0", "--limit"), (f"list --limit {10**30}", "--limit"), ("list --target gpu", "no target 'gpu'"),
     ("list --min-speedup nan", "nan is not a number"), ("search relu --min-speedup nan", "--min-speedup"), ("search relu --limit -3", "--limit"),
     (f"prune --keep {10**30}", "--keep"), ("prune --keep 0", "--keep"), ("prune --older-than nan", "--older-than"),
     ("rejudge --target cpp --limit -1", "--limit"), ("rejudge --target cpp --task nope", "no task 'nope'"), ("lineage --run x --dot", "no --dot")],
)  # fmt: skip
def test_odd_values_are_wrong_usage(folder: Path, here: Here, arguments: str, says: str) -> None:
    code, _, err = here(folder, "archive", *arguments.split(), "--archive", "a.db")
    assert code == 2 and says in err


def test_stored_text_cannot_steer_the_terminal(folder: Path, here: Here) -> None:
    kernel = make(kernel_text(strategy="\x1b[2J\u202eRows\x07 \u65e5\u672c."))
    with Archive(folder / "a.db") as archive:
        archive.add_kernel(kernel, Origin("user"))
    for command in (["show", kernel.id], ["list", "--limit", "500"], ["search", "rows"]):
        code, shown, _ = here(folder, "archive", *command, "--archive", "a.db", *(["--text-model", "NONE"] if "search" in command else []))
        assert code == 0 and "\\x1b[2J\\u202eRows\\x07 \u65e5\u672c" in shown and not {"\x1b", "\u202e", "\x07"} & set(shown)


def test_words_that_are_not_looked_for_are_counted(folder: Path, here: Here) -> None:
    question = [f"word{n}x" for n in range(70)]
    code, _, err = here(folder, "archive", "search", *question, "--archive", "a.db", "--text-model", "none")
    assert code == 0 and "words are not looked for" in err


def test_a_damaged_file_is_checked_as_it_is(folder: Path, here: Here) -> None:
    with Archive(folder / "a.db") as archive:
        archive.database.rows("DROP TABLE imports")
    where = ("--archive", "a.db")
    code, _, err = here(folder, "archive", "list", *where)
    assert code == 2 and "archive check" in err
    for command, expected in ((["check"], 1), (["check", "--repair"], 0), (["list"], 0)):
        assert here(folder, "archive", *command, *where)[0] == expected
    (folder / "a.db").write_bytes(b"no archive " * 1000)
    code, _, err = here(folder, "archive", "check", *where)
    assert code == 2 and "go back to a copy" in err and "archive check" not in err
