"""Kernels from elsewhere. The rows in the layout of the published AI CUDA Engineer Archive are made up."""

import re
from dataclasses import replace
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from evokernel.archive.search import Filters
from evokernel.archive.shipped import MANIFEST
from evokernel.archive.store import Archive
from evokernel.archive.verdicts import Origin
from evokernel.cli import main
from evokernel.codec import dumps
from evokernel.errors import ArchiveError, UsageError
from evokernel.exports.columns import PUBLISHED
from evokernel.exports.dataset import write_dataset
from evokernel.exports.folder import write_folder
from evokernel.exports.imports import import_path
from evokernel.exports.module import verified as verified_for
from evokernel.exports.selection import Selection
from tests.exports.test_dataset import TASK, add, task_of
from tests.search.fake_judge import environment, failed, kernel_text, make, verified

EXTENSION = "#include <torch/extension.h>\n__global__ void twice(float* x) {{ x[threadIdx.x] *= {n}; }}\nPYBIND11_MODULE(X, m) {{}}\n"


@pytest.fixture
def archive(tmp_path: Path):
    with Archive(tmp_path / "a.db") as opened:
        yield opened


def published(file: Path, *rows: dict) -> Path:
    full = []
    for n, row in enumerate(rows):
        base = {"Op_Name": "36_RMSNorm_", "Level_ID": 1, "Task_ID": 36, "Kernel_Name": f"rms_warp_{n}", "CUDA_Runtime": 0.27}
        full.append({**dict.fromkeys(PUBLISHED), **base, "CUDA_Speedup_Native": 1.97, "CUDA_Code": EXTENSION.format(n=n), "Correct": True,
                     "__index_level_0__": n, **row})  # fmt: skip
    file.parent.mkdir(parents=True, exist_ok=True)
    schema = pyarrow.schema([(name, pyarrow.type_for_alias(kind)) for name, kind in PUBLISHED.items()])
    parquet.write_table(pyarrow.Table.from_pylist(full, schema=schema), file)
    return file


def test_published_kernels_are_found_and_never_seed(archive: Archive, tmp_path: Path) -> None:
    published(tmp_path / "ds" / "level_1.parquet", {}, {"Correct": False}, {"CUDA_Code": None}, {"CUDA_Code": "x" * 5_000_000}, {"Op_Name": "a\n#b"})
    done = import_path(archive, tmp_path / "ds", "CC-BY-4.0")
    assert (done.added, done.left_out, done.unlicensed) == (2, 1, 0)
    assert ["row 2 (rms_warp_2)" in done.refused[0], "CUDA_Code is missing" in done.refused[0], "over" in done.refused[1]] == [True] * 3
    hit = archive.search("rmsnorm warp", Filters(target="cuda"))[0]
    assert hit.entry.origin == Origin("import", "CC-BY-4.0", "ds: level 1 task 36 rms_warp_0") and hit.entry.verdict is None
    assert "torch extension" in (hit.entry.quarantined or "") and "1.97x" in hit.entry.kernel.text and "not verified" in hit.entry.kernel.text
    assert archive.stones(TASK, "cuda") == () and archive.check() == []
    again = import_path(archive, tmp_path / "ds", "CC-BY-4.0")
    assert (again.added, again.known) == (0, 2)


def test_correct_is_a_truth_value_and_names_are_texts(archive: Archive, tmp_path: Path) -> None:
    table = parquet.read_table(published(tmp_path / "x.parquet", {}, {}, {}))
    for values, added, refused in ((["False", "no", "true"], 0, 3), ([0, 1, 2], 1, 1), ([None, True, False], 1, 0)):
        changed = table.set_column(table.schema.get_field_index("Correct"), "Correct", pyarrow.array(values))
        parquet.write_table(changed, tmp_path / "y.parquet")
        with Archive(tmp_path / f"{added}{refused}.db") as fresh:
            done = import_path(fresh, tmp_path / "y.parquet")
        assert (done.added, len(done.refused)) == (added, refused) and all("column Correct holds" in r for r in done.refused)
    parquet.write_table(table.drop_columns(["Kernel_Name"]).append_column("Kernel_Name", pyarrow.array([1, 2, 3])), tmp_path / "y.parquet")
    assert "column Kernel_Name holds 1, not a text" in import_path(archive, tmp_path / "y.parquet").refused[0]


