"""The dataset folder, as `datasets.load_dataset` and `archive import` read it."""

import hashlib
import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from evokernel.archive.search import Filters
from evokernel.archive.shipped import import_shipped
from evokernel.archive.store import Archive
from evokernel.archive.verdicts import Origin, insert_edges, insert_kernel, insert_task, store
from evokernel.codec import dumps
from evokernel.errors import UsageError
from evokernel.exports.columns import DATASET, OURS, PAIRS, PUBLISHED
from evokernel.exports.dataset import push, write_dataset, write_tables
from evokernel.exports.folder import write_folder
from evokernel.exports.imports import import_path
from evokernel.exports.selection import Selection
from evokernel.records import ErrorRow, Kernel, Task, Verdict, digest
from tests.exports.hub_double import Hub
from tests.search.fake_judge import environment, failed, kernel_text, make, make_task, verified

SHIPPED = Path(__file__).parents[2] / "archive"
NONE = Origin("user")
MIT = Origin("user", "MIT")


def task_of(source: str, path: str = "/somewhere/relu_rows.py") -> Task:
    made = replace(make_task(source=source), path=path)
    return replace(made, id=digest(made.source, dumps(made.options), dumps(made.variants)))


TASK = task_of("def forward(self, x): return torch.relu(x)")


@pytest.fixture
def archive(tmp_path: Path):
    with Archive(tmp_path / "a.db") as opened:
        yield opened


def add(archive: Archive, kernel: Kernel, verdict: Verdict, task: Task = TASK, origin: Origin = MIT, parents: tuple[str, ...] = ()) -> None:
    with archive.database.write() as connection:
        insert_task(connection, task)
        if insert_kernel(connection, kernel, origin):
            insert_edges(connection, kernel, parents, None)
        store(connection, verdict, task, imported=False)


def loaded(folder: Path, config: str, split: str, **options):
    datasets = pytest.importorskip("datasets")
    cache = {} if options else {"cache_dir": str(folder.parent / "cache")}
    return datasets.load_dataset(str(folder), config, split=split, **cache, **options)


def everything(archive: Archive) -> list[tuple]:
    """All that an import must bring back, without where it was measured and where it came from."""
    rows = archive.database.rows(
        "SELECT k.id, k.target, k.text, k.strategy, k.licence, k.quarantined, v.task_id, v.record, b.code_hash FROM kernels k "
        "LEFT JOIN builds b ON b.kernel_id = k.id LEFT JOIN verdicts v ON v.build_id = b.id ORDER BY k.id, v.record"
    )
    tasks = archive.database.rows("SELECT id, name FROM tasks ORDER BY id")
    edges = archive.database.rows("SELECT child, parent, diff FROM edges ORDER BY child, parent")
    return [tuple(row) for row in (*rows, *tasks, *edges)]


def test_all_shipped_kernels_round_trip(archive: Archive, tmp_path: Path) -> None:
    import_shipped(archive, SHIPPED)
    written = write_dataset(archive, tmp_path / "ds", Selection())
    total = archive.stats().kernels
    assert written.rows == {"kernels/train": total} and not written.left_out and total > 10
    rows = loaded(tmp_path / "ds", "kernels", "train")
    assert rows.column_names == list(DATASET) and rows.column_names[:19] == list(PUBLISHED)
    streamed = list(loaded(tmp_path / "ds", "kernels", "train", streaming=True))
    assert streamed == list(rows)
    with Archive(tmp_path / "b.db") as second:
        assert import_path(second, tmp_path / "ds").added == total
        assert everything(second) == everything(archive)
        assert import_path(second, tmp_path / "ds").added == 0
        assert second.check() == [] and second.best(rows[0]["task_id"], rows[0]["target"]) is None
        assert {e.origin.kind for e in second.entries(Filters(), 999)} == {"import"}


