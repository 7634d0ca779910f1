"""FAISS indexes of the archive's vectors, in memory and as files beside the archive that can be made again at any time.

One index a model and kind. A file says in its first line what it was made from and how its bytes hash; a file that does not fit the rows, is damaged
or is somebody else's is made anew. Files are replaced whole, so that several processes may write them at once. Up to EXACT vectors the inner product
with each is computed; above, FAISS's IVF looks at a part of them (experiments/archive_scale.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ArchiveError
from ..records import digest
from .database import Database
from .vectors import alone, index_folder

EXACT = 200_000
_LISTS, _PROBES = 1024, 16
_TRAINING = 50_000  # vectors from which IVF learns its lists
_BATCH = 20_000
_STALE = 0.02  # the share of vectors that may be missing from a file before it is written again
_FORM = 1


class Index:
    """The vectors of one model and kind (`dimension` numbers each), searched by inner product. Follows the archive as rows come."""

    def __init__(self, database: Database, model: str, kind: str, dimension: int) -> None:
        self._database, self._model, self._kind, self._dimension = database, model, kind, dimension
        self.file = index_folder(database.path) / f"{digest(model, kind)}.faiss"
        self._last = self._in_file = 0
        self._index = self._load()
        if self._index is None:
            self._index = self._empty(self._rows())
        self._follow()

    def search(self, query: npt.NDArray[np.float32], count: int) -> tuple[dict[int, float], bool]:
        """The items with the `count` most similar vectors and their similarity (of several parts the best), and whether these are all there are."""
        import faiss

        self._follow()
        total = len(self)
        if not total:
            return {}, True
        if hasattr(self._index, "nprobe"):  # so that the lists looked at hold some times what is asked for, and in the end all there is
            self._index.nprobe = min(self._index.nlist, max(_PROBES, 4 * count * self._index.nlist // total))
        threads = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(1)  # of one question each thread would wait for the others longer than it works
        scores, seqs = self._index.search(query.reshape(1, -1).astype(np.float32), min(count, total))
        faiss.omp_set_num_threads(threads)
        by_seq = {int(seq): float(score) for score, seq in zip(scores[0], seqs[0], strict=True) if seq >= 0}
        found: dict[int, float] = {}
        # A row that was deleted since is not found here.
        for row in self._database.rows("SELECT seq, item FROM vectors WHERE seq IN (SELECT value FROM json_each(?))", json.dumps([*by_seq])):
            found[row["item"]] = max(found.get(row["item"], -2.0), by_seq[row["seq"]])
        return found, count >= total

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def write(self) -> None:
        """Replace the file, unless it holds (nearly) all. A folder that cannot be written costs only the time to make the index again."""
        import faiss

        if len(self) - self._in_file <= _STALE * len(self):
            return
        with contextlib.suppress(OSError), alone(self.file.with_suffix(".lock")) as writer:
            if not writer:
                return
            data = faiss.serialize_index(self._index).tobytes()
            head = {**self._made_from(), "count": len(self), "last": self._last, "hash": _hash(data)}
            fresh = self.file.with_suffix(".new")
            with fresh.open("wb") as handle:
                handle.write(json.dumps(head).encode() + b"\n")
                handle.write(data)
            fresh.replace(self.file)
            self._in_file = len(self)

    def _made_from(self) -> dict[str, object]:
        import faiss

        return {"evokernel index": _FORM, "faiss": faiss.__version__, "model": self._model, "kind": self._kind, "dimension": self._dimension}

    def _rows(self, last: int = 1 << 62) -> int:
        query = "SELECT count(*) FROM vectors WHERE model = ? AND kind = ? AND seq <= ?"
        return int(self._database.rows(query, self._model, self._kind, last)[0][0])

    def _load(self) -> Any:
        """The index of the file, or None where there is none that fits the rows."""
        import faiss

        try:
            with self.file.open("rb") as handle:
                head = json.loads(handle.readline(1 << 16))
                data = handle.read()
            count, last = head.pop("count"), head.pop("last")
            if head.pop("hash") != _hash(data) or head != self._made_from() or self._rows(last) != count:
                return None
            index = faiss.deserialize_index(np.frombuffer(data, np.uint8))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError):  # not ours, or damaged
            return None
        if index.ntotal != count or index.d != self._dimension or _wants_lists(self._rows()) != hasattr(index, "nprobe"):
            return None
        self._last, self._in_file = last, count
        return index

    def _empty(self, expected: int) -> Any:
        import faiss

        if not _wants_lists(expected):
            return faiss.IndexIDMap(faiss.IndexFlatIP(self._dimension))
        index = faiss.IndexIVFFlat(faiss.IndexFlatIP(self._dimension), self._dimension, _LISTS, faiss.METRIC_INNER_PRODUCT)
        step = max(1, expected // _TRAINING)
        rows = self._database.rows(
            "SELECT vector FROM vectors WHERE model = ? AND kind = ? AND seq % ? = 0 LIMIT ?", self._model, self._kind, step, _TRAINING
        )
        index.train(self._matrix([row["vector"] for row in rows]))
        return index

    def _follow(self) -> None:
        """Take in the rows that have come since."""
        last = self._database.rows("SELECT max(seq) FROM vectors WHERE model = ? AND kind = ?", self._model, self._kind)[0][0] or 0
        while self._last < last:
            rows = self._database.rows(
                "SELECT seq, vector FROM vectors WHERE model = ? AND kind = ? AND seq > ? ORDER BY seq LIMIT ?",
                self._model, self._kind, self._last, _BATCH,
            )  # fmt: skip
            if not rows:
                return  # deleted between the two queries
            self._index.add_with_ids(self._matrix([row["vector"] for row in rows]), np.array([row["seq"] for row in rows], np.int64))
            self._last = rows[-1]["seq"]

    def _matrix(self, vectors: list[bytes]) -> npt.NDArray[np.float32]:
        if any(len(vector) != 4 * self._dimension for vector in vectors):
            raise ArchiveError(f"a vector in {self._database.path} is cut off; `evokernel archive check --repair` removes it, and it is made again")
        return np.frombuffer(b"".join(vectors), "<f4").reshape(len(vectors), self._dimension).astype(np.float32)


class Indexes:
    """The indexes of one archive that have been asked for."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._open: dict[tuple[str, str], Index] = {}

    def get(self, model: str, kind: str, dimension: int) -> Index:
        """The index of a model and kind; opening one reads its file, or its rows, and then writes the file."""
        if (model, kind) not in self._open:
            self._open[model, kind] = Index(self._database, model, kind, dimension)
            self._open[model, kind].write()
        return self._open[model, kind]


def _wants_lists(count: int) -> bool:
    return count > EXACT


def _hash(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()  # against damage; the fastest here