def test_the_licence_comes_from_the_card_or_is_unknown(archive: Archive, tmp_path: Path) -> None:
    file = published(tmp_path / "ds" / "level_1.parquet", {})
    assert import_path(archive, file).unlicensed == 1
    for wrong in ("garbage !!", "MIT\n", "MIT AND", "(MIT", "MIT Apache-2.0"):
        with pytest.raises(UsageError, match="SPDX"):
            import_path(archive, file, wrong)
    published(file, {"CUDA_Code": "int x;"})
    (tmp_path / "ds" / "README.md").write_text("---\nlicense: cc-by-4.0\nx: 1\n---\n")
    assert import_path(archive, tmp_path / "ds").unlicensed == 0
    assert [e.origin.licence for e in archive.entries(Filters())] == ["cc-by-4.0", ""]
    published(file, {}, {"CUDA_Code": "int x;"})
    for licence in ("MIT AND (BSD-3-Clause OR GPL-2.0-only WITH Classpath-exception-2.0)", "MIT"):  # only what is not known is filled in
        assert import_path(archive, file, licence).known == 2
        assert sorted(e.origin.licence for e in archive.entries(Filters())) == [
            "MIT AND (BSD-3-Clause OR GPL-2.0-only WITH Classpath-exception-2.0)", "cc-by-4.0"
        ]  # fmt: skip


def test_rows_that_are_not_what_they_say_are_refused_by_name(archive: Archive, tmp_path: Path) -> None:
    kernels = [make(kernel_text(n)) for n in range(14)]
    for n, kernel in enumerate(kernels):
        add(archive, kernel, failed(kernel) if n == 13 else verified(kernel, 5.0))
    write_dataset(archive, tmp_path / "ds", Selection())
    (file,) = (tmp_path / "ds").rglob("*.parquet")
    table = parquet.read_table(file)
    rows = table.to_pylist()
    changes = [
        ("kernel_file", rows[0]["kernel_file"] + "int more;", "its text has the id"), ("PyTorch_Code_Module", "other", "no longer matches its id"),
        ("verdict", rows[3]["verdict"], "of another kernel"), ("verdict", "{" * 100_000, "row 3"), ("task", None, "no task"),
        ("verdict", rows[5]["verdict"].replace("fake 1", "\\ud800"), "surrogates not allowed"),
        ("kernel_file", None, "column kernel_file is missing or empty"),
        ("verdict", '{"is":"Verdict","config":{}}', "Verdict lacks the field status, stage"),
        ("verdict", rows[8]["verdict"].replace('"mid":200.0', '"mid":-1.0'), "timing: modes: baselines: speedup: not the interval"),
        ("verdict", rows[9]["verdict"].replace('"high":202.0', '"high":1e308').replace("200.0", "1e307"), "not the interval of a ratio"),
        ("verdict", rows[10]["verdict"].replace('"median_us":5.0', '"median_us":Infinity'), "times above 0"),
        ("verdict", rows[11]["verdict"].replace('"score":"cold"', '"score":"hot"'), "no times of the mode 'hot'"),
    ]  # fmt: skip
    for row, (column, value, _) in zip(rows, changes, strict=False):
        row[column] = value
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema=table.schema), file)
    with Archive(tmp_path / "b.db") as second:
        done = import_path(second, tmp_path / "ds")
        assert done.added == 2 and len(done.refused) == 12
        for n, (_, _, reason) in enumerate(changes):
            assert f"row {n} ({kernels[n].id})" in done.refused[n] and reason in done.refused[n]


@pytest.mark.parametrize("how", ["dataset", "folder"])
def test_of_two_verdicts_of_one_key_the_lower_stands_and_quarantine_is_kept(how: str, archive: Archive, tmp_path: Path) -> None:
    kernel = make(kernel_text(1))
    for time_us, name in ((500.0, "slower"), (5.0, "faster")):
        with Archive(tmp_path / f"{name}.db") as other:
            add(other, kernel, verified(kernel, time_us))
            add(other, make(kernel_text(2)), verified(make(kernel_text(2)), 9.0))
            write_folder(other, tmp_path / f"folder {name}", Selection(verified=True))
            if name == "faster":
                other.quarantine(kernel.id, "cheats")
            write_dataset(other, tmp_path / f"dataset {name}", Selection(everything=True))
    for name in ("faster", "slower", "faster"):
        known = import_path(archive, tmp_path / f"{how} {name}").known
    found = {e.kernel.id: e for e in archive.entries(Filters())}[kernel.id]
    assert known == 2 and found.verdict and found.verdict.time_us == 500.0
    assert found.quarantined == ("cheats" if how == "dataset" else None)