def test_published_columns_say_what_they_say_elsewhere(archive: Archive, tmp_path: Path) -> None:
    import_shipped(archive, SHIPPED)
    write_dataset(archive, tmp_path / "ds", Selection(target="cuda"))
    row = loaded(tmp_path / "ds", "kernels", "train")[0]
    verdict = json.loads(row["verdict"])
    baselines = {b["name"]: b for b in verdict["timing"]["modes"][0]["baselines"]}
    assert row["CUDA_Runtime"] == pytest.approx(row["time_us"] / 1e3) and row["Correct"] is True and row["Error"] is None
    assert row["PyTorch_Native_Runtime"] == pytest.approx(baselines["eager"]["median_us"] / 1e3)
    assert row["CUDA_Speedup_Compile"] == baselines["compile"]["speedup"]["mid"]
    assert row["CUDA_Code"] == row["kernel_file"] and row["NCU_Profile"] is None and row["Kernel_Name"] in row["provenance"]


def test_other_targets_leave_the_columns_on_cuda_empty(archive: Archive, tmp_path: Path) -> None:
    add(archive, make(kernel_text()), verified(make(kernel_text()), 500.0))
    write_dataset(archive, tmp_path / "ds", Selection())
    row = loaded(tmp_path / "ds", "kernels", "train")[0]
    assert row["CUDA_Code"] is None and row["CUDA_Runtime"] is None and row["kernel_file"] and row["time_us"] == 500.0


def test_hostile_rows_round_trip(archive: Archive, tmp_path: Path) -> None:
    odd = make(kernel_text(1, strategy="Zeilen \u00e4\u00f6\u00fc, \u884c, \U0001f600 `| ---`"))
    rows = (ErrorRow("out", "own", 0, math.inf, math.nan, math.nan, 1.0, False), ErrorRow("out", "own", 0, 1.0, 1.0, math.inf, 1.0, False))
    add(archive, odd, replace(failed(odd, message="a\0b \u2028 ---\n"), errors=rows, seconds=math.nan))
    big = task_of("# " + "x" * 5_000_000)
    add(archive, make(kernel_text(2)), failed(make(kernel_text(2)), message="y" * 5_000_000), big)
    add(archive, make(kernel_text(3)), verified(make(kernel_text(3)), 5.0), task_of("level", "/a/KernelBench/level2/07_Conv.py"))
    archive.add_kernel(make(kernel_text(4)), MIT)
    archive.add_kernel(make(kernel_text(5)), NONE)
    archive.quarantine(make(kernel_text(3)).id, "why not")
    written = write_dataset(archive, tmp_path / "ds", Selection(everything=True))
    assert written.rows == {"kernels/level_2": 1, "kernels/train": 4}
    loaded_rows = {row["kernel_id"]: row for row in loaded(tmp_path / "ds", "kernels", "train")}
    assert math.isnan(loaded_rows[odd.id]["Max_Diff"]) and loaded_rows[odd.id]["Error"] == "a\0b \u2028 ---\n"
    unknown = loaded_rows[make(kernel_text(5)).id]
    assert [n for n, v in unknown.items() if v is not None and n in PUBLISHED] == ["Kernel_Name", "__index_level_0__"] and unknown["licence"] is None
    (levelled,) = loaded(tmp_path / "ds", "kernels", "level_2")
    assert (levelled["Level_ID"], levelled["Task_ID"], levelled["quarantined"]) == (2, 7, "why not")
    with Archive(tmp_path / "b.db") as second:
        assert import_path(second, tmp_path / "ds").refused == ()
        assert everything(second) == everything(archive)
        assert second.task(levelled["task_id"]).path == "level2/07_Conv.py"


def test_columns_without_any_value_keep_their_types(archive: Archive, tmp_path: Path) -> None:
    archive.add_kernel(make(kernel_text()), NONE)
    write_dataset(archive, tmp_path / "ds", Selection(everything=True))
    features = loaded(tmp_path / "ds", "kernels", "train").features
    assert {n: f.dtype for n, f in features.items() if OURS.get(n) != "list"} == {n: t for n, t in DATASET.items() if t != "list"}


def test_a_lone_surrogate_is_refused_with_its_row(archive: Archive, tmp_path: Path) -> None:
    row = dict.fromkeys(DATASET)
    rows = [("train", {**row, "kernel_id": "good"}), ("train", {**row, "kernel_id": "bad", "Error": "x\ud800"})]
    with pytest.raises(UsageError, match="kernel bad: column Error"):
        write_tables(tmp_path / "ds", "kernels", DATASET, rows, 1)


