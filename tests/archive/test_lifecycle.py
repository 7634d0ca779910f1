"""What may go, two archives made one, what is to be judged again, and repairs."""

import itertools
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from evokernel.archive import schema
from evokernel.archive.lifecycle import Here, Merged
from evokernel.archive.runs import RunSettings, Started, StoneRef
from evokernel.archive.search import Filters
from evokernel.archive.store import Archive
from evokernel.archive.verdicts import Origin
from evokernel.errors import ArchiveError, UsageError
from evokernel.records import ErrorRow, Status
from evokernel.search.run import resume, run_search
from tests.archive.test_store import Recorder, measured
from tests.search.fake_judge import DEVICE, FakeJudge, environment, failed, kernel_text, make, make_task, verified

TASK = make_task()
HERE = Here(DEVICE.name, DEVICE.architecture, "fake 1", {"torch": "2"})


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    with Archive(tmp_path / "a.db") as opened:
        yield opened


def recorder(archive: Archive, task=TASK, stones: tuple[StoneRef, ...] = ()) -> Recorder:
    archive.add_task(task)
    return Recorder(archive, archive.start_run(Started(task.id, DEVICE, RunSettings("cpp"), stones, "task.py")), task)


def end(archive: Archive, run_id: str | None = None) -> None:
    """A run is over (None: all)."""
    archive.database.rows("UPDATE runs SET ended = 'done', holder = NULL WHERE id = coalesce(?, id)", run_id)


def kernel(n: int, **changed):
    return make(kernel_text(extra=f"int n{n};", **changed))


def add(archive: Archive, k, origin: str, verdict=None, task=TASK) -> None:
    archive.add_task(task)
    archive.add_kernel(k, Origin(origin))
    if verdict:
        archive.rejudged(verdict, task)


_OWN = ("seq", "attempt", "holder", "created", "heartbeat")


def dump(path: Path) -> list[str]:
    """All rows of a file, less what only counts or is derived."""
    with sqlite3.connect(path) as connection:
        lines = []
        for table in ("tasks", "kernels", "builds", "verdicts", "runs", "events", "attempts", "edges", "uses", "lessons"):
            names = [c[1] for c in connection.execute(f"PRAGMA table_info({table})") if c[1] not in _OWN]
            lines += sorted(f"{table} {row}" for row in connection.execute(f"SELECT {', '.join(names)} FROM {table}"))
    return lines


def test_pruning_keeps_the_fastest_and_all_their_ancestors(archive: Archive) -> None:
    record = recorder(archive)
    best, slow, draft, step, last, aside = (kernel(n) for n in range(6))
    record(best, verified(best, 100))  # the first new best stays: it is the run's history
    record(slow, verified(slow, 950))
    record(draft, failed(draft))
    record(step, verified(step, 900), parents=(draft.id,))
    record(last, verified(last, 101), parents=(step.id,))
    record(aside, failed(aside), parents=(step.id,))
    end(archive)
    planned = archive.prune(0.0, 2)
    assert set(planned.kernels) == {slow.id, aside.id} and planned.kept == 4 and not planned.done
    assert archive.stats().kernels == 6
    assert archive.prune(3600.0, 2).kernels == ()
    done = archive.prune(0.0, 2, apply=True)
    assert done.kernels == planned.kernels and archive.check() == []
    assert archive.stats().kernels == 4 and set(archive.lineage(last.id).nodes) == {draft.id, step.id, last.id}
    assert archive.stats().attempts == 6 and len(archive.events(record.log.run_id)) == 7  # what was done stays known
    assert archive.prune(0.0, 2, apply=True).kernels == ()
    with pytest.raises(UsageError, match="at least 1"):
        archive.prune(0.0, 0)


def test_pruning_spares_what_others_need(archive: Archive) -> None:
    shipped, bad, stone, own, proved = (kernel(n) for n in range(5))
    for k, origin in ((shipped, "shipped"), (bad, "user"), (stone, "user"), (proved, "user")):
        add(archive, k, origin)
    archive.quarantine(bad.id, "cheats")
    log = recorder(archive, stones=(StoneRef(stone.id, TASK.id),))
    log(own, failed(own))
    archive.confirm(verified(proved, 100), TASK, log.log, 1.0)
    archive.confirm(replace(failed(proved), errors=(ErrorRow("out", "normal", 0, float("nan"), 0.0, 0.0, 1.0, False),)), TASK, log.log, 1.0)
    assert archive.prune(0.0, 1).kernels == ()  # its run can still go on
    end(archive)
    assert set(archive.prune(0.0, 1, apply=True).kernels) == {stone.id, own.id}


