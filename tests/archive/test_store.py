import functools
import hashlib
import itertools
import math
import os
import random
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from evokernel import codec
from evokernel.archive import schema, verdicts
from evokernel.archive.lineage import path
from evokernel.archive.runs import Judged, Logged, RunSettings, Started, StoneRef
from evokernel.archive.search import Filters
from evokernel.archive.store import Archive
from evokernel.archive.verdicts import Origin, store
from evokernel.errors import ArchiveError, UsageError
from evokernel.records import Attempt, ErrorRow, Interval, Placement, Proposal, Reply, Role, Status, Timing
from tests.search.fake_judge import DEVICE, environment, failed, kernel_text, make, make_task, tensor, verified

TASK = make_task()


@pytest.fixture
def archive(tmp_path: Path):
    with Archive(tmp_path / "a.db") as opened:
        opened.add_task(TASK)
        yield opened


@pytest.fixture
def log(archive: Archive):
    return archive.start_run(Started(TASK.id, DEVICE, RunSettings("cpp"), (), "task.py"))


class Recorder:
    """Records attempts with running numbers."""

    def __init__(self, archive: Archive, log, task=TASK) -> None:
        self.archive, self.log, self.task, self.number = archive, log, task, 0

    def __call__(self, kernel, verdict, *, operator="mutate", parents=(), **reply) -> Judged:
        attempt = Attempt(Proposal(self.number, operator, parents), Reply(kernel.text if kernel else None, **reply), kernel, verdict)
        self.number += 1
        event = self.archive.record(attempt, self.task, self.log, 1.0).event
        assert isinstance(event, Judged)
        return event


@pytest.fixture
def record(archive: Archive, log) -> Recorder:
    return Recorder(archive, log)


def kernel(n: int = 0, **changed):
    return make(kernel_text(extra=f"int n{n};", **changed))


def test_placements_tell_what_an_attempt_did(record: Recorder) -> None:
    fast, slow, wrong = kernel(1), kernel(2), kernel(3)
    assert record(slow, verified(slow, 500)).placement is Placement.NEW_BEST
    assert record(fast, verified(fast, 400)).placement is Placement.NEW_BEST
    third = kernel(4)
    assert record(third, verified(third, 450)).placement is Placement.KEPT
    assert record(wrong, failed(wrong)).placement is Placement.REJECTED
    assert record(fast, verified(fast, 100)).placement is Placement.DUPLICATE
    assert record(None, replace(failed(fast), status=Status.NO_KERNEL, kernel_id="")).placement is Placement.REJECTED


def test_of_two_measurements_of_a_key_the_lower_counts(archive: Archive, record: Recorder) -> None:
    k = kernel()
    record(k, verified(k, 400))
    assert record(k, verified(k, 100)).verdict.time_us == 400
    assert record(k, verified(k, 800)).verdict.time_us == 800
    assert archive.known(k.id, TASK.id, environment()).time_us == 800
    record(k, failed(k))
    assert archive.best(TASK.id, "cpp") is None or archive.known(k.id, TASK.id, environment()).status is Status.MISMATCH


def measured(k, low: float, mid: float, high: float):
    """A verdict with this interval of its speedup."""
    (mode,) = verified(k, 1000.0 / mid).timing.modes
    baseline = replace(mode.baselines[0], speedup=Interval(low, mid, high))
    return replace(verified(k, 1000.0 / mid), timing=Timing("cold", (replace(mode, baselines=(baseline,)),)))


def test_of_several_measurements_the_same_one_stands_in_any_order() -> None:
    k, rng = kernel(), random.Random(0)
    middles = [rng.uniform(0.9, 1.1) for _ in range(300)]
    several = [measured(k, mid * (1 - w), mid, mid * (1 + w)) for mid, w in zip(middles, itertools.cycle((0.004, 0.02, 0.1, 0.4)), strict=False)]
    several += [measured(k, 0.0, 1.0, math.inf), failed(k), failed(k, message="another"), failed(k, Status.CRASHED)]
    for _ in range(2000):
        three = rng.sample(several, 3)
        stand = {codec.dumps(functools.reduce(verdicts.lower, order)) for order in itertools.permutations(three)}
        assert len(stand) == 1