def test_the_same_archive_gives_the_same_bytes_in_files_of_limited_size(archive: Archive, tmp_path: Path) -> None:
    for i in range(150):
        add(archive, make(kernel_text(i)), verified(make(kernel_text(i)), 1.0 + i))
    digests = []
    for name in ("one", "two"):
        write_dataset(archive, tmp_path / name / "ds", Selection(), shard_bytes=1)
        files = sorted(p for p in (tmp_path / name / "ds").rglob("*") if p.is_file())
        digests.append({p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files})
    assert digests[0] == digests[1] and "train-00002-of-00003.parquet" in digests[0]
    assert [row["__index_level_0__"] for row in loaded(tmp_path / "one" / "ds", "kernels", "train")] == list(range(150))


def test_unknown_licences_and_quarantined_ones_stay_here(archive: Archive, tmp_path: Path) -> None:
    for base, origin in ((1, MIT), (2, NONE), (3, Origin("import")), (4, MIT)):
        add(archive, make(kernel_text(base)), verified(make(kernel_text(base)), 5.0), origin=origin)
    archive.quarantine(make(kernel_text(4)).id, "cheats")
    archive.quarantine(make(kernel_text(3)).id, "of unknown licence as well")
    archive.add_kernel(make(kernel_text(5)), NONE)
    archive.add_kernel(make(kernel_text(6)), MIT)
    written = write_dataset(archive, tmp_path / "ds", Selection())
    unknown, *others = written.left_out.items()
    assert written.rows == {"kernels/train": 1} and "licence" in unknown[0] and unknown[1] == 3
    assert others == [("quarantined", 1), ("never judged", 1)]  # each kernel once, by its first reason
    assert "1 kernels: quarantined" in (tmp_path / "ds" / "README.md").read_text()
    assert write_dataset(archive, tmp_path / "mine", Selection(licence="Apache-2.0")).rows == {"kernels/train": 2}
    assert {r["licence"] for r in loaded(tmp_path / "mine", "kernels", "train")} == {"MIT", "Apache-2.0"}
    assert write_folder(archive, tmp_path / "folder", Selection(verified=True))[0] == 1
    with pytest.raises(UsageError, match="not empty"):
        write_dataset(archive, tmp_path / "ds", Selection())
    with pytest.raises(UsageError, match="no kernel to export"):
        write_dataset(archive, tmp_path / "none", Selection(device="Nowhere"))
    assert not (tmp_path / "none").exists() and not list(tmp_path.glob(".*"))
    other = make(kernel_text(7))
    add(archive, other, verified(other, 5.0, where=environment("Other")), origin=NONE)
    there = write_dataset(archive, tmp_path / "there", Selection(device=environment().device))
    assert sum(there.left_out.values()) == 3  # neither those of other devices nor those of none
    with pytest.raises(UsageError, match="1 kernels left out: licence"):
        write_dataset(archive, tmp_path / "elsewhere", Selection(device="Other"))


def test_pairs_are_told_apart_by_measurement(archive: Archive, tmp_path: Path) -> None:
    slow, fast, same, worse = (make(kernel_text(base)) for base in (500, 250, 498, 900))
    add(archive, slow, verified(slow, 500.0))
    for kernel, time_us in ((fast, 250.0), (same, 498.0), (worse, 900.0)):
        add(archive, kernel, verified(kernel, time_us), parents=(slow.id,))
    elsewhere = make(kernel_text(100))
    add(archive, elsewhere, verified(elsewhere, 100.0, where=environment("Other")), parents=(slow.id,))
    written = write_dataset(archive, tmp_path / "ds", Selection(), with_pairs=True)
    assert written.rows["pairs/train"] == 2
    one, two = sorted(loaded(tmp_path / "ds", "pairs", "train"), key=lambda r: r["fast_time_us"])
    assert list(one) == list(PAIRS)
    assert (one["slow_id"], one["fast_id"], one["made_from_slow"]) == (slow.id, fast.id, True) and one["gain_low"] == pytest.approx(2 * 0.99 / 1.01)
    assert (two["slow_id"], two["fast_id"], two["made_from_slow"]) == (worse.id, slow.id, False)
    assert "-constexpr int BASE = 500;" in one["diff"].splitlines() and "+constexpr int BASE = 250;" in one["diff"].splitlines()
    assert loaded(tmp_path / "ds", "kernels", "train").num_rows == 5
    with pytest.raises(UsageError, match="only pairs"), Archive(tmp_path / "b.db") as second:
        import_path(second, tmp_path / "ds" / "data" / "pairs")