def test_each_device_and_task_keeps_its_own_fastest(archive: Archive) -> None:
    other = make_task("other")
    here, there, elsewhere, slower = (kernel(n) for n in range(4))
    add(archive, here, "user", verified(here, 500))
    add(archive, there, "user", verified(there, 900, where=environment("GPU")))
    add(archive, elsewhere, "user", verified(elsewhere, 990), other)
    add(archive, slower, "user", verified(slower, 501))
    assert archive.prune(0.0, 1).kernels == (slower.id,)


def test_words_and_vectors_go_with_their_kernels(archive: Archive) -> None:
    k = kernel(1, strategy="Welford of rows.")
    add(archive, k, "user")
    archive.fill()
    (seq,) = archive.database.rows("SELECT seq FROM kernels WHERE id = ?", k.id)[0]
    assert archive.database.rows("SELECT 1 FROM vectors WHERE item = ? AND kind != 'task'", seq)
    archive.prune(0.0, 1, apply=True)
    assert archive.database.rows("SELECT 1 FROM vectors WHERE kind != 'task'") == [] and archive.search("welford", Filters()) == []


def test_merging_brings_everything_once_and_leaves_the_other_as_it_was(archive: Archive, tmp_path: Path) -> None:
    shared, mine, theirs, child, wrong = (kernel(n) for n in range(5))
    record = recorder(archive)
    record(shared, verified(shared, 500))
    record(mine, verified(mine, 450), parents=(shared.id,))
    file = tmp_path / "other.db"
    with Archive(file) as other:
        theirs_record = recorder(other)
        theirs_record(shared, verified(shared, 600))
        theirs_record(theirs, verified(theirs, 400), cost_usd=0.25)
        theirs_record(child, verified(child, 200), parents=(theirs.id, shared.id))
        theirs_record(wrong, failed(wrong, message="nan \N{GREEK SMALL LETTER ALPHA}"))
        add(other, kernel(9), "user", task=make_task("more"))
        other.quarantine(shared.id, "reads past the end")
        other.lessons()
    before = file.read_bytes()
    assert archive.merge(file) == Merged(tasks=1, kernels=4, verdicts=3, replaced=0, edges=2, runs=1, attempts=4, lessons=2)
    assert file.read_bytes() == before and archive.check() == []
    assert archive.merge(file) == Merged(0, 0, 0, 0, 0, 0, 0, 0)
    assert archive.known(theirs.id, TASK.id, environment()) is None  # not measured here
    assert archive.known(shared.id, TASK.id, environment()).time_us == 500
    assert set(archive.lineage(child.id).nodes) == {child.id, theirs.id, shared.id}
    assert archive.stone(shared.id, TASK.id) is None and archive.stone(child.id, TASK.id)
    (entry,) = archive.entries(Filters(kernel_id=child.id))
    assert entry.imported and entry.origin == Origin("run", "", theirs_record.log.run_id)
    assert archive.search("more", Filters()) == [] and len(archive.runs()) == 2 and archive.stats().cost_usd == 0.25


def test_merging_an_own_archive_counts_as_measured_here_and_the_lower_stands(archive: Archive, tmp_path: Path) -> None:
    one, two = kernel(1), kernel(2)
    record = recorder(archive)
    record(one, verified(one, 500))
    with Archive(tmp_path / "other.db") as other:
        recording = recorder(other)
        recording(one, verified(one, 600))
        recording(two, verified(two, 300))
    done = archive.merge(tmp_path / "other.db", own=True)
    assert (done.verdicts, done.replaced) == (1, 1)
    assert archive.known(one.id, TASK.id, environment()).time_us == 600 and archive.known(two.id, TASK.id, environment())
    assert archive.best(TASK.id, "cpp").kernel == two


