import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from evokernel.archive import verdicts
from evokernel.archive.runs import Failed, Judged, Logged, Paused, RunSettings, Started
from evokernel.archive.search import Filters
from evokernel.archive.store import Archive
from evokernel.errors import ArchiveError, JudgeError, UsageError
from evokernel.kernelfile import KernelFileError
from evokernel.records import Placement, Reply, Status
from evokernel.search.run import RunResult, resume, run_search
from evokernel.search.state import State, fold
from tests.search.fake_judge import DEVICE, FakeJudge, failed, kernel_text, make, make_task, verified

TWO = "CHUNK = 1 in 1 2 4 8 16; UNROLL = 1 in 1 2 4 8"


@pytest.fixture
def archive(tmp_path: Path):
    with Archive(tmp_path / "a.db") as opened:
        yield opened


def settings(**changed) -> RunSettings:
    return RunSettings(**{"target": "cpp", "candidates": 12, "start": kernel_text(500, tunes=TWO), **changed})


def facts(result: RunResult) -> tuple:
    return result.best.id, result.verdict.time_us, result.confirmed, result.candidates, result.placements, result.reason


def test_a_run_tunes_its_start_kernel_and_confirms_the_best(archive: Archive) -> None:
    judge = FakeJudge()
    result = run_search(archive, judge, settings())
    assert result.verdict.time_us == 500.0 and result.verdict.config == {"CHUNK": 8, "UNROLL": 4}
    assert result.confirmed and judge.restarts == 1 and not result.resumable
    assert "nothing left to try without a model" in result.reason
    assert archive.best(result.task_id, "cpp").kernel == result.best


def test_the_lower_of_the_two_measurements_counts_and_the_next_best_is_proved_too(archive: Archive) -> None:
    result = run_search(archive, FakeJudge(slower=2.0), settings())
    assert result.confirmed and result.verdict.time_us == 1000.0
    assert archive.known(result.best.id, result.task_id, result.verdict.environment).time_us == 1000.0


def test_a_best_that_fails_when_measured_again_is_dropped(archive: Archive) -> None:
    class Flaky(FakeJudge):
        def judge(self, kernel, *, incumbent_us=None, patience=1.0):
            verdict = super().judge(kernel, incumbent_us=incumbent_us)
            wrong = replace(verdict, status=Status.MISMATCH, timing=None, milestone=-1)
            return wrong if self.restarts == 1 else verdict

    result = run_search(archive, Flaky(), settings())
    assert result.confirmed and result.verdict.config != {"CHUNK": 8, "UNROLL": 4}
    assert archive.best(result.task_id, "cpp").kernel == result.best


def test_the_same_seed_gives_the_same_run(tmp_path: Path) -> None:
    results = []
    for name in "ab":
        with Archive(tmp_path / name) as archive:
            results.append(facts(run_search(archive, FakeJudge(), settings(seed=7))))
    assert results[0] == results[1]


def test_state_from_the_file_equals_the_live_state(archive: Archive) -> None:
    live: list[State] = []
    result = run_search(archive, FakeJudge(), settings(), on_event=lambda _, state: live.append(state))
    assert fold(archive.events(result.run_id)) == live[-1]


def test_a_second_run_shares_what_the_first_measured(archive: Archive) -> None:
    first = run_search(archive, FakeJudge(), settings())
    again = FakeJudge()
    second = run_search(archive, again, settings())
    assert second.best == first.best
    assert second.candidates == 0 and set(second.placements) <= {"duplicate", "rejected"}
    assert len(again.judged) == 2  # the start kernel, to know where we are, and the proof


def test_same_code_shares_the_measurement(archive: Archive) -> None:
    task = make_task()
    archive.add_task(task)
    one, two = (kernel_text(base, tunes="", extra=f"// CODE same\nint v{base};") for base in (400, 300))
    _seed(archive, task, two, 300.0)
    result = run_search(archive, FakeJudge(task), settings(start=one))
    events = [e.event for e in archive.events(result.run_id) if isinstance(e.event, Judged)]
    assert [e.placement for e in events] == [Placement.NEW_BEST, Placement.DUPLICATE]
    assert events[1].verdict.time_us == 400.0 and result.candidates == 1


def test_failures_of_candidates_are_verdicts(archive: Archive) -> None:
    result = run_search(archive, FakeJudge(), settings(start=kernel_text(extra="int WRONG;")))
    assert result.best is None and result.placements == {"rejected": 1} and "no kernel was verified" in result.reason
    assert [e.verdict.message for e in archive.entries(Filters())] == ["out[3]: expected 1, got nan"]


@pytest.mark.parametrize("text", ["// @launch f(\nvoid f() {}", "\0", "half \ud800 a pair"])
def test_a_text_that_is_no_kernel_file_is_a_verdict_too(archive: Archive, text: str) -> None:
    result = run_search(archive, RealParse(), settings(start=None), on_event=None)
    assert result.best is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evokernel.operators.get", lambda name: Says(text))
        archive.add_task(make_task())
        _seed(archive, make_task(), kernel_text(), 500.0)
        result = run_search(archive, RealParse(), settings(start=None))
    assert result.placements == {"rejected": 1} and result.best is None