def test_a_folder_whose_manifest_lies_is_refused_by_line_and_an_unknown_licence_is_filled_in(archive: Archive, tmp_path: Path) -> None:
    for base in (1, 2, 3):
        add(archive, make(kernel_text(base)), verified(make(kernel_text(base)), 5.0), origin=Origin("user"))
    write_folder(archive, tmp_path / "folder", Selection(verified=True, everything=True))
    manifest = tmp_path / "folder" / MANIFEST
    lines = manifest.read_text().splitlines()
    lies = [lines[0].replace("200.0", "1e308"), lines[1].replace('"mode":"cold",', ""), lines[2]]
    manifest.write_text("\n".join([*lies, "{" * 100_000]))
    with Archive(tmp_path / "b.db") as second:
        done = import_path(second, tmp_path / "folder")
        assert done.added == 1 and ["not the interval" in done.refused[0], "ModeTiming lacks the field mode" in done.refused[1]] == [True] * 2
        assert [r.partition(" of")[0] for r in done.refused] == ["line 1", "line 2", "line 4"]
        assert import_path(second, tmp_path / "folder", "MIT").known == 1
        assert [e.origin.licence for e in second.entries(Filters())] == ["MIT"]


def test_a_kernel_of_several_rows_counts_once_and_quarantine_comes_later_too(archive: Archive, tmp_path: Path) -> None:
    kernel = make(kernel_text(1))
    add(archive, kernel, verified(kernel, 500.0))
    add(archive, kernel, verified(kernel, 400.0, where=environment("Other")))
    write_dataset(archive, tmp_path / "ds", Selection())
    archive.quarantine(kernel.id, "cheats")
    write_dataset(archive, tmp_path / "bad", Selection(everything=True))
    with Archive(tmp_path / "b.db") as second:
        assert [(d.added, d.known) for d in (import_path(second, tmp_path / "ds") for _ in range(2))] == [(1, 0), (0, 1)]
        import_path(second, tmp_path / "bad")
        import_path(second, tmp_path / "ds")
        assert {e.quarantined for e in second.entries(Filters())} == {"cheats"}


def test_bytes_that_are_no_unicode_are_refused(archive: Archive, tmp_path: Path) -> None:
    file = published(tmp_path / "x.parquet", {"CUDA_Code": "int marker;"}, {})
    table = parquet.read_table(file)
    codes = pyarrow.array([b"int \xed\xa0\x80;", b"int y;"]).view(pyarrow.string())
    parquet.write_table(table.set_column(table.schema.get_field_index("CUDA_Code"), "CUDA_Code", codes), file)
    done = import_path(archive, file)
    assert done.added == 1 and done.refused == ("x.parquet, row 0: a text is not valid Unicode",)


def test_numbers_that_no_column_takes_are_refused_and_odd_names_exported(archive: Archive, tmp_path: Path) -> None:
    kernels = [make(kernel_text(n)) for n in range(5)]
    for kernel in kernels:
        add(archive, kernel, verified(kernel, 5.0))
    write_dataset(archive, tmp_path / "ds", Selection())
    (file,) = (tmp_path / "ds").rglob("*.parquet")
    table = parquet.read_table(file)
    rows = table.to_pylist()
    changes = [("verdict", '"protocol":', "protocol"), ("verdict", '"milestone":', "milestone"), ("verdict", '"calls":', "calls")]
    for row, (column, field, _) in zip(rows, changes, strict=False):
        row[column] = re.sub(rf"{field}-?\d+", f"{field}{1 << 70}", row[column])
    for row, name, path in ((rows[3], "n" * 5000, "level99999999999999999999/1_x.py"), (rows[4], "\u540d" * 200, "level3/99999999999999999999_x.py")):
        row["task"] = dumps(replace(TASK, name=name, path=path))
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema=table.schema), file)
    with Archive(tmp_path / "b.db") as second:
        done = import_path(second, file)
        for said, (_, _, field), kernel in zip(done.refused, changes, kernels, strict=False):
            assert f"({kernel.id})" in said and f"{field}: an integer does not fit in 64 bits" in said
        assert (done.added, len(done.refused)) == (2, 3) and second.check() == []
        write_dataset(second, tmp_path / "again", Selection(everything=True))
        write_folder(second, tmp_path / "folder", Selection(verified=True, everything=True))
    with Archive(tmp_path / "c.db") as third:
        assert import_path(third, tmp_path / "again").added == 2 and import_path(third, tmp_path / "folder").known == 2


