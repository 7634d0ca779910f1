"""Searching: channels, filters, diversity, reasons, and the command."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from evokernel.archive import verdicts
from evokernel.archive.retrieval import Found, Row, by_kernel, by_task, by_words, fuse
from evokernel.archive.search import Filters
from evokernel.archive.shipped import import_shipped, shipped_root
from evokernel.archive.store import Archive
from evokernel.archive.verdicts import Origin
from evokernel.errors import ArchiveError
from evokernel.kernelfile import make_kernel
from tests.archive.test_vectors import WordModel, reformatted, renamed
from tests.search.fake_judge import environment, failed, kernel_text, make, make_task, verified

ROOT = Path(__file__).parents[2]
SOFTMAX, NORM = make_task("softmax_rows", "return torch.softmax(x, dim=-1)"), make_task("layer_norm", "return F.layer_norm(x, self.shape)")
RELU = make_task()


@pytest.fixture
def archive(tmp_path: Path):
    with Archive(tmp_path / "a.db") as opened:
        for task in (SOFTMAX, NORM, RELU):
            opened.add_task(task)
        yield opened


def judged(archive: Archive, task, strategy: str, time_us: float | None = 500, *, extra: str = "", **options):
    kernel = make(kernel_text(int(time_us or 1), strategy=strategy, extra=extra))
    archive.add_kernel(kernel, Origin("user"))
    with archive.database.write() as connection:
        verdict = verified(kernel, time_us, **options) if time_us else failed(kernel)
        verdicts.store(connection, verdict, task, imported=False)
    return kernel


def ids(hits) -> list[str]:
    return [hit.entry.kernel.id for hit in hits]


def test_words_of_strategy_and_task_count_and_the_faster_of_equals_is_first(archive: Archive) -> None:
    slow = judged(archive, SOFTMAX, "Online maximum.", 900)
    fast = judged(archive, SOFTMAX, "Online maximum.", 300, extra="int a; void g() { while (a) a--; }")
    other = judged(archive, NORM, "Online variance by Welford.", 400)
    assert ids(archive.search("online softmax", Filters())) == [fast.id, slow.id, other.id]
    assert ids(archive.search("welford", Filters())) == [other.id]
    assert archive.search("", Filters()) == archive.search("gemm", Filters()) == []


def test_words_that_most_kernels_hold_are_looked_for_where_others_find_too_little(archive: Archive) -> None:
    common = [judged(archive, RELU, "Rows.", 300, extra=f"int n{n};") for n in range(10)]
    rare = judged(archive, RELU, "One pass by Welford over parts, some more words in a long sentence on rows.", 500)
    assert ids(archive.search("welford rows", Filters()))[0] == rare.id and len(archive.search("welford rows", Filters())) == 11
    assert set(ids(archive.search("rows", Filters(), 11))) == {k.id for k in (*common, rare)}


def test_each_kernel_is_found_once_with_the_verdict_that_fits(archive: Archive) -> None:
    kernel = judged(archive, SOFTMAX, "Rows.", 500)
    with archive.database.write() as connection:
        verdicts.store(connection, verified(kernel, 100), NORM, imported=False)
        verdicts.store(connection, verified(kernel, 300, where=environment("GPU")), SOFTMAX, imported=False)
    (hit,) = archive.search("softmax", Filters())
    assert hit.entry.task_name == "softmax_rows" and hit.entry.verdict.time_us == 300
    (hit,) = archive.search("softmax", Filters(device="Test CPU"))
    assert hit.entry.verdict.time_us == 500
    assert archive.search("norm", Filters())[0].entry.task_name == "layer_norm"


def test_a_verdict_is_decoded_when_it_is_looked_at(archive: Archive) -> None:
    judged(archive, SOFTMAX, "Rows.", 500)
    (sound,), (other,) = archive.search("softmax", Filters()), archive.search("softmax", Filters())
    assert sound.entry.verdict.time_us == 500 and sound.entry == other.entry and f"{sound.entry.verdict!r}" in repr(other)
    with archive.database.write() as connection:
        connection.execute("UPDATE verdicts SET record = '{}'")
    (hit,) = archive.search("softmax", Filters())  # ranked by columns
    with pytest.raises(ArchiveError, match=r"stored verdict cannot be read.*archive check"):
        assert hit.entry.verdict


def test_what_is_wrong_with_the_text_model_comes_out_of_a_search(archive: Archive) -> None:
    class Broken(WordModel):
        def embed(self, texts):
            raise MemoryError("no room for a vector")

    judged(archive, SOFTMAX, "Rows.", 500)
    with pytest.raises(MemoryError, match="no room"):
        archive.search("softmax", Filters(), model=Broken())


def test_filters_leave_what_they_name_and_ask_deeper(archive: Archive) -> None:
    for n in range(300):
        judged(archive, RELU, "Softmax softmax softmax.", 500, extra=f"int n{n};")
    wanted = judged(archive, SOFTMAX, "A softmax among many other words of a rather long strategy about rows.", 900, features=("wgmma",))
    wrong = judged(archive, SOFTMAX, "Wrong softmax.", None)
    assert ids(archive.search("softmax", Filters(technique="wgmma"), 5)) == [wanted.id]
    assert set(ids(archive.search("softmax", Filters(op="softmax_rows"), 5))) == {wanted.id, wrong.id}
    assert ids(archive.search("softmax", Filters(op="softmax", verified=True), 5)) == [wanted.id]
    assert archive.search("softmax", Filters(target="cuda"), 5) == archive.search("softmax", Filters(op="!"), 5) == []
    assert len(archive.search("softmax", Filters(), 400)) == 302
    assert ids(archive.search("softmax", Filters(min_speedup=1.5, device="nowhere"))) == []


def test_meaning_finds_what_words_do_not_and_says_how_like_it_is(archive: Archive) -> None:
    class Knowing(WordModel):
        """Knows that a scan is a cumulative sum."""

        def embed(self, texts):
            return super().embed([text.replace("scan", "cumulative sum") for text in texts])

    summed = judged(archive, RELU, "Cumulative sum.")
    judged(archive, NORM, "Something else entirely.")
    model = Knowing()
    archive.fill(model)
    assert archive.search("scan", Filters()) == []
    first = archive.search("scan", Filters(), model=model)[0]
    assert first.entry.kernel.id == summed.id and "strategy text 0." in first.why


def test_a_kernel_file_finds_its_likes(archive: Archive) -> None:
    for file in sorted((ROOT / "archive").glob("*/*.c*")):
        archive.add_kernel(make_kernel(file.read_text(), "cuda" if file.suffix == ".cu" else "cpp"), Origin("user", source=file.name))
    archive.fill()
    text = (ROOT / "archive/softmax/online_two_reads.cpp").read_text()
    hits = archive.search(by_kernel(make_kernel(reformatted(renamed(text)), "cpp")), Filters(), 3)
    assert hits[0].entry.kernel.text == text and hits[0].why.startswith("same structure 1.00")
    assert "similar structure 0.9" in hits[1].why


def test_a_task_file_finds_kernels_of_its_likes(archive: Archive) -> None:
    judged(archive, NORM, "Rows.")
    wanted = judged(archive, SOFTMAX, "Rows.")
    question = by_task("my_softmax", "import torch\nclass Model(nn.Module):\n    def forward(self, x):\n        return torch.softmax(x, -1)\n")
    assert "torch" not in question.words and ids(archive.search(question, Filters()))[0] == wanted.id


def test_variants_of_one_kernel_give_way_to_another(archive: Archive) -> None:
    variants = [judged(archive, SOFTMAX, "Online softmax.", 300 + n, extra=f"int n{n};") for n in range(6)]
    other = judged(archive, SOFTMAX, "Softmax.", 900, extra="struct S { float a[4]; }; float g(S s) { return s.a[0] / s.a[1] - s.a[2]; }")
    without = ids(archive.search("online softmax", Filters()))
    archive.fill()
    assert without.index(other.id) == 6 and ids(archive.search("online softmax", Filters())).index(other.id) < 3
    like = ids(archive.search(by_kernel(variants[0]), Filters(), 6))
    assert set(like) == {v.id for v in variants}


def test_fusion_adds_reciprocal_ranks() -> None:
    rows = [Row(1, None, None, 0), Row(2, None, None, 2.0), Row(3, None, None, 1.0)]
    found = Found(kernel_words={1: 9.0, 2: 1.0}, kernel_text={2: 0.9, 3: 0.9})
    expected = [(2, 1 / 62 + 0.5 / 61), (1, 1 / 61), (3, 0.5 / 62)]
    assert [(r.kernel, round(s, 6)) for r, s in fuse(rows, found)] == [(k, round(s, 6)) for k, s in expected]


def test_a_kernel_without_a_verdict_is_found(archive: Archive) -> None:
    kernel = make(kernel_text(strategy="Butterfly shuffles."))
    archive.add_kernel(kernel, Origin("user"))
    (hit,) = archive.search("butterfly", Filters())
    assert hit.entry.kernel == kernel and hit.entry.verdict is None


def test_filler_words_are_left_out_of_questions() -> None:
    assert by_words("a softmax for the rows").words == ("softmax", "rows") and by_words("for the").words == ("for", "the")


def evokernel(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from evokernel.cli import main; main()", "archive", "search", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env={**os.environ, **environ})


def test_the_command_finds_by_words_by_kernel_and_by_task(tmp_path: Path) -> None:
    file = str(tmp_path / "a.db")
    with Archive(file) as archive:
        import_shipped(archive, shipped_root())
    common = ("--archive", file, "--json", "--limit", "3")
    words = json.loads(evokernel("online", "softmax", "--op", "softmax", "--target", "cpp", *common).stdout)["hits"]
    assert {h["entry"]["task_name"] for h in words} <= {"softmax", "attention"} and {h["entry"]["kernel"]["target"] for h in words} == {"cpp"}
    kernel = json.loads(evokernel(str(ROOT / "archive/cumsum/row_in_registers.cu"), *common).stdout)["hits"]
    assert len(kernel) == 3 and "structure" in kernel[0]["why"]
    task = json.loads(evokernel(str(ROOT / "experiments/tasks/rmsnorm.py"), "--device", "NVIDIA H200", *common).stdout)["hits"]
    assert task[0]["entry"]["task_name"] == "rmsnorm" and task[0]["entry"]["verdict"]["environment"]["device"] == "NVIDIA H200"
    wrong = evokernel("nothing.py", "--archive", file)
    assert wrong.returncode == 2 and "no task file" in wrong.stderr


def test_the_command_without_the_model_says_so_once(tmp_path: Path) -> None:
    code = "import importlib.util as u; f = u.find_spec; u.find_spec = lambda n, *a: None if n.startswith('gt_all') else f(n, *a); "
    command = [sys.executable, "-c", code + "from evokernel.cli import main; main()", "archive", "search", "softmax", "--archive"]
    with Archive(tmp_path / "a.db") as archive:
        archive.add_task(SOFTMAX)
    environ = {**os.environ, "EVOKERNEL_TEXT_MODEL": ""}
    done = subprocess.run([*command, str(tmp_path / "a.db")], capture_output=True, text=True, check=False, timeout=120, env=environ)
    assert done.returncode == 0 and done.stderr.count("words and structure alone") == 1 and "softmax" in done.stdout