def test_the_lower_stands_but_a_vague_one_gives_way() -> None:
    k = kernel()
    good, lower, vague, open_ = (measured(k, *i) for i in ((0.99, 1.0, 1.01), (0.985, 0.992, 1.0), (0.7, 0.95, 1.2), (0.0, 1.0, math.inf)))
    assert verdicts.lower(good, lower) == verdicts.lower(lower, good) == lower
    for wide in (vague, open_):
        assert verdicts.lower(good, wide) == verdicts.lower(wide, good) == good
        assert verdicts.lower(wide, failed(k)) == failed(k)  # a failure is not displaced by any time


def test_the_same_code_in_another_text_shares_the_measurement(record: Recorder) -> None:
    one, two, three = kernel(1), kernel(2), kernel(3)
    record(one, verified(one, 400, code="c0de"))
    shared = record(two, verified(two, 300, code="c0de"))
    assert shared.placement is Placement.DUPLICATE and shared.verdict.time_us == 400 and shared.verdict.kernel_id == two.id
    assert record(three, verified(three, 300, code="other")).placement is Placement.NEW_BEST


@pytest.mark.parametrize(
    "other",
    [environment("Another CPU"), environment(torch="3"), replace(environment(), protocol=99), replace(environment(), compiler="fake 2"),
     replace(environment(), architecture="x86-64-other")],
)  # fmt: skip
def test_verdicts_of_other_places_rules_and_versions_never_mix(archive: Archive, record: Recorder, other) -> None:
    k = kernel()
    record(k, verified(k, 400))
    assert archive.known(k.id, TASK.id, other) is None
    assert record(k, verified(k, 300, where=other)).placement is Placement.NEW_BEST
    assert archive.known(k.id, TASK.id, environment()).time_us == 400


def test_the_order_of_versions_does_not_matter(archive: Archive, record: Recorder) -> None:
    k = kernel()
    record(k, verified(k, 400, where=environment(torch="2", numpy="1")))
    assert archive.known(k.id, TASK.id, environment(numpy="1", torch="2"))


def test_a_run_of_an_unknown_task_is_refused(archive: Archive) -> None:
    with pytest.raises(ArchiveError, match="refused a row"):
        archive.start_run(Started("nope", DEVICE, RunSettings("cpp"), (), "task.py"))
    assert archive.runs() == []


def test_a_proposal_is_judged_once(record: Recorder) -> None:
    k = kernel()
    record(k, verified(k, 400))
    record.number = 0
    with pytest.raises(ArchiveError, match="proposal 0 of run"):
        record(k, verified(k, 400))


def test_a_failing_record_stores_nothing_at_all(archive: Archive, record: Recorder) -> None:
    k = kernel()
    before = list(archive.events(record.log.run_id))
    with pytest.raises(ArchiveError, match="nosuchparent"):
        record(k, verified(k, 400), parents=("nosuchparent",))
    assert archive.stats().kernels == 0 and archive.stats().attempts == 0
    assert archive.events(record.log.run_id) == before
    with pytest.raises(UsageError):
        archive.find(k.id)


def test_nan_and_inf_survive(archive: Archive, record: Recorder) -> None:
    k = kernel()
    row = ErrorRow("out", "normal", 0, math.inf, math.nan, -math.inf, 16.0, False)
    record(k, replace(failed(k), errors=(row,)))
    (stored,) = archive.known(k.id, TASK.id, environment()).errors
    assert stored.max_units == math.inf and math.isnan(stored.rms_units) and stored.max_abs == -math.inf


@pytest.mark.parametrize("bad", ["half \ud800 a pair", "\udcff"])
def test_invalid_unicode_is_refused_at_the_door(archive: Archive, record: Recorder, bad: str) -> None:
    with pytest.raises(ArchiveError, match="not valid Unicode"):
        archive.add_kernel(replace(kernel(), text=bad), Origin("user"))
    with pytest.raises(ArchiveError, match="not valid Unicode"):
        archive.add_task(replace(TASK, id="x", source=bad))
    k = kernel()
    with pytest.raises(ArchiveError, match="not valid Unicode"):
        record(k, failed(k, message=bad))
    assert archive.search(f"relu {bad}", Filters()) == []
    assert archive.check() == []