def test_merging_both_ways_gives_the_same_rows(archive: Archive, tmp_path: Path) -> None:
    with Archive(tmp_path / "b.db") as other:
        for n, each in enumerate((archive, other)):
            record, rng = recorder(each), random.Random(n)
            for _ in range(20):
                k = kernel(rng.randrange(30))
                record(k, verified(k, 400.0 + rng.randrange(100)) if rng.random() < 0.7 else failed(k))
            end(each)
            each.lessons()
        archive.merge(tmp_path / "b.db", own=True)
        other.merge(tmp_path / "a.db", own=True)
        one, two = dump(tmp_path / "a.db"), dump(tmp_path / "b.db")
        # Edges come with a kernel's first making, origins too.
        assert [x for x in one if not x.startswith("kernels")] == [x for x in two if not x.startswith("kernels")]


def test_merging_in_any_order_and_again_gives_the_same_verdicts(tmp_path: Path) -> None:
    k, wrong = kernel(1), kernel(2)
    files = []
    for n, interval in enumerate(((0.9989, 1.0, 1.002), (0.9922, 1.0, 1.012), (0.987, 1.0, 1.032))):
        files.append(tmp_path / f"{n}.db")
        with Archive(files[-1]) as other:
            add(other, k, "user", measured(k, *interval))
            add(other, wrong, "user", failed(wrong, message=f"out[{n}]"))
    stand = set()
    for number, order in enumerate(itertools.permutations(files)):
        with Archive(tmp_path / f"all{number}.db") as archive:
            assert [archive.merge(file).verdicts for file in order] == [2, 0, 0]
            assert [archive.merge(file).replaced for file in order] == [0, 0, 0]
            stand.add(tuple(row["record"] for row in archive.database.rows("SELECT record FROM verdicts ORDER BY record")))
    assert len(stand) == 1


def test_of_a_run_that_went_on_differently_the_other_part_is_left_out_and_named(archive: Archive, tmp_path: Path) -> None:
    first, mine, theirs = (kernel(n) for n in range(3))
    record = recorder(archive)
    record(first, verified(first, 500))
    run_id = record.log.run_id
    record.log.release()
    with sqlite3.connect(tmp_path / "b.db") as copy:
        archive.database._connection.backup(copy)
    with Archive(tmp_path / "b.db") as other:
        for each, k, operator in ((archive, mine, "mutate"), (other, theirs, "crossover")):
            going = Recorder(each, each.acquire_run(run_id), TASK)
            going.number = 1
            going(k, verified(k, 400), operator=operator, parents=(first.id,))
            going.log.release()
    merged = archive.merge(tmp_path / "b.db", own=True)
    assert (merged.kernels, merged.verdicts, merged.edges, merged.attempts, merged.parted) == (1, 1, 1, 0, (run_id,))
    lineage = archive.lineage(theirs.id)
    assert lineage.edges[first.id, theirs.id]["operator"] != "mutate"  # the attempt of that number made another kernel
    assert archive.merge(tmp_path / "b.db", own=True) == Merged(0, 0, 0, 0, 0, 0, 0, 0, (run_id,)) and archive.check() == []


def test_merging_leaves_nothing_beside_the_other_file(archive: Archive, tmp_path: Path, other_file: Path) -> None:
    before = sorted(tmp_path.glob("other.db*"))
    archive.merge(other_file)
    assert sorted(tmp_path.glob("other.db*")) == before == [other_file]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_archive_in_a_read_only_folder_is_merged_and_otherwise_told_to_be_copied(archive: Archive, other_file: Path) -> None:
    folder = other_file.parent / "ro"
    folder.mkdir()
    there = other_file.rename(folder / "other.db")
    folder.chmod(0o500)
    try:
        assert archive.merge(there).kernels == 5
        with pytest.raises(ArchiveError, match="copy it"):
            Archive(there)
    finally:
        folder.chmod(0o700)


def test_a_run_that_went_on_elsewhere_goes_on_here(archive: Archive, tmp_path: Path) -> None:
    judge = FakeJudge()
    judge.raises = {1: KeyboardInterrupt()}
    start = RunSettings("cpp", candidates=6, start=kernel_text(500, tunes="CHUNK = 1 in 1 2 4 8 16; WIDTH = 4 in 4 8 16 32"))
    with Archive(tmp_path / "b.db") as other:
        paused = run_search(other, judge, start)
        assert archive.merge(tmp_path / "b.db", own=True).runs == 1
        done = resume(other, judge, paused.run_id)
        again = archive.merge(tmp_path / "b.db", own=True)
        assert again.runs == 0 and again.attempts > 0
        assert archive.events(paused.run_id) == other.events(paused.run_id)
        assert resume(archive, FakeJudge(), paused.run_id).verdict == done.verdict  # over, told again
    assert archive.check() == []