@pytest.mark.parametrize("how", ["dataset", "folder"])
def test_texts_with_odd_ends_of_lines_come_back(how: str, archive: Archive, tmp_path: Path) -> None:
    odd = "a\u2028b\u2029c\x85d\x0ce\x1cf\rg"
    kernel, task = make(kernel_text(1)), task_of(f"# {odd}\npass")
    add(archive, kernel, replace(verified(kernel, 5.0), message=odd), task)
    write = write_folder if how == "folder" else write_dataset
    write(archive, tmp_path / "x", Selection(verified=True, everything=True))
    with Archive(tmp_path / "b.db") as second:
        done = import_path(second, tmp_path / "x")
        assert (done.added, done.refused) == (1, ()) and second.task(task.id).source == task.source
        assert [e.verdict.message for e in second.entries(Filters()) if e.verdict] == [odd]


def test_a_file_that_is_damaged_in_the_middle_is_named(archive: Archive, tmp_path: Path) -> None:
    file = published(tmp_path / "x.parquet", *({"CUDA_Code": f"int marker{n};" + "// x\n" * n} for n in range(300)))
    data = bytearray(file.read_bytes())
    data[40 : len(data) // 2] = bytes(len(data) // 2 - 40)
    file.write_bytes(data)
    with pytest.raises(ArchiveError, match=r"x\.parquet is damaged"):
        import_path(archive, file)


def test_what_cannot_be_imported_says_what_can(archive: Archive, tmp_path: Path) -> None:
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    parquet.write_table(pyarrow.table({"a": [1]}), tmp_path / "other.parquet")
    (tmp_path / "empty").mkdir()
    for path, kind, message in (
        (tmp_path / "broken.parquet", ArchiveError, "cannot be read"), (tmp_path / "other.parquet", UsageError, "neither of our dataset"),
        (tmp_path / "empty", UsageError, "neither manifest.jsonl"), (tmp_path / "gone", UsageError, "neither"),
        (tmp_path / "a.db", UsageError, "archive merge"),
    ):  # fmt: skip
        with pytest.raises(kind, match=message):
            import_path(archive, path)


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    published(tmp_path / "level_1.parquet", {})

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["evokernel", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out + printed.err

    code, said = run("archive", "import", "level_1.parquet", "--archive", "b.db")
    assert code == 0 and "1 kernels imported" in said and "--licence CC-BY-4.0" in said
    code, said = run("export", "dataset", "ds", "--archive", "b.db", "--target", "cuda", "--all", "--pairs", "--json")
    assert code == 0 and '"kernels/train"' in said and "no pairs" in said
    assert run("export", "dataset", "ds", "--archive", "b.db")[0] == 2
    assert "--push takes" in run("export", "dataset", "ds2", "--archive", "b.db", "--push", "")[1] and not (tmp_path / "ds2").exists()
    assert "SPDX" in run("export", "dataset", "ds2", "--archive", "b.db", "--licence", "garbage !!")[1]
    assert run("export", "folder", "fo", "--archive", "b.db", "--target", "cuda")[0] == 0 and (tmp_path / "fo" / "manifest.jsonl").exists()
    identity = next((tmp_path / "fo").glob("softmax/*.cu")).stem
    code, said = run("export", "kernelbench", identity, "new.py", "--archive", "b.db")
    assert code == 0 and "class ModelNew(Model)" in (tmp_path / "new.py").read_text(), said
    for name in ("my mod.txt", "my mod.py", "class.py"):
        assert "cannot be imported" in run("export", "module", identity, name, "--archive", "b.db")[1] and not (tmp_path / name).exists()
    with Archive(tmp_path / "b.db") as opened:
        assert verified_for(opened, identity, "softmax").task == verified_for(opened, identity, None).task
        with pytest.raises(UsageError, match="not verified for task soft"):
            verified_for(opened, identity, "soft")