def test_texts_of_all_scripts_survive(archive: Archive) -> None:
    k = make(kernel_text(strategy="Schnelle Zeilen \U0001f680 行ごと \u202e"))
    archive.add_kernel(k, Origin("user", "MIT", "https://example.org"))
    assert archive.find(k.id) == k
    assert archive.entries(Filters())[0].origin == Origin("user", "MIT", "https://example.org")


def test_a_task_whose_file_moved_is_the_same_task_at_its_new_path(archive: Archive) -> None:
    moved = replace(TASK, path="/elsewhere/relu.py")
    assert archive.add_task(moved) is Placement.DUPLICATE and archive.task(TASK.id) == moved
    with pytest.raises(UsageError):
        archive.task("nope")


def test_find_takes_a_prefix_and_says_when_it_is_not_enough(archive: Archive) -> None:
    kernels = [kernel(n) for n in range(40)]
    placed = [archive.add_kernel(k, Origin("user")) for k in kernels]
    assert set(placed) == {Placement.KEPT} and archive.add_kernel(kernels[0], Origin("run")) is Placement.DUPLICATE
    assert archive.find(kernels[3].id[:12]) == kernels[3]
    first = next(k.id[0] for k in kernels if sum(o.id[0] == k.id[0] for o in kernels) > 1)
    with pytest.raises(UsageError, match="give more digits"):
        archive.find(first)
    for nothing in ("", "zz", "%", "_"):
        with pytest.raises(UsageError, match="no kernel"):
            archive.find(nothing)


def test_best_is_verified_here_and_not_quarantined(archive: Archive, record: Recorder) -> None:
    one, two, elsewhere = kernel(1), kernel(2), kernel(3)
    record(one, verified(one, 400))
    record(two, verified(two, 300))
    record(elsewhere, verified(elsewhere, 100, where=environment("GPU")))
    assert archive.best(TASK.id, "cpp", DEVICE.name).kernel == two
    assert archive.best(TASK.id, "cpp").kernel == elsewhere
    archive.quarantine(two.id, "reads past the end")
    assert archive.best(TASK.id, "cpp", DEVICE.name).kernel == one
    assert archive.best("nope", "cpp") is None and archive.best(TASK.id, "cuda") is None
    with pytest.raises(UsageError):
        archive.quarantine("nope", "why not")


def test_entries_filter_and_sort(archive: Archive, record: Recorder) -> None:
    a, b, c = kernel(1), kernel(2), kernel(3)
    record(a, verified(a, 500, features=("avx2",)))
    record(b, verified(b, 250, features=("avx2", "fma")))
    record(c, failed(c))
    archive.add_kernel(kernel(4), Origin("user"))

    def ids(**filters) -> list[str]:
        return [e.kernel.id for e in archive.entries(Filters(**filters))]

    assert ids(verified=True) == [b.id, a.id] and len(ids()) == 4
    assert ids(technique="fma") == [b.id] and ids(technique="fm") == []
    assert ids(min_speedup=3.0) == [b.id] and ids(min_speedup=0.5, device="other") == []
    assert ids(target="cuda") == [] and len(ids(task_id=TASK.id)) == 3 and ids(kernel_id=c.id) == [c.id]