def test_merging_takes_old_files_and_refuses_what_is_none(archive: Archive, tmp_path: Path) -> None:
    old, text, k = tmp_path / "old.db", tmp_path / "text", kernel(1)
    connection = sqlite3.connect(old, isolation_level=None)
    schema.migrate(connection, "old", schema.MIGRATIONS[:1])
    connection.execute("INSERT INTO kernels VALUES (1, ?, 'cpp', ?, '', 'user', 'MIT', '', NULL, 1.0)", (k.id, k.text))
    connection.close()
    before = old.read_bytes()
    assert archive.merge(old).kernels == 1 and old.read_bytes() == before
    text.write_text("no database at all, but long enough to be taken for one\n" * 40)
    for bad, says in ((text, "text failed: file is not"), (tmp_path / "gone.db", "no file"), (tmp_path / "a.db", "itself"), (tmp_path, "no file")):
        with pytest.raises((ArchiveError, UsageError), match=says):
            archive.merge(bad)
    with Archive(tmp_path / "damaged.db") as damaged:
        add(damaged, kernel(2), "user")
        damaged.database.rows("UPDATE kernels SET text = 'int x;'")
    with pytest.raises(ArchiveError, match=r"no longer matches its id.*check --repair"):
        archive.merge(tmp_path / "damaged.db")
    assert archive.stats().kernels == 1


def test_what_is_due_comes_from_other_rules_places_or_versions(archive: Archive) -> None:
    now, older, elsewhere, rules, bad, wrong, more = (kernel(n) for n in range(7))
    add(archive, now, "user", verified(now, 500, where=environment(torch="2", numpy="1")))
    add(archive, older, "user", verified(older, 400, where=environment(torch="1")))
    add(archive, elsewhere, "user", verified(elsewhere, 300, where=environment("GPU")))
    add(archive, rules, "user", verified(rules, 200, where=replace(environment(), protocol=0)))
    add(archive, bad, "user", verified(bad, 100, where=environment("GPU")))
    archive.quarantine(bad.id, "cheats")
    add(archive, wrong, "user", failed(wrong))
    add(archive, more, "user", verified(more, 600, where=environment("GPU")), make_task("more"))

    def due(**options) -> list[str]:
        return [d.kernel.id for d in archive.due("cpp", HERE, **options)]

    assert due() == [rules.id, elsewhere.id, older.id, more.id]
    assert due(task="more") == [more.id] and due(task=TASK.id[:6], limit=1) == [rules.id] and due(task="nope") == []
    assert archive.due("cuda", HERE) == []
    archive.rejudged(failed(rules, Status.CHEATING, "it kept a call's results"), TASK)
    archive.rejudged(verified(elsewhere, 350), TASK)
    assert due() == [older.id, more.id]  # the others are done, however they ended
    assert archive.known(elsewhere.id, TASK.id, environment()).time_us == 350
    assert len(archive.entries(Filters(kernel_id=elsewhere.id))) == 2  # the old verdict stays under its own key
    assert archive.stone(rules.id, TASK.id) is None and archive.entries(Filters(kernel_id=rules.id))[0].quarantined


