"""The vectors of the archive: rows made from views of tasks and kernels, filled in afterwards, never while a run measures.

    python -m evokernel.archive.vectors PATH [MODEL]     # fills what is missing, at low priority, and ends

Three kinds of views: of a task its name, source and signature; of a kernel its strategy (leading comment and instruction features), both by a text
model; and the structure of its code. A row never changes: where a view changes, its rows are deleted and made anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import EvokernelError
from ..records import Task
from . import embed, runs, structure
from .database import Database
from .embed import Vectors
from .verdicts import load_task
from .words import CODE, STRATEGY, TASK

_BATCH = 16
_CODE_BATCH = 128
_TABLES = {TASK: "tasks", STRATEGY: "kernels", CODE: "kernels"}
_TARGETS = {"cpp": "C++", "cuda": "CUDA"}


@dataclass(frozen=True)
class Filled:
    """What filling did: items that got vectors, whether none is missing now, and why it ended early (another process fills, a run is on)."""

    items: int
    complete: bool
    why: str = ""


def task_text(name: str, source: str, signature: str = "") -> str:
    """The view of a task."""
    return f"{name.replace('_', ' ')}\n{signature}\n{source}"


def strategy_text(target: str, strategy: str, techniques: str) -> str:
    """The view of a kernel in words; never empty."""
    return f"{_TARGETS.get(target, target)} kernel. {strategy} {techniques}".strip()


def index_folder(archive: Path) -> Path:
    """The folder beside an archive for what is derived from its vectors."""
    return archive.with_name(archive.name + ".index")


@contextlib.contextmanager
def alone(lock: Path) -> Iterator[bool]:
    """Whether no other process (or other holder in this one) is inside with the same lock file; it ends with the process, however that ends. Where
    no such file can be made, all may enter: they do nothing that two may not do."""
    free, handle = True, None
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        handle = lock.open("w")
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        free = not isinstance(error, BlockingIOError)
    with handle or contextlib.nullcontext():
        yield free


def stored(database: Database, model: str, kind: str, items: Iterable[int]) -> dict[int, Vectors]:
    """The vectors (parts, dimension) of those items that have any."""
    found: dict[int, list[bytes]] = {}
    wanted = "SELECT item, vector FROM vectors WHERE kind = ? AND item IN (SELECT value FROM json_each(?)) AND model = ? ORDER BY item, part"
    for row in database.rows(wanted, kind, json.dumps([*items]), model):
        found.setdefault(row["item"], []).append(row["vector"])
    return {item: np.frombuffer(b"".join(parts), "<f4").reshape(len(parts), -1) for item, parts in found.items()}


def fill(database: Database, model: embed.TextModel | None, budget_s: float | None = None) -> Filled:
    """Make missing vectors (without a model: of code only), in turns of one batch a kind, each batch a short transaction.

    Ends when none is missing, after `budget_s`, when another process fills this archive, or when a run of this archive is on, whose times it
    would disturb. The newest come first. May be killed at any moment.

    Raises:
        ArchiveError: SQLite failed.
    """
    deadline = time.monotonic() + budget_s if budget_s is not None else None
    with alone(index_folder(database.path) / "fill.lock") as filler:
        if not filler:
            return Filled(0, False, "another process fills them")
        turns = [_Turn(CODE, structure.MODEL), *((_Turn(kind, model.id) for kind in (TASK, STRATEGY)) if model else ())]
        done = 0
        while turns:
            for turn in list(turns):
                if deadline is not None and time.monotonic() > deadline:
                    return Filled(done, False)
                if _run_is_on(database):
                    return Filled(done, False, "a run is on")
                count = _fill_batch(database, turn, model)
                done += count
                if not count:
                    turns.remove(turn)
    return Filled(done, True)


def start_filling(archive: Path, model: str) -> subprocess.Popen[bytes] | None:
    """Start a process of its own that fills the vectors of an archive at the lowest priority and with one thread; nobody needs to wait for it."""
    command = ["env", "OMP_NUM_THREADS=1", "MKL_NUM_THREADS=1", sys.executable, "-P", "-m", "evokernel.archive.vectors", str(archive), model]
    nothing = subprocess.DEVNULL
    with contextlib.suppress(OSError):  # filled at the next search, then
        return subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True)
    return None


def _run_is_on(database: Database) -> bool:
    return any(runs.held(row) for row in database.rows("SELECT id, holder, heartbeat FROM runs WHERE holder IS NOT NULL"))


@dataclass
class _Turn:
    """One kind on its way through the table, from the newest item down to `before` (None: not begun)."""

    kind: str
    model: str
    before: int | None = None


@dataclass(frozen=True)
class _View:
    item: int
    text: str


def _fill_batch(database: Database, turn: _Turn, model: embed.TextModel | None) -> int:
    views = _missing(database, turn)
    if not views:
        return 0
    turn.before = views[-1].item
    if turn.kind == CODE:
        made = [structure.embed(view.text)[None] for view in views]
    else:
        assert model is not None
        made = _embedded(model, [view.text for view in views])
    with database.write() as connection:
        # What was deleted or changed meanwhile is left to the next pass.
        now = {view.item: view.text for view in _views(database, turn.kind, [view.item for view in views])}
        rows = [
            (turn.model, turn.kind, view.item, part, vector.astype("<f4").tobytes())
            for view, parts in zip(views, made, strict=True) if now.get(view.item) == view.text
            for part, vector in enumerate(parts)
        ]  # fmt: skip
        connection.executemany("INSERT OR IGNORE INTO vectors (model, kind, item, part, vector) VALUES (?, ?, ?, ?, ?)", rows)
    return len(views)


def _embedded(model: embed.TextModel, texts: Sequence[str]) -> list[Vectors]:
    """The vectors of each text's parts; equal parts, which variants of one kernel share, are computed once."""
    parts = [model.parts(text) for text in texts]
    distinct = list(dict.fromkeys(p for of_text in parts for p in of_text))
    vectors = dict(zip(distinct, model.embed(distinct), strict=True))
    return [np.stack([vectors[p] for p in of_text]) for of_text in parts]