def test_lineage_is_the_way_from_the_first_draft_with_gains(archive: Archive, record: Recorder) -> None:
    draft, step, last, mate = kernel(1), kernel(2), kernel(3), kernel(4)
    record(draft, verified(draft, 800), operator="translate")
    record(step, failed(step), operator="mutate", parents=(draft.id,))
    record(mate, verified(mate, 700), operator="translate")
    record(last, verified(last, 400), operator="crossover", parents=(step.id, mate.id))
    record(draft, verified(draft, 800), operator="mutate", parents=(last.id,))  # back to the start: no cycle
    dag = archive.lineage(last.id)
    assert set(dag.edges) == {(draft.id, step.id), (step.id, last.id), (mate.id, last.id)}
    assert dag.edges[mate.id, last.id]["gain"] == pytest.approx(math.log(700 / 400))
    assert dag.edges[step.id, last.id]["gain"] is None
    assert [(s.kernel_id, s.operator) for s in path(dag, last.id)] == [(mate.id, "draft"), (last.id, "crossover")]
    assert list(archive.lineage(draft.id).edges) == []
    assert "int n3" in archive.database.rows("SELECT diff FROM edges WHERE child = ?", last.id)[0][0]
    with pytest.raises(UsageError):
        archive.lineage("nope")


def test_a_gain_compares_verdicts_of_one_place_and_prefers_those_measured_here(archive: Archive, record: Recorder) -> None:
    parent, child = kernel(1), kernel(2)
    record(parent, verified(parent, 800))
    record(child, verified(child, 400), parents=(parent.id,))
    rules, versions = replace(environment(), protocol=0), environment(torch="1")
    with archive.database.write() as connection:
        store(connection, verified(child, 10, where=rules), TASK, imported=True)
        store(connection, verified(parent, 100, where=rules), TASK, imported=True)
        store(connection, verified(child, 20, where=versions), TASK, imported=False)
        store(connection, verified(child, 5), TASK, imported=True)
    dag = archive.lineage(child.id)
    assert dag.edges[parent.id, child.id]["gain"] == pytest.approx(math.log(2))
    assert list(dag) == [child.id, parent.id] and dag.nodes[parent.id]["speedup_low"] == pytest.approx(0.99 * 1000 / 800)
    archive.database.rows("DELETE FROM verdicts WHERE imported = 0")
    assert archive.lineage(child.id).edges[parent.id, child.id]["gain"] == pytest.approx(math.log(10))


def test_search_finds_by_words_and_says_why(archive: Archive, record: Recorder) -> None:
    norm = make_task("LayerNorm_wide", "class Model: layer_norm over 4096 columns")
    archive.add_task(norm)
    a = make(kernel_text(strategy="Welford statistics, then one pass."))
    b = kernel(2)
    Recorder(archive, archive.start_run(Started(norm.id, DEVICE, RunSettings("cpp"), (), "task.py")), norm)(a, verified(a, 500, features=("avx2",)))
    record(b, verified(b, 300))
    (hit,) = archive.search("welford", Filters())
    assert hit.entry.kernel == a and hit.why == "welford in the strategy"
    (hit,) = archive.search("layer norms", Filters(verified=True))
    assert hit.entry.kernel == a and "layer, norms in the task's name" in hit.why
    assert archive.search("relu rows", Filters())[0].entry.kernel == b
    assert "avx2 in the compiled code" in archive.search("avx2", Filters())[0].why
    assert archive.search("welford", Filters(min_speedup=3.0)) == []
    for odd in ("", "!!!", '"', "a AND (", "NEAR(", "*", "strategy:welford", "日本"):
        archive.search(odd, Filters())


def test_stones_are_verified_unquarantined_apart_and_own_task_first(archive: Archive, record: Recorder) -> None:
    near = make_task("relu_cols", "def forward(self, v): return torch.relu(v)", (
        tensor("v", Role.INPUT, (8, 8)), tensor("out", Role.OUTPUT, (8, 8))))  # fmt: skip
    far = make_task("conv", "conv of images", (
        tensor("img", Role.INPUT, (1, 3, 8, 8), "float16"), tensor("out", Role.OUTPUT, (1, 3, 8, 8), "float16")))  # fmt: skip
    recorders = {}
    for task in (near, far):
        archive.add_task(task)
        recorders[task.id] = Recorder(archive, archive.start_run(Started(task.id, DEVICE, RunSettings("cpp"), (), "task.py")), task)
    own, wrong, bad = kernel(1), kernel(2), kernel(3)
    record(own, verified(own, 900))
    record(wrong, failed(wrong))
    record(bad, verified(bad, 10))
    archive.quarantine(bad.id, "cheats")
    twins = [kernel(n) for n in (10, 11, 12)]
    for k, time_us, features in zip(twins, (100, 110, 500), (("avx2",), ("avx2",), ("gather",)), strict=True):
        recorders[near.id](k, verified(k, time_us, features=features))
    distant = kernel(20)
    recorders[far.id](distant, verified(distant, 1))
    stones = archive.stones(TASK, "cpp")
    assert [s.kernel.id for s in stones] == [k.id for k in (own, twins[0], twins[2], twins[1], distant)]
    assert stones[1].task_name == "relu_cols" and stones[1].signature == near.signature
    assert archive.stones(TASK, "cuda") == () and len(archive.stones(TASK, "cpp", limit=2)) == 2
    assert archive.stone(bad.id, TASK.id) is None and archive.stone(wrong.id, TASK.id) is None
    assert archive.stone(own.id, TASK.id) == stones[0]