def test_repair_mends_what_it_can_and_says_what_it_cannot(archive: Archive) -> None:
    record = recorder(archive)
    a, b, c, d = (kernel(n) for n in range(4))
    record(a, verified(a, 500))
    record(b, verified(b, 400), parents=(a.id,))
    record(c, failed(c), parents=(b.id,))
    record(d, verified(d, 450))
    archive.lessons()
    end(archive)  # nothing is filled while a run measures
    archive.fill()
    assert archive.check() == []
    raw = archive.database._connection
    raw.execute("PRAGMA foreign_keys = OFF")
    raw.execute("UPDATE kernels SET text = text || 'int more;' WHERE id = ?", (a.id,))
    raw.execute("UPDATE verdicts SET status = 'crashed', time_us = NULL WHERE seq = 2")
    raw.execute("UPDATE verdicts SET record = '{' WHERE seq = 3")
    raw.execute("DELETE FROM kernels WHERE id = ?", (d.id,))
    raw.execute("INSERT INTO edges VALUES (?, ?, NULL, '')", (a.id, b.id))
    raw.execute("UPDATE vectors SET vector = x'00' WHERE seq = (SELECT min(seq) FROM vectors)")
    raw.execute("INSERT INTO lessons VALUES (99, 'x', 'win', 'cpp', 'gone', 't', 1.5, 1, 1, 1, '')")
    raw.execute("INSERT INTO vectors VALUES (999, 'm', 'code', 12345, 0, x'00000000')")
    raw.execute("PRAGMA foreign_keys = ON")
    problems = archive.check()
    assert len(problems) == 10, '\n'.join(problems)
    done = archive.check(repair=True)
    assert len(done) >= len(problems) and all(line.endswith(": repaired") for line in done)
    assert archive.check() == [] and archive.database.rows("PRAGMA foreign_keys")[0][0] == 1
    assert archive.known(b.id, TASK.id, environment()).time_us == 400 and archive.stone(b.id, TASK.id)
    assert archive.stone(a.id, TASK.id) is None and archive.find(a.id)
    raw.execute("DELETE FROM events WHERE number = 1")
    (left,) = archive.check(repair=True)
    assert "events are missing" in left and "cannot be repaired" in left and archive.check() == [left.partition(": cannot")[0]]


@pytest.mark.parametrize(
    ("table", "column"),
    [("kernels", "text"), ("kernels", "id"), ("tasks", "record"), ("tasks", "name"), ("verdicts", "record"), ("builds", "compiler"),
     ("events", "record"), ("lessons", "text"), ("edges", "diff")],
)  # fmt: skip
def test_text_that_is_not_utf_8_is_named_and_made_readable(archive: Archive, table: str, column: str) -> None:
    a, b = kernel(1), kernel(2)
    record = recorder(archive)
    record(a, verified(a, 500))
    record(b, verified(b, 400), parents=(a.id,))
    archive.lessons()
    end(archive)
    assert archive.check() == []
    raw = archive.database._connection
    raw.execute("PRAGMA foreign_keys = OFF")
    raw.text_factory = str
    first = raw.execute(f"SELECT min({column}) FROM {table}").fetchone()[0]
    raw.execute(f"UPDATE {table} SET {column} = CAST(CAST({column} AS BLOB) || x'ff' AS TEXT) WHERE {column} = ?", (first,))
    with pytest.raises(ArchiveError, match=rf"{table}: {column} of the row with the \w+ .* is not UTF-8; .*check --repair"):
        archive.database.rows(f"SELECT {column} FROM {table}")
    assert any("is not UTF-8" in problem for problem in archive.check())
    assert all(line.endswith(": repaired") for line in archive.check(repair=True)) or table in ("events", "tasks")
    raw.text_factory = str
    archive.database.rows(f"SELECT {column} FROM {table}")
    assert archive.check() == [] or (table, column) in (("events", "record"), ("tasks", "record"))
    assert bool(archive.database.rows("SELECT 1 FROM kernels WHERE quarantined IS NOT NULL")) == (table == "kernels")


def test_a_damaged_task_is_named_and_goes_or_is_written_anew(archive: Archive) -> None:
    record = recorder(archive)
    k = kernel(1)
    record(k, verified(k, 500))
    end(archive)
    add(archive, kernel(2), "shipped", verified(kernel(2), 400), task=make_task("other"))
    archive.database.rows("INSERT INTO imports VALUES ('m', 1.0)")
    archive.database.rows("UPDATE tasks SET record = '{'")
    with pytest.raises(ArchiveError, match="stored task cannot be read"):
        archive.stones(TASK, "cpp")
    assert len(archive.check()) == 2
    archive.check(repair=True)
    (left,) = archive.check()
    assert TASK.name in left and "evolve" in left and archive.task_names() == {TASK.id: TASK.name}
    assert archive.database.rows("SELECT 1 FROM imports") == []  # what was shipped comes again
    archive.add_task(TASK)
    assert archive.check() == []


@pytest.mark.parametrize("name", ["lessons", "vectors", "uses", "imports", "task_words", "kernel_words"])
def test_a_table_that_may_be_empty_is_made_anew(archive: Archive, tmp_path: Path, name: str) -> None:
    add(archive, kernel(1, strategy="Welford."), "user")
    archive.database.rows(f"DROP TABLE {name}")
    with Archive(tmp_path / "a.db") as again:
        (problem,) = again.check()
        assert f"{name} is missing" in problem and f"the table {name} is missing: repaired" in again.check(repair=True)
        assert again.check() == [] and again.search("welford", Filters())


