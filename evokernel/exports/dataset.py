"""`evokernel export dataset`: the archive as a Hugging Face dataset folder, which `datasets.load_dataset` reads without code.

The Arrow schema is written out, so no row can change it. The folder appears whole or not at all, and the same archive gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from ..archive.store import Archive
from ..errors import ArchiveError, UsageError
from .columns import DATASET, PAIRS, Columns, Row, Source, dataset_row, split_of
from .pairs import pairs
from .selection import Selection, left_out, new_folder, sources

_SHARD_BYTES = 256 << 20
_GROUP_ROWS = 64
_CARD = Path(__file__).with_name("card.md")
# Hugging Face's names of licences; a mix, or another one, is "other".
_LICENCES = {"Apache-2.0": "apache-2.0", "MIT": "mit", "BSD-3-Clause": "bsd-3-clause", "CC-BY-4.0": "cc-by-4.0", "CC0-1.0": "cc0-1.0"}
_PAIRS_TEXT = """## Pairs

The configuration `pairs` holds $number rows of two kernels of one task, one made from the other, measured on one device under the same protocol and
versions, whose 99 % intervals do not overlap: `slow`, `fast` and the `diff` from slow to fast. `gain_low`: the lower bound of the ratio.

"""


@dataclass(frozen=True)
class Written:
    """What an export wrote: rows by config and split ("kernels/train"), and how many kernels were left out, by the reason."""

    rows: dict[str, int]
    left_out: dict[str, int]


def write_dataset(archive: Archive, folder: Path, selection: Selection, *, with_pairs: bool = False, shard_bytes: int = _SHARD_BYTES) -> Written:
    """Write the dataset's folder.

    `shard_bytes`: how much a parquet file holds, before compression.

    Raises:
        UsageError: the folder holds something already, nothing is selected, or a text is not valid Unicode (the row is named).
    """
    with new_folder(folder) as new:
        found = sources(archive.database, selection)
        licences: set[str] = set()
        rows = write_tables(new, "kernels", DATASET, _numbered(found, licences), shard_bytes)
        if not rows:
            why = "; ".join(f"{n} kernels left out: {reason}" for reason, n in left_out(archive.database, selection).items())
            raise UsageError(f"no kernel to export; loosen --target and --device, or see --all ({why or 'the archive has none'})")
        if with_pairs:
            rows |= write_tables(new, "pairs", PAIRS, pairs(archive.database, selection), shard_bytes)
        written = Written(rows, left_out(archive.database, selection))
        (new / "README.md").write_text(_card(folder.name, written, licences), encoding="utf-8")
    return written


def check_name(repo: str) -> None:
    """Raises:
    UsageError: no dataset of the Hub can have this name.
    """
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(repo)
    except ValueError as error:
        raise UsageError(f"--push takes the name of a dataset, such as OWNER/NAME, not {repo!r}: {error}") from error


def push(folder: Path, repo: str) -> str:
    """Upload a written folder; the dataset's address. A repository that does not exist yet is made, a private one.

    Raises:
        UsageError: huggingface_hub says no; the message says what it needs.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # of the httpx of its version: also where the Hub is out of reach

    api = HfApi()
    try:
        made = api.create_repo(repo, repo_type="dataset", private=True, exist_ok=True)
        api.upload_folder(repo_id=made.repo_id, repo_type="dataset", folder_path=folder, commit_message="Export of an evokernel archive")
    except (HTTPError, OSError, ValueError, RuntimeError) as error:  # RuntimeError: of a large file's upload
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UsageError(
            f"{folder} is written, but was not pushed to {repo}: {reason}; go online, log in with `hf auth login` (or set HF_TOKEN to a token "
            f"that may write), then `hf upload {repo} {folder} --repo-type dataset`"
        ) from error
    return str(made)


def write_tables(folder: Path, config: str, columns: Columns, rows: Iterable[tuple[str, Row]], shard_bytes: int) -> dict[str, int]:
    """Write rows, each with its split, as parquet files; how many there are by "config/split".

    Raises:
        UsageError: a text is not valid Unicode.
    """
    made: dict[str, _Split] = {}
    for split, row in rows:
        if split not in made:
            made[split] = _Split(folder / "data" / config, split, columns, shard_bytes)
        made[split].add(row)
    return {f"{config}/{name}": made[name].close() for name in sorted(made)}