def test_check_finds_what_is_wrong_and_rebuilds_the_words(archive: Archive, record: Recorder) -> None:
    a, b = kernel(1), make(kernel_text(400, strategy="Welford."))
    record(a, verified(a, 400))
    record(b, verified(b, 300, features=("avx2",)), parents=(a.id,))
    assert archive.check() == []
    raw = archive.database._connection
    raw.execute("PRAGMA foreign_keys = OFF")
    raw.execute("DELETE FROM kernel_words")
    assert archive.search("welford", Filters()) == []
    assert archive.check() == [] and archive.search("welford avx2", Filters())
    raw.execute("UPDATE kernels SET text = text || 'int more;' WHERE id = ?", (a.id,))
    raw.execute("DELETE FROM tasks")
    raw.execute("UPDATE verdicts SET status = 'crashed'")
    problems = "\n".join(archive.check())
    assert f"kernel {a.id}: its text no longer matches its id" in problems
    assert "missing row of tasks" in problems and "disagree" in problems


def test_a_file_that_is_not_ours_is_refused_with_advice(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("this is not a database, and long enough to tell\n" * 100)
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    for file in (text, other, tmp_path):
        before = file.read_bytes() if file.is_file() else b""
        with pytest.raises(ArchiveError):
            Archive(file)
        assert not file.is_file() or file.read_bytes() == before
    with pytest.raises(ArchiveError, match="another program's"):
        Archive(other)
    with pytest.raises(ArchiveError, match="not a database; name another file, or go back to a copy"):
        Archive(text)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["other.db", "text"]


def test_migrations_are_applied_once_and_a_newer_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    with Archive(file) as archive:
        archive.add_task(TASK)
    newer = (*schema.MIGRATIONS, "ALTER TABLE tasks ADD COLUMN extra TEXT;\nUPDATE tasks SET extra = 'new'")
    connection = sqlite3.connect(file, isolation_level=None)
    connection.row_factory = sqlite3.Row
    schema.migrate(connection, str(file), newer)
    schema.migrate(connection, str(file), newer)
    assert connection.execute("SELECT extra FROM tasks").fetchone()["extra"] == "new"
    connection.close()
    with pytest.raises(ArchiveError, match=rf"schema version {len(newer)}, this evokernel knows {len(newer) - 1}.*update with"):
        Archive(file)


def test_a_file_of_version_1_is_brought_up_to_date(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    connection = sqlite3.connect(file, isolation_level=None)
    connection.row_factory = sqlite3.Row
    schema.migrate(connection, str(file), schema.MIGRATIONS[:1])
    k = kernel()
    connection.execute("INSERT INTO tasks VALUES (1, ?, ?, ?, 1.0)", (TASK.id, TASK.name, codec.dumps(TASK)))
    connection.execute("INSERT INTO kernels VALUES (1, ?, 'cpp', ?, '', 'user', '', '', NULL, 1.0)", (k.id, k.text))
    started = Logged(0.0, Started(TASK.id, DEVICE, RunSettings("cpp"), (StoneRef(k.id, TASK.id),), "task.py"))
    old = codec.dumps(started).replace(',"lessons":[]', "").replace(',"late":0.5', "")
    connection.execute("INSERT INTO runs VALUES (1, 'r', ?, 'cpp', NULL, NULL, NULL, 1.0, 1.0)", (TASK.id,))
    connection.execute("INSERT INTO events VALUES ('r', 0, 'Started', ?, 1.0)", (old,))
    connection.close()
    with Archive(file) as archive:
        assert archive.check() == [] and archive.find(k.id) == k and archive.task(TASK.id) == TASK
        assert archive.events("r") == [started] and archive.search("relu", Filters()) == []
        log = archive.acquire_run("r")
        assert Recorder(archive, log)(k, verified(k, 400)).placement is Placement.NEW_BEST
        assert archive.usefulness([k.id], "early") == {k.id: 0.5} and archive.lessons() == []


# Of each migration that was released: files were made by it, so a change is a further one.
RELEASED = ["0e860f73a801fcf4", "d52919f097d1c083", "d0cae91f353ff8c9", "5e5d9b75292e291c"]


def test_a_migration_that_was_released_is_never_changed() -> None:
    assert [hashlib.sha256(step.encode()).hexdigest()[:16] for step in schema.MIGRATIONS] == RELEASED


def test_a_file_made_while_version_2_was_another_becomes_like_all_others(archive: Archive, tmp_path: Path) -> None:
    file = tmp_path / "old.db"
    connection = sqlite3.connect(file, isolation_level=None)
    connection.row_factory = sqlite3.Row
    first, second, third = schema.MIGRATIONS[:3]
    second = second.replace(" AUTOINCREMENT", "").replace("UNIQUE (kind, item, model, part)", "UNIQUE (model, kind, item, part)")
    second = second.replace("CREATE INDEX vectors_by_view ON vectors(model, kind);\n", "")
    schema.migrate(connection, str(file), (first, second, third))
    connection.execute("INSERT INTO tasks VALUES (1, ?, 'old name', ?, 1.0)", (TASK.id, codec.dumps(TASK)))
    connection.execute("INSERT INTO vectors VALUES (1, 'm', 'task', 1, 0, x'00000000')")
    connection.close()
    made = "SELECT name, sql FROM sqlite_master ORDER BY name"
    with Archive(file) as old:
        assert [tuple(r) for r in old.database.rows(made)] == [tuple(r) for r in archive.database.rows(made)]
        assert old.check() == [] and old.fill().complete and old.task(TASK.id).name == TASK.name
        assert archive.merge(file).tasks == 0
        old.database.rows("DROP INDEX vectors_by_view")
        old.database.rows("CREATE INDEX vectors_by_view ON vectors(kind)")
        assert old.check() == ["the index vectors_by_view is not the one that this version makes"]


def test_a_task_whose_file_was_renamed_has_its_new_name_everywhere(archive: Archive) -> None:
    archive.add_kernel(kernel(), Origin("user"))
    archive.rejudged(verified(kernel(), 500), TASK)
    assert archive.add_task(replace(TASK, name="fresh", path="fresh.py")) is Placement.DUPLICATE
    assert archive.task_names() == {TASK.id: "fresh"} and archive.find_tasks("fresh") == [TASK.id]
    assert archive.search("fresh", Filters()) and not archive.search(TASK.name.partition("_")[2], Filters(op=TASK.name)) and archive.check() == []


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("UPDATE events SET kind = 'X' WHERE number = 1", "number 1 of its events"), ("UPDATE builds SET code_hash = ''", "code hash"),
        ("UPDATE runs SET best_fitness = 99", "best fitness"), ("UPDATE runs SET best_fitness = NULL", "best fitness"),
        ("UPDATE attempts SET placement = 'new_best' WHERE number = 1", "number 1 of its attempts"),
        ("UPDATE attempts SET status = 'x'", "number 0 of its attempts"),
        ("UPDATE tasks SET name = 'other'", "another name"), ("UPDATE runs SET holder = 'x'", "lease cannot be read"),
        ("INSERT INTO lessons VALUES (9, 'x', 'win', 'cpp', '{task}', 't', 1.5, 0, 1, 1, '')", "lesson 9"),
        ("INSERT INTO lessons VALUES (9, 'x', 'win', 'cpp', '{task}', 't', -1.0, 1, 1, 1, '')", "lesson 9"),
    ],
)  # fmt: skip
def test_a_column_that_does_not_say_what_its_record_does_is_found_and_mended(archive: Archive, record: Recorder, damage: str, problem: str) -> None:
    a, b = kernel(1), kernel(2)
    record(a, verified(a, 400, code="one"))
    record(b, verified(b, 500, code="two"))
    record.log.release()
    rows = "SELECT e.kind, b.code_hash, r.best_fitness, r.holder, a.placement, a.status, t.name FROM events e, builds b, runs r, attempts a, tasks t"
    before = [tuple(r) for r in archive.database.rows(rows)]
    archive.lessons()
    assert archive.check() == []
    archive.database.rows(damage.format(task=TASK.id))
    assert problem in "; ".join(archive.check())
    if "lease" in problem or "lesson" in problem:
        with pytest.raises(ArchiveError, match="check --repair"):
            archive.runs() if "lease" in problem else archive.lessons()
    assert all(": repaired" in said for said in archive.check(repair=True)) and archive.check() == []
    assert [tuple(r) for r in archive.database.rows(rows)] == before and archive.lessons() == []