def test_lineage_comes_back_across_splits(archive: Archive, tmp_path: Path) -> None:
    parent, child = make(kernel_text(500)), make(kernel_text(250))
    add(archive, parent, verified(parent, 500.0))
    add(archive, child, verified(child, 250.0), task_of("other", "level1/1_A.py"), parents=(parent.id,))
    write_dataset(archive, tmp_path / "ds", Selection())
    with Archive(tmp_path / "b.db") as second:
        import_path(second, tmp_path / "ds")
        assert list(second.lineage(child.id).edges) == [(parent.id, child.id)] and second.check() == []


def test_a_folder_comes_back(archive: Archive, tmp_path: Path) -> None:
    parent, child = make(kernel_text(500)), make(kernel_text(250))
    add(archive, parent, verified(parent, 500.0))
    add(archive, child, verified(child, 250.0), parents=(parent.id,))
    add(archive, make(kernel_text(7)), failed(make(kernel_text(7))))
    assert write_folder(archive, tmp_path / "folder", Selection(verified=True)) == (2, {})
    with Archive(tmp_path / "b.db") as second:
        assert import_path(second, tmp_path / "folder").added == 2
        assert list(second.lineage(child.id).edges) == [(parent.id, child.id)]
        assert {e.origin.kind for e in second.entries(Filters())} == {"import"}


def test_a_push_that_cannot_be_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"was not pushed.*hf auth login"):
        push(tmp_path, "no such/name at all")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    with pytest.raises(UsageError, match=r"is written, but was not pushed to me/nope: .*refused.*go online"):
        push(tmp_path, "me/nope")


def pushed(hub: Hub, folder: Path, repo: str = "me/kernels", **settings: str) -> subprocess.CompletedProcess[str]:
    """`export dataset --push` as a process of its own: huggingface_hub takes its settings when it is imported."""
    with Archive(folder.parent / "a.db") as archive:
        add(archive, make(kernel_text()), verified(make(kernel_text()), 500.0))
    command = [sys.executable, "-c", "from evokernel.cli import main; main()", "export", "dataset", str(folder), "--push", repo, "--json"]
    settings = os.environ | {"HF_HOME": str(folder.parent / "hf")} | hub.settings | settings
    return subprocess.run([*command, "--archive", folder.parent / "a.db"], env=settings, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("repo", ["me/kernels", "kernels"])
def test_a_push_commits_the_folder_byte_for_byte(tmp_path: Path, repo: str) -> None:
    with Hub() as hub:
        done = pushed(hub, tmp_path / "ds", repo)
    assert done.returncode == 0, done.stderr
    ((asked,), written) = hub.created, {str(p.relative_to(tmp_path / "ds")): p.read_bytes() for p in (tmp_path / "ds").rglob("*") if p.is_file()}
    assert (asked["type"], asked["visibility"], asked["name"]) == ("dataset", "private", "kernels")
    assert hub.files == written and "README.md" in written and [*hub.objects.values()] == [v for n, v in written.items() if n != "README.md"] != []
    assert json.loads(done.stdout)["pushed"] == f"{hub.address}/datasets/me/kernels"


def test_a_refused_token_is_told_with_what_to_do(tmp_path: Path) -> None:
    with Hub() as hub:
        done = pushed(hub, tmp_path / "ds", HF_TOKEN="hf_wrong")
    assert done.returncode == 2 and "401" in done.stderr and "is written, but was not pushed to me/kernels" in done.stderr
    assert "hf auth login" in done.stderr and "hf upload me/kernels" in done.stderr and "Traceback" not in done.stderr
    assert not hub.created and not hub.files and (tmp_path / "ds" / "README.md").is_file()


def test_an_upload_that_breaks_off_is_told_and_commits_nothing(tmp_path: Path) -> None:
    with Hub(refuses_objects=True) as hub:
        done = pushed(hub, tmp_path / "ds")
    assert done.returncode == 2 and "was not pushed to me/kernels" in done.stderr and "Traceback" not in done.stderr
    assert hub.created and not hub.files and (tmp_path / "ds" / "README.md").is_file()
