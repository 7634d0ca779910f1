import json
from dataclasses import replace
from pathlib import Path

import pytest

from evokernel.archive import shipped
from evokernel.archive.search import Filters
from evokernel.archive.shipped import MANIFEST, import_shipped, manifest_entry, write_manifest
from evokernel.archive.store import Archive
from evokernel.errors import ArchiveError
from tests.search.fake_judge import environment, failed, kernel_text, make, make_task, verified

TASK = make_task()


@pytest.fixture
def archive(tmp_path: Path):
    with Archive(tmp_path / "a.db") as opened:
        yield opened


def entry(root: Path, name: str, base: int, **changed):
    text = kernel_text(base)
    file = root / TASK.name / f"{name}.cpp"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return manifest_entry(root, file, TASK, verified(make(text), base), licence="Apache-2.0", **changed)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "seeds"
    first = entry(folder, "zz_first", 500)
    write_manifest(folder, [entry(folder, "aa_second", 300, parents=[first.kernel_id]), first])
    return folder


def test_seeds_are_imported_once_with_lineage_and_licence(archive: Archive, root: Path) -> None:
    done = import_shipped(archive, root)
    assert (done.added, done.refused) == (2, ())
    assert import_shipped(archive, root).added == 0
    fast, slow = archive.entries(Filters())
    assert fast.imported and fast.origin.kind == "shipped" and fast.origin.licence == "Apache-2.0"
    assert list(archive.lineage(fast.kernel.id).edges) == [(slow.kernel.id, fast.kernel.id)]
    assert [s.kernel.id for s in archive.stones(TASK, "cpp")] == [fast.kernel.id, slow.kernel.id]
    assert archive.check() == []


def test_imported_verdicts_never_count_as_measured_here(archive: Archive, root: Path) -> None:
    import_shipped(archive, root)
    kernel = archive.entries(Filters())[0].kernel
    assert archive.known(kernel.id, TASK.id, environment()) is None
    assert archive.best(TASK.id, "cpp") is None


def test_a_changed_manifest_imports_the_new_ones(archive: Archive, root: Path) -> None:
    import_shipped(archive, root)
    (root / MANIFEST).write_text((root / MANIFEST).read_text() + "")
    write_manifest(root, [entry(root, "zz_first", 500), entry(root, "new", 200)])
    assert import_shipped(archive, root).added == 1


def test_the_manifest_is_reproducible_and_names_no_folder_of_this_machine(root: Path, tmp_path: Path) -> None:
    before = (root / MANIFEST).read_bytes()
    first = entry(root, "zz_first", 500)
    write_manifest(root, [first, entry(root, "aa_second", 300, parents=[first.kernel_id])])
    assert (root / MANIFEST).read_bytes() == before
    assert b"/somewhere" not in before and str(tmp_path).encode() not in before
    assert [json.loads(line)["file"] for line in before.splitlines()] == ["relu_rows/zz_first.cpp", "relu_rows/aa_second.cpp"]


def test_a_row_that_is_not_what_it_says_is_refused_by_name_and_the_rest_imported(archive: Archive, root: Path) -> None:
    file = root / TASK.name / "zz_first.cpp"
    good = entry(root, "good", 250)
    write_manifest(root, [entry(root, "zz_first", 500), good])
    file.write_text(file.read_text() + "int more;\n")
    with (root / MANIFEST).open("a") as manifest:
        manifest.write("not json\n")
        for wrong in (
            replace(good, file="../outside.cpp"), replace(good, file="gone.cpp"), replace(good, parents=("unknown",)),
            replace(good, task_hash="0" * 16),
        ):  # fmt: skip
            manifest.write(shipped.codec.dumps(wrong) + "\n")
    done = import_shipped(archive, root)
    assert done.added == 1
    reasons = "\n".join(done.refused)
    assert "zz_first.cpp: the text no longer matches its id" in reasons and "line 3" in reasons and len(done.refused) == 6
    for part in ("outside.cpp: lies outside", "gone.cpp: cannot be read", "parent unknown", "no longer matches its hash"):
        assert part in reasons
    assert archive.stats().kernels == 1


def test_only_verified_kernels_get_an_entry(root: Path) -> None:
    file = root / TASK.name / "zz_first.cpp"
    kernel = make(file.read_text())
    with pytest.raises(ArchiveError, match="only verified"):
        manifest_entry(root, file, TASK, failed(kernel), licence="MIT")
    with pytest.raises(ArchiveError, match="judge the file again"):
        manifest_entry(root, file, TASK, verified(make(kernel_text(1)), 1.0), licence="MIT")


def test_a_manifest_with_parents_in_a_circle_is_refused(root: Path) -> None:
    one, two = entry(root, "one", 1), entry(root, "two", 2)
    with pytest.raises(ArchiveError, match="not all earlier kernels"):
        write_manifest(root, [replace(one, parents=(two.kernel_id,)), replace(two, parents=(one.kernel_id,))])


def test_a_folder_without_manifest_is_an_error(archive: Archive, tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="cannot read"):
        import_shipped(archive, tmp_path)