def test_an_attempt_that_is_gone_is_named(archive: Archive, record: Recorder) -> None:
    record(kernel(1), verified(kernel(1), 400))
    archive.database.rows("DELETE FROM attempts")
    assert archive.check() == [f"run {record.log.run_id}: number 0 of its attempts is not what its log says"]


def test_a_failing_migration_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    Archive(file).close()
    connection = sqlite3.connect(file, isolation_level=None)
    with pytest.raises(sqlite3.Error):
        schema.migrate(connection, str(file), (*schema.MIGRATIONS, "CREATE TABLE fresh (x);\nNONSENSE"))
    connection.close()
    with Archive(file) as archive:
        assert not archive.database.rows("SELECT 1 FROM sqlite_master WHERE name = 'fresh'")


def test_the_store_imports_nothing_heavy() -> None:
    heavy = "import sys, evokernel.archive.store; print([m for m in ('torch', 'networkx', 'faiss', 'numpy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True).stdout == "[]\n"


_WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from evokernel.archive.store import Archive
from evokernel.archive.verdicts import Origin
from tests.search.fake_judge import kernel_text, make
with Archive(sys.argv[1]) as archive:
    for n in range(int(sys.argv[3])):
        kernel = make(kernel_text(extra=f"int {{sys.argv[2]}}{{n}};"))
        archive.add_kernel(kernel, Origin("user"))
        print(kernel.id, flush=True)