class _Split:
    """One split's parquet files, which get their names at the end, when their number is known."""

    def __init__(self, folder: Path, name: str, columns: Columns, shard_bytes: int) -> None:
        import pyarrow

        types = {name: pyarrow.type_for_alias(t) for name, t in columns.items() if t != "list"}
        self._schema = pyarrow.schema([(name, types.get(name, pyarrow.list_(pyarrow.string()))) for name in columns])
        self._folder, self._name, self._shard_bytes = folder, name, shard_bytes
        self._waiting: list[Row] = []
        self._parts: list[Path] = []
        self._writer: Any = None
        self._size_bytes = self._rows = 0
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, row: Row) -> None:
        self._waiting.append(row)
        if len(self._waiting) == _GROUP_ROWS:
            self._flush()

    def close(self) -> int:
        """Finish the files; how many rows they hold."""
        self._flush()
        self._end_part()
        for number, part in enumerate(self._parts):
            part.rename(self._folder / f"{self._name}-{number:05d}-of-{len(self._parts):05d}.parquet")
        return self._rows

    def _flush(self) -> None:
        import pyarrow
        from pyarrow import parquet

        if not self._waiting:
            return
        try:
            batch = pyarrow.RecordBatch.from_pylist(self._waiting, schema=self._schema)
        except UnicodeEncodeError:
            raise UsageError(_surrogates(self._waiting)) from None
        if self._writer is None:
            self._parts.append(self._folder / f"{self._name}-{len(self._parts)}.part")
            self._writer = parquet.ParquetWriter(self._parts[-1], self._schema, compression="zstd")
        self._writer.write_batch(batch)
        self._rows += batch.num_rows
        self._size_bytes += batch.nbytes
        self._waiting = []
        if self._size_bytes > self._shard_bytes:
            self._end_part()

    def _end_part(self) -> None:
        if self._writer:
            self._writer.close()
        self._writer, self._size_bytes = None, 0


def _numbered(found: Iterator[Source], licences: set[str]) -> Iterator[tuple[str, Row]]:
    for number, source in enumerate(found):
        licences.add(source.licence)
        yield split_of(source.task), dataset_row(source, number)


def _surrogates(rows: list[Row]) -> str:
    for row in rows:
        for column, value in row.items():
            if any(isinstance(v, str) and any("\ud800" <= c <= "\udfff" for c in v) for v in (value if isinstance(value, list) else [value])):
                named = row.get("kernel_id") or row.get("fast_id")
                return f"kernel {named}: column {column} holds half of a surrogate pair, which is no Unicode; nothing was written"
    raise ArchiveError("a text is not valid Unicode, but no row holds it")


def _card(name: str, written: Written, licences: set[str]) -> str:
    configs, features = [], []
    for config, columns in (("kernels", DATASET), ("pairs", PAIRS)):
        splits = [key.partition("/")[2] for key in written.rows if key.startswith(f"{config}/")]
        if not splits:
            continue
        configs += [f"- config_name: {config}", *(["  default: true"] if config == "kernels" else []), "  data_files:"]
        configs += [line for split in splits for line in (f"  - split: {split}", f"    path: data/{config}/{split}-*.parquet")]
        features += [f"- config_name: {config}", "  features:"]
        features += [f"  - name: {column}\n    {'list: string' if t == 'list' else f'dtype: {t}'}" for column, t in columns.items()]
    number = sum(n for key, n in written.rows.items() if key.startswith("pairs/"))
    out = "; ".join(f"{n} kernels: {reason}" for reason, n in written.left_out.items())
    return Template(_CARD.read_text(encoding="utf-8")).substitute(
        name=name, licence=_LICENCES.get(next(iter(licences)), "other") if len(licences) == 1 else "other",
        configs="\n".join(configs), features="\n".join(features), kernels=sum(written.rows.values()) - number,
        pairs=Template(_PAIRS_TEXT).substitute(number=number) if number else "", left_out=f"Left out: {out}." if out else "",
    )  # fmt: skip