def _missing(database: Database, turn: _Turn) -> list[_View]:
    rows = database.rows(
        f"SELECT seq FROM {_TABLES[turn.kind]} i WHERE seq < ? AND NOT EXISTS "
        "(SELECT 1 FROM vectors v WHERE v.model = ? AND v.kind = ? AND v.item = i.seq) ORDER BY seq DESC LIMIT ?",
        turn.before if turn.before is not None else 1 << 62, turn.model, turn.kind, _CODE_BATCH if turn.kind == CODE else _BATCH,
    )  # fmt: skip
    return _views(database, turn.kind, [row["seq"] for row in rows])


def _views(database: Database, kind: str, items: Sequence[int]) -> list[_View]:
    """The views of items as they are now, the newest first."""
    marks = ",".join("?" * len(items))
    if kind == TASK:
        tasks = database.rows(f"SELECT seq, record FROM tasks WHERE seq IN ({marks}) ORDER BY seq DESC", *items)
        return [_View(row["seq"], _task_view(load_task(row["record"]))) for row in tasks]
    if kind == CODE:
        kernels = database.rows(f"SELECT seq, text FROM kernels WHERE seq IN ({marks}) ORDER BY seq DESC", *items)
        return [_View(row["seq"], row["text"]) for row in kernels]
    described = database.rows(
        "SELECT k.seq, k.target, k.strategy, w.techniques FROM kernels k LEFT JOIN kernel_words w ON w.rowid = k.seq "
        f"WHERE k.seq IN ({marks}) ORDER BY k.seq DESC", *items
    )  # fmt: skip
    return [_View(row["seq"], strategy_text(row["target"], row["strategy"], row["techniques"] or "")) for row in described]


def _task_view(task: Task) -> str:
    signature = "; ".join(f"{t.role.value} {t.name} {t.dtype} {list(t.shape)}" for t in task.signature.tensors)
    return task_text(task.name, task.source, signature)


def _main(arguments: Sequence[str]) -> int:
    """The detached process, at the lowest priority; leaves the indexes ready too."""
    os.nice(19)
    path, name = Path(arguments[0]), arguments[1] if len(arguments) > 1 else ""
    if not path.exists():  # removed since
        return 0
    database = Database(path)
    try:
        model = None
        with contextlib.suppress(EvokernelError):  # searches say what is wrong with the model
            model = None if name.lower() == embed.NONE or (not name and embed.missing()) else embed.open_text_model(name)
        fill(database, model)
        from .index import Indexes

        for name, kind, size in ((structure.MODEL, CODE, structure.DIMENSION), *((model.id, k, model.dimension) for k in (TASK, STRATEGY) if model)):
            Indexes(database).get(name, kind, size)  # writes its file where much has come
    finally:
        database.close()
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