def test_other_tables_are_missed_and_indexes_made_anew(archive: Archive) -> None:
    archive.database.rows("DROP INDEX builds_by_code")
    archive.database.rows("DROP TABLE kernel_words_idx")
    assert archive.check(repair=True) == ["the index builds_by_code is missing: repaired"] and archive.check() == []
    archive.database.rows("DROP TABLE attempts")
    assert archive.check(repair=True) == ["the table attempts is missing: cannot be repaired here; go back to a copy"]


def test_a_file_that_is_torn_is_told_as_far_as_it_can_be_read(tmp_path: Path) -> None:
    with Archive(tmp_path / "a.db") as archive:
        for n in range(100):
            add(archive, kernel(n), "user")
        page = archive.database.rows("SELECT rootpage FROM sqlite_master WHERE name = 'tasks'")[0][0]
    with (tmp_path / "a.db").open("r+b") as file:
        file.seek(4096 * (page - 1))
        file.write(b"\xff" * 4096)
    with Archive(tmp_path / "a.db") as archive:
        problems = archive.check()
        assert "malformed" in problems[-1] and "go back to a copy" in problems[-1] and "archive check" not in "".join(problems)
        assert archive.check(repair=True)


_JOBS = """
import random, sys
sys.path.insert(0, {root!r})
from pathlib import Path
from evokernel.archive.store import Archive
from tests.archive.test_lifecycle import TASK, end, failed, kernel, recorder, verified
rng = random.Random(int(sys.argv[2]))
with Archive(sys.argv[1]) as archive:
    print("open", flush=True)
    while True:
        record, parents = recorder(archive), ()
        for n in range(5):
            k = kernel(rng.randrange(10_000))
            record(k, verified(k, rng.randrange(200, 900)) if rng.random() < 0.6 else failed(k), parents=parents)
            parents = (k.id,) if rng.random() < 0.7 else ()
        end(archive, record.log.run_id)
        archive.lessons(TASK.id)
        archive.merge(Path(sys.argv[3]))
        archive.prune(0.0, 3, apply=True)
        print("round", flush=True)
"""


@pytest.fixture
def other_file(tmp_path: Path) -> Path:
    with Archive(tmp_path / "other.db") as other:
        record = recorder(other)
        for n in range(5):
            k = kernel(20_000 + n)
            record(k, verified(k, 500.0 + n))
        end(other)
    return tmp_path / "other.db"


def job(archive: Path, seed: int, other: Path) -> subprocess.Popen[str]:
    script = _JOBS.format(root=str(Path(__file__).parents[2]))
    command = [sys.executable, "-c", script, str(archive), str(seed), str(other)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def sound(file: Path, other: Path) -> bool:
    with Archive(file) as archive:
        lost = archive.database.rows("SELECT 1 FROM uses LEFT JOIN kernels k ON k.id = stone WHERE k.id IS NULL")
        return archive.check() == [] and not lost and archive.merge(other).tasks == 0 and archive.check() == []


@pytest.mark.parametrize("seed", range(4))
def test_kill_9_amid_runs_lessons_merges_and_prunes_leaves_a_sound_archive(tmp_path: Path, other_file: Path, seed: int) -> None:
    with job(tmp_path / "a.db", seed, other_file) as child:
        for _ in range(1 + seed):
            child.stdout.readline()
        deadline = time.monotonic() + random.Random(seed).random() * 0.1
        while time.monotonic() < deadline:
            pass
        child.send_signal(signal.SIGKILL)
    assert sound(tmp_path / "a.db", other_file)


def test_two_processes_that_do_all_this_at_once_do_not_disturb_each_other(tmp_path: Path, other_file: Path) -> None:
    with job(tmp_path / "a.db", 7, other_file) as one, job(tmp_path / "a.db", 8, other_file) as two:
        for child in (one, two):
            lines = [child.stdout.readline() for _ in range(6)]
            assert lines == ["open\n", *["round\n"] * 5], child.stderr.read()
        for child in (one, two):
            child.send_signal(signal.SIGKILL)
    assert sound(tmp_path / "a.db", other_file)
