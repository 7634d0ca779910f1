"""`evokernel judge --batch`: candidates from a file, judged one lane a GPU, what came of each appended to another file.

Both files hold one JSON object a line (`records/batch.py`). A candidate carries its task and its kernel, so candidates can be split,
shuffled and joined, and a machine that judges them needs nothing else: no archive, no network, no model. The outcomes are the only state.
Each is on the disk before the next is awaited; a later call judges what has no verdict there, and the last line of a candidate counts.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.pool import ThreadPool
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import BinaryIO, TypeVar

from . import targets
from .api import Session, cache_folder, choose_target, judge_environment, open_lane, read_kernel
from .archive.lifecycle import Due, Here
from .archive.store import Archive
from .codec import decode, encode
from .errors import EvokernelError, UsageError
from .judge.lane import AHEAD, Lane
from .kernelfile import KernelFileError, make_kernel
from .records import PROTOCOL, Admission, BatchCandidate, BatchOutcome, Status, TaskFile, Verdict, digest, unjudged

T = TypeVar("T")
Group = list[BatchCandidate]  # of one task and target, in the file's order
_OUTCOME_HEAD = b'{"is":"BatchOutcome"'


@dataclass(frozen=True)
class BatchResult:
    """What the outcomes file says of the candidates after a call: how many there are, how many of them have a verdict, a verified one, an
    error; and how many were judged by this call."""

    candidates: int
    verdicts: int
    verified: int
    errors: int
    judged: int


def line_of(record: BatchCandidate | BatchOutcome) -> bytes:
    """A record as a line, ASCII only, so that no tool splits it elsewhere."""
    return json.dumps(encode(record), separators=(",", ":")).encode() + b"\n"


def pack(task: str, kernels: Sequence[Path]) -> list[BatchCandidate]:
    """Kernel files for a task file (or `DIR:level/number`) as candidates; each one's id is its path.

    Raises:
        UsageError: a file cannot be read, or is not what it should be.
    """
    file = Path(task).expanduser()
    if not file.is_file():
        from .task.source import find_task  # loads torch, which a plain file does not need

        file = find_task(task)
    try:
        packed = TaskFile(file.stem, file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{file} cannot travel: {error}; save it as UTF-8") from error
    read = [(path, read_kernel(path)) for path in kernels]
    return [BatchCandidate(PROTOCOL, packed, kernel.target, kernel.text, str(path)) for path, kernel in read]


def judge_batch(
    candidates: Path, out: Path, devices: Sequence[str | None], session: Session, on_outcome: Callable[[BatchOutcome, int], None]
) -> BatchResult:
    """Judge every candidate that has no verdict in `out` yet.

    Args:
        devices: GPUs as in `Session.device`, one lane each; candidates for the CPU are judged before, in one lane.
        on_outcome: told each outcome once it is stored, and how many are still to come.

    Raises:
        UsageError: a line cannot be used, a target cannot run here, another process writes `out`; nothing has been judged then.
    """
    wanted = {(c.key, c.id): c for c in _runnable(candidates, devices)}
    file, stored = _opened(out)
    with file:
        latest = {(o.candidate, o.id): o for o in stored}
        todo = [c for key, c in wanted.items() if key not in latest or latest[key].error]
        groups: dict[tuple[str, str], Group] = defaultdict(list)
        for candidate in todo:
            groups[candidate.target, candidate.task.source].append(candidate)
        left = len(todo)
        for target in sorted({target for target, _ in groups}):
            of_target = [group for (name, _), group in groups.items() if name == target]
            for outcome in _judged(of_target, devices if target == "cuda" else (None,), session):
                file.write(line_of(outcome))
                file.flush()
                os.fsync(file.fileno())
                latest[outcome.candidate, outcome.id] = outcome
                left -= 1
                on_outcome(outcome, left)
    verdicts = [v for key in wanted if (v := latest[key].verdict)]
    verified = sum(v.status is Status.VERIFIED for v in verdicts)
    return BatchResult(len(wanted), len(verdicts), verified, len(wanted) - len(verdicts), len(todo))


def here(target: str) -> Here:
    """Where verdicts on a target would be made now, as far as it is known without a judge.

    Raises:
        UsageError: the target cannot run here.
    """
    chosen = choose_target(target)
    device = chosen.device()
    found = importlib.util.find_spec("torch")
    text = Path(found.origin).with_name("version.py").read_text("utf-8") if found and found.origin else ""
    torch = dict(re.findall(r"^(__version__|cuda)\b.*= '(.*)'$", text, re.MULTILINE))  # as torch itself says it: the package's may lack the build
    versions = {"torch": torch.get("__version__", ""), "numpy": importlib.metadata.version("numpy"), "python": platform.python_version()}
    own = {"cuda": torch.get("cuda", "")} if chosen.name == "cuda" else {"threads": str(device.sm_count)}
    return Here(device.name, device.architecture, chosen.compiler(), versions | own)


def rejudge(archive: Archive, work: Sequence[Due], devices: Sequence[str | None], session: Session) -> Iterator[tuple[Due, Verdict | str]]:
    """Judge archived kernels again, one lane a GPU; each verdict is stored before the next is awaited, older ones stay under their own keys.

    Yields what was judged with its verdict, or with the reason why it has none.
    """
    groups: dict[str, Group] = defaultdict(list)
    for number, due in enumerate(work):
        packed = TaskFile(Path(due.task.path).stem, due.task.source)
        groups[due.task.id].append(BatchCandidate(PROTOCOL, packed, due.kernel.target, due.kernel.text, number))
    for outcome in _judged(list(groups.values()), devices, session):
        due = work[int(outcome.id or 0)]
        if outcome.verdict is None:
            yield due, f"{outcome.error}: {outcome.message}"
        elif outcome.task_id != due.task.id or outcome.verdict.kernel_id != due.kernel.id:
            yield due, f"here its task is another one ({outcome.task_id}, not {due.task.id}): its file has changed, or what it needs"
        else:
            archive.rejudged(outcome.verdict, due.task)
            yield due, outcome.verdict


def read_candidates(path: Path) -> list[tuple[int, BatchCandidate]]:
    """The candidates of a file, each with the number of its line.

    Raises:
        UsageError: a line is not one of this protocol.
    """
    return _records(BatchCandidate, path, path.read_bytes())


def _records(kind: type[T], path: Path, data: bytes) -> list[tuple[int, T]]:
    """The records of a file's lines with their numbers; empty lines are passed over."""
    found = []
    for number, line in enumerate(data.split(b"\n"), 1):
        try:
            value = json.loads(line) if line.strip() else None
            if isinstance(value, dict) and value.get("protocol") != PROTOCOL:
                theirs = value.get("protocol", "none")
                raise ValueError(f"its judging protocol is {theirs}, ours {PROTOCOL}; use the evokernel that wrote it, or write it anew")
            if line.strip():
                found.append((number, decode(kind, value)))
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}, line {number} is no {kind.__name__} that can be used: {error}. Nothing was judged") from error
    return found