class Says:
    """An operator that always gives the same text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def run(self, context):
        yield from ()
        return Reply(self.text, "as told \udfff")


class RealParse(FakeJudge):
    """Turns a kernel file that does not parse into a verdict, as the real judge does."""

    def judge(self, kernel, *, incumbent_us=None, patience=1.0):
        try:
            return super().judge(kernel, incumbent_us=incumbent_us)
        except KernelFileError as error:
            return failed(kernel, Status.INVALID, str(error))


def test_the_incumbent_is_the_best_time_so_far(archive: Archive) -> None:
    judge = FakeJudge()
    run_search(archive, judge, settings())
    assert judge.incumbents[0] is None and judge.incumbents[1] == 500.0 + 20 * (3 + 2)
    assert judge.incumbents[-1] is None  # the proof is measured in full


def test_our_failure_is_recorded_and_raised_as_itself_and_the_run_goes_on(archive: Archive) -> None:
    judge = FakeJudge()
    judge.raises = {1: JudgeError("the lane died twice")}
    with pytest.raises(JudgeError, match="died twice"):
        run_search(archive, judge, settings())
    (run,) = archive.runs()
    assert not run.running and run.ended is None
    assert archive.events(run.id)[-1].event == Failed("JudgeError", "the lane died twice")
    result = resume(archive, judge, run.id)
    assert result.confirmed and not result.resumable
    assert len(judge.judged) == len(set(judge.judged)) + 1  # nothing twice but the proof


def test_an_interrupt_ends_cleanly_and_can_be_resumed(archive: Archive) -> None:
    judge = FakeJudge()
    judge.raises = {1: KeyboardInterrupt()}
    paused = run_search(archive, judge, settings())
    assert paused.reason == "interrupted" and paused.resumable and not paused.confirmed
    done = resume(archive, judge, paused.run_id)
    assert done.confirmed and not done.resumable
    assert facts(resume(archive, judge, paused.run_id)) == facts(done)  # over: told again, not run again


def test_resume_refuses_another_task(archive: Archive) -> None:
    judge = FakeJudge()
    judge.raises = {1: KeyboardInterrupt()}
    run_id = run_search(archive, judge, settings()).run_id
    with pytest.raises(UsageError, match="start a new run"):
        resume(archive, FakeJudge(make_task("other")), run_id)
    with pytest.raises(UsageError, match="no run"):
        resume(archive, judge, "nonesuch")


def test_a_run_that_a_live_process_drives_is_refused(archive: Archive, tmp_path: Path) -> None:
    def meddle(logged: Logged, state: State) -> None:
        (run,) = archive.runs()
        assert run.running
        with Archive(tmp_path / "a.db") as other, pytest.raises(ArchiveError, match="is being driven by process"):
            resume(other, FakeJudge(), run.id)

    run_search(archive, FakeJudge(), settings(candidates=1), on_event=meddle)


def test_transplants_bring_verified_stones_of_other_tasks(archive: Archive) -> None:
    other = make_task("relu_cube", "def forward(self, v): return torch.relu(v)")
    archive.add_task(other)
    _seed(archive, other, kernel_text(123), 123.0)
    result = run_search(archive, FakeJudge(), settings(start=None))
    (run,) = [r for r in archive.runs() if r.id == result.run_id]
    made = [e.event.proposal.operator for e in archive.events(run.id) if hasattr(e.event, "proposal")]
    assert made[:2] == ["transplant", "tune"]
    assert result.best.text.startswith("// Rows in chunks") and result.verdict.time_us == 123.0
    assert [d["operator"] for _, _, d in archive.lineage(result.best.id).edges(data=True)] == ["tune"]


def test_a_quarantined_stone_is_answered_without_a_kernel(archive: Archive) -> None:
    task = make_task()
    archive.add_task(task)
    seed = _seed(archive, task, kernel_text(100), 100.0)

    def quarantine(logged: Logged, state: State) -> None:
        archive.quarantine(seed.id, "reads out of bounds")

    result = run_search(archive, FakeJudge(task), settings(), on_event=quarantine)
    assert result.best.id != seed.id


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[RunResult, list, int]:
    """A run over several stones that nobody kills: its result, its events, and how many SQL statements it took."""
    path = tmp_path_factory.mktemp("whole") / "a.db"
    _stones(path)
    count = [0]
    with Archive(path) as archive:
        archive.database._connection.set_trace_callback(lambda _: count.__setitem__(0, count[0] + 1))
        result = run_search(archive, FakeJudge(), settings(seed=5))
        return result, [e.event for e in archive.events(result.run_id)], count[0]


def test_the_run_that_is_killed_below_is_worth_killing(whole) -> None:
    result, events, statements = whole
    assert result.candidates >= 8 and statements > 300
    assert {e.proposal.operator for e in events if hasattr(e, "proposal")} == {"start", "transplant", "tune", "recombine"}


@pytest.mark.parametrize("seed", range(20))
def test_kill_9_at_any_statement_loses_and_repeats_nothing(tmp_path: Path, whole, seed: int) -> None:
    expected, events, statements = whole
    journal, path, rng = tmp_path / "journal", tmp_path / "k.db", random.Random(seed)
    _stones(path)
    assert _killed(lambda a: run_search(a, FakeJudge(journal=journal), settings(seed=5)), path, rng.randrange(20, statements))
    with Archive(path) as archive:
        runs = archive.runs()
    kills = 1
    while runs and kills < 4 and _killed(lambda a: resume(a, FakeJudge(journal=journal), runs[0].id), path, rng.randrange(15, 150)):
        kills += 1
    with Archive(path) as archive:
        assert archive.check() == []
        if not runs:  # killed before the run was there
            return
        result = resume(archive, FakeJudge(journal=journal), runs[0].id)
        assert facts(result) == facts(expected)
        assert [e.event for e in archive.events(result.run_id)] == events
        # Only a kernel whose judging was cut off is judged again: at most one for each kill. And the proof.
        judged = journal.read_text().split()
        assert len(judged) - len(set(judged)) <= 1 + kills


def _stones(path: Path) -> None:
    with Archive(path) as archive:
        for n in range(5):
            task = make_task(f"relu_{n}", f"def forward(self, v): return torch.relu(v) + {n}")
            archive.add_task(task)
            tunes = "CHUNK = 1 in 1 2 4 8 16" if n % 2 else f"CHUNK = {2**n} in 1 2 4 8 16; WIDTH = 4 in 4 8 16 32"
            _seed(archive, task, kernel_text(450 + 10 * n, tunes=tunes), 450.0 + n)


def test_a_dead_process_loses_its_lease_at_once_and_its_zombie_too(tmp_path: Path) -> None:
    pid = os.fork()
    if not pid:
        with _leaving(), Archive(tmp_path / "a.db") as archive:
            run_search(archive, FakeJudge(), settings(), on_event=lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # dead, but not reaped
    with Archive(tmp_path / "a.db") as archive:
        (run,) = archive.runs()
        assert not run.running and resume(archive, FakeJudge(), run.id).confirmed
    os.waitpid(pid, 0)


def test_two_runs_on_one_archive_at_once(tmp_path: Path) -> None:
    Archive(tmp_path / "a.db").close()
    pids = []
    for n in range(2):
        pid = os.fork()
        if not pid:
            with _leaving(), Archive(tmp_path / "a.db") as archive:
                assert run_search(archive, FakeJudge(), settings(seed=n, start=kernel_text(400 + n, tunes=TWO))).confirmed
        pids.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0, 0]
    with Archive(tmp_path / "a.db") as archive:
        assert archive.check() == [] and len(archive.runs()) == 2


def test_10000_events_cost_the_same_each(archive: Archive) -> None:
    """Counted in SQLite's own steps, not in time."""
    task = make_task()
    archive.add_task(task)
    log = archive.start_run(Started(task.id, DEVICE, settings(), (), "task.py"))
    steps = [0]
    connection: sqlite3.Connection = archive.database._connection
    connection.set_progress_handler(lambda: steps.__setitem__(-1, steps[-1] + 1), 1)
    for _ in range(10_000):
        log.append(Paused(), 0.0)
        steps.append(0)
    assert 0 < steps[9_999] <= steps[100] * 1.5


def _seed(archive: Archive, task, text: str, time_us: float):
    kernel = make(text)
    with archive.database.write() as connection:
        verdicts.insert_kernel(connection, kernel, verdicts.Origin("shipped"))
        verdicts.store(connection, verified(kernel, time_us), task, imported=True)
    return kernel


def _killed(work: Callable[[Archive], object], path: Path, statements: int) -> bool:
    """Do the work in a process that kills itself at the given SQL statement; False when it was done before."""
    pid = os.fork()
    if not pid:
        count = [0]

        def traced(_: str) -> None:
            count[0] += 1
            if count[0] == statements:
                os.kill(os.getpid(), signal.SIGKILL)

        with _leaving(), Archive(path) as archive:
            archive.database._connection.set_trace_callback(traced)
            work(archive)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code != 0


@contextlib.contextmanager
def _leaving() -> Iterator[None]:
    """Ends a forked child here, whatever happens in it: it must not go on as a second pytest."""
    code = 1
    try:
        yield
        code = 0
    finally:
        if code:
            traceback.print_exc()
        os._exit(code)


def test_the_loop_imports_no_torch() -> None:
    check = "import sys, evokernel.search.run; print([m for m in ('torch', 'networkx') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout == "[]\n"