"""


def _writer(file: Path, name: str, count: int) -> subprocess.Popen[str]:
    root = str(Path(__file__).parents[2])
    return subprocess.Popen([sys.executable, "-c", _WRITER.format(root=root), str(file), name, str(count)], stdout=subprocess.PIPE, text=True)


def test_two_processes_create_and_fill_one_archive_at_once(tmp_path: Path) -> None:
    writers = [_writer(tmp_path / "new" / "a.db", name, 150) for name in "ab"]
    ids = [line for w in writers for line in w.communicate()[0].split()]
    assert [w.returncode for w in writers] == [0, 0] and len(set(ids)) == 300
    with Archive(tmp_path / "new" / "a.db") as archive:
        assert archive.stats().kernels == 300 and archive.check() == []


@pytest.mark.parametrize("seed", range(3))
def test_kill_9_loses_nothing_that_was_committed(tmp_path: Path, seed: int) -> None:
    writer = _writer(tmp_path / "a.db", "k", 100_000)
    told = [writer.stdout.readline().strip() for _ in range(random.Random(seed).randrange(1, 80))]
    os.kill(writer.pid, signal.SIGKILL)
    told += writer.communicate()[0].split()[:-1]
    with Archive(tmp_path / "a.db") as archive:
        assert all(archive.find(i) for i in told) and archive.check() == []