def _runnable(path: Path, devices: Sequence[str | None]) -> Iterator[BatchCandidate]:
    why: dict[str, str | None] = {}
    for number, candidate in read_candidates(path):
        name = candidate.target
        if name not in why:
            why[name] = targets.get(name).available() if name in targets.names() else f"known targets: {', '.join(targets.names())}"
            if not why[name]:
                for device in devices:
                    judge_environment(name, device)
        if why[name]:
            raise UsageError(f"{path}, line {number}: target {name!r} cannot run here ({why[name]}). Nothing was judged; take such lines elsewhere")
        yield candidate


def _opened(path: Path) -> tuple[BinaryIO, list[BatchOutcome]]:
    """The outcomes file, locked for this process and ready to be added to, and what it holds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(f"another process is writing {path}; wait for it, or choose another --out") from None
    file.seek(0)
    data = file.read()
    whole = data[: data.rfind(b"\n") + 1]
    torn = data[len(whole) :]  # a line that a killed process had begun
    if not torn.startswith(_OUTCOME_HEAD[: len(torn)]):
        raise UsageError(f"{path} ends in something that no judge wrote; choose another --out")
    stored = [outcome for _, outcome in _records(BatchOutcome, path, whole)]
    file.truncate(len(whole))
    return file, stored


def _judged(groups: list[Group], devices: Sequence[str | None], session: Session) -> Iterator[BatchOutcome]:
    """The outcomes of all groups as they come. Each group goes to the next free device; devices share the cores out among them, so that
    lanes do not slow each other's eager code down."""
    answers: SimpleQueue[BatchOutcome | BaseException] = SimpleQueue()
    free: SimpleQueue[tuple[str | None, list[int]]] = SimpleQueue()
    cores = sorted(os.sched_getaffinity(0))
    for i, device in enumerate(devices):
        free.put((device, cores[i :: len(devices)] or cores))
    ended = Event()

    def work(group: Group) -> None:
        device, share = free.get()
        os.sched_setaffinity(0, share)  # of this thread, and of the judge that it starts
        try:
            for outcome in _outcomes(group, replace(session, device=device)):
                answers.put(outcome)
                if ended.is_set():
                    return
        finally:
            free.put((device, share))

    # Daemon threads: after Ctrl-C nothing waits for them, and their judges end with them.
    with ThreadPool(len(devices)) as pool:
        for group in groups:
            pool.apply_async(work, (group,), error_callback=answers.put)
        try:
            for _ in range(sum(map(len, groups))):
                answer = answers.get()
                if isinstance(answer, BaseException):
                    raise answer
                yield answer
            pool.close()
            pool.join()  # the judges have ended too, and their GPUs are free
        finally:
            ended.set()


def _outcomes(group: Group, session: Session) -> Iterator[BatchOutcome]:
    """The outcomes of one task's candidates, in one lane. What is wrong with the task is every candidate's error."""
    with open_lane(_written(group[0].task), group[0].target, session) as lane:
        try:
            admission = lane.admit()
        except EvokernelError as error:
            yield from (_failed(candidate, error) for candidate in group)
            return
        for number, candidate in enumerate(group):
            try:
                verdict = _verdict(candidate, group[number + 1 : number + 1 + AHEAD], lane, admission)
            except EvokernelError as error:
                yield _failed(candidate, error)
            else:
                named = (candidate.key, candidate.id, admission.task.id, verdict.kernel_id)
                yield BatchOutcome(PROTOCOL, *named, verdict, forced=admission.forced)


def _failed(candidate: BatchCandidate, error: EvokernelError) -> BatchOutcome:
    return BatchOutcome(PROTOCOL, candidate.key, candidate.id, error=type(error).__name__, message=str(error))


def _verdict(candidate: BatchCandidate, following: Group, lane: Lane, admission: Admission) -> Verdict:
    for later in following:
        with suppress(KernelFileError):
            lane.ahead(make_kernel(later.text, later.target))
    try:
        kernel = make_kernel(candidate.text, candidate.target)
    except KernelFileError as error:
        return unjudged(admission.device, Status.INVALID, str(error))
    return lane.judge(kernel)


def _written(task: TaskFile) -> Path:
    """The task as a file with nothing of anybody else's beside it: its folder goes to the front of the task's `sys.path`."""
    folder = cache_folder() / "tasks" / digest(task.name, task.source)
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{os.getpid()}.tmp"
    temporary.write_bytes(task.source.encode())
    return temporary.replace(folder / f"{task.name}.py")
