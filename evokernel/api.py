"""The two main jobs as functions: what the command line calls, and what `evokernel.evolve` and `evokernel.judge` are.

This and the command line are the only places that read the environment.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from . import targets
from .archive.runs import RunSettings, Started
from .archive.shipped import import_shipped, shipped_root
from .archive.store import Archive
from .errors import UsageError
from .judge.lane import Lane, LaneSettings
from .kernelfile import KernelFileError, make_kernel
from .kernelfile.gpus import shipped_gpu
from .models import Model, ModelSpec, open_model
from .records import Admission, Kernel, Verdict
from .search.post import begin
from .search.run import RunResult, Watcher, resume, run_search
from .targets.driver import one_gpu

DEFAULT_CANDIDATES = 40
_JUDGE_PATIENCE = 4.0  # one kernel alone may take the time that a search does not have
Phase = Callable[[str], None]


@dataclass(frozen=True)
class Session:
    """Where things are kept and how a task is treated, the same for every job.

    `archive`: the archive file (None: the user's own). `task_timeout_s`: the limit on each part of the task's own code. `force`:
    judge a task that admission refuses; its verdicts are marked (a run that is resumed is judged as it was started). `device`: the GPU, a
    number among the visible ones or a UUID (None: the first).
    """

    archive: Path | None = None
    task_timeout_s: float = 60.0
    force: bool = False
    on_phase: Phase = lambda _: None
    device: str | None = None


def data_folder() -> Path:
    """The user's folder for the archive (XDG base directory specification)."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "evokernel"


def cache_folder() -> Path:
    """The user's folder for what can be made again: builds, baseline times."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evokernel"


@contextmanager
def open_archive(path: Path | None = None, *, create: bool = True, shipped: bool = True) -> Iterator[Archive]:
    """The archive file (None: the user's own), created if need be, with the shipped stepping stones in it. `create`: whether a path may be new.
    `shipped`: whether they are put there now.

    Raises:
        UsageError: there is none at the path.
        ArchiveError: it cannot be opened.
    """
    if path and not create and not path.exists():
        raise UsageError(f"there is no archive at {path}; without --archive your own is used ({data_folder() / 'archive.db'})")
    file = path or data_folder() / "archive.db"
    file.parent.mkdir(parents=True, exist_ok=True)
    with Archive(file) as archive:
        root = shipped_root() if shipped else None
        if root:
            import_shipped(archive, root)
        yield archive


def choose_target(name: str) -> targets.Target:
    """The target of that name, or for "auto" the first that this machine can run.

    Raises:
        UsageError: no such target, or it cannot run here; the message says what is missing.
    """
    candidates = targets.names() if name == "auto" else (name,)
    missing = []
    for candidate in candidates:
        target = targets.get(candidate)
        why = target.available()
        if why is None:
            return target
        missing.append(f"{candidate}: {why}")
    raise UsageError("no target can run here. " + "; ".join(missing))


def judge_environment(target: str, device: str | None) -> dict[str, str]:
    """The environment of a judge and all below it: ours, and of several GPUs only its own.

    Raises:
        UsageError: no such GPU.
    """
    environ = dict(os.environ)
    if target == "cuda":
        environ["CUDA_VISIBLE_DEVICES"] = one_gpu(device, environ.get("CUDA_VISIBLE_DEVICES"))
    return environ


def open_models(settings: RunSettings) -> dict[str, Model]:
    """The models of a run by id, ready to be asked; keys come from the environment.

    Raises:
        UsageError: not a model's form. ModelError: a key is missing.
    """
    specs = [ModelSpec.parse(text) for text in settings.models]
    return {spec.id: open_model(spec, os.environ) for spec in specs}


@contextmanager
def open_lane(task: str | Path, target: str, session: Session) -> Iterator[Lane]:
    """A judge for one task, ended at the end.

    Raises:
        UsageError: the cache folder cannot be made or written, or there is no such GPU.
    """
    try:
        (cache_folder() / "builds").mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=cache_folder()).close()
    except OSError as error:
        raise UsageError(f"the cache folder {cache_folder()} cannot be written ({error.strerror}); set XDG_CACHE_HOME to another place") from error
    environ = judge_environment(target, session.device)
    settings = LaneSettings(
        task=str(task), target=target, cache=cache_folder(), environ=environ, phase_limit_s=session.task_timeout_s, force=session.force
    )
    lane = Lane(settings, session.on_phase)
    try:
        yield lane
    finally:
        lane.close()


def read_kernel(path: str | Path) -> Kernel:
    """A kernel file; its ending says for which target.

    Raises:
        UsageError: no such file, not text, or no known ending.
    """
    file = Path(path)
    endings = {targets.get(n).suffix: n for n in targets.names()}
    if file.suffix not in endings:
        raise UsageError(f"{file}: a kernel file ends in {' or '.join(endings)}")
    try:
        return make_kernel(file.read_bytes().decode("utf-8"), endings[file.suffix])
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, KernelFileError) as error:
        raise UsageError(f"{file} is not a kernel file: {error}") from error


def evolve(task: str | Path, settings: RunSettings | None = None, session: Session | None = None, on_event: Watcher | None = None) -> RunResult:
    """Search for a faster kernel of a task file.

    Args:
        task: a Python file in KernelBench format, or `DIR:level/number`.
        settings: what the run may spend; its target must be one that runs here (default: 40 candidates on the first that does).

    Raises:
        UsageError, TaskError, JudgeError, ArchiveError: see errors.py; the run is stored up to there.
    """
    session = session or Session()
    settings = settings or RunSettings(target=choose_target("auto").name, candidates=DEFAULT_CANDIDATES)
    settings = replace(settings, force=settings.force or session.force)  # stored, for `resume_run`
    models = open_models(settings)
    with open_archive(session.archive) as archive, open_lane(task, settings.target, replace(session, force=settings.force)) as lane:
        return run_search(archive, lane, settings, on_event, models)


def resume_run(run_id: str, session: Session | None = None, on_event: Watcher | None = None) -> RunResult:
    """Go on with a run that was interrupted or killed.

    Raises:
        UsageError: no such run. Otherwise as `evolve`.
    """
    session = session or Session()
    with open_archive(session.archive, create=False) as archive:
        row = next((r for r in archive.runs() if r.id.startswith(run_id)), None)
        if row is None:
            raise UsageError(f"there is no run {run_id!r}; `evokernel archive runs` lists them")
        started = archive.events(row.id)[0].event
        assert isinstance(started, Started)
        with open_lane(started.task_path, row.target, replace(session, force=started.settings.force)) as lane:
            return resume(archive, lane, row.id, on_event, open_models(started.settings))


def begin_by_post(archive: Archive, task: str | Path, gpu: str | None, candidates: int, session: Session) -> str:
    """A new run whose answers come by file; its id. `gpu`: by its name, need not be here; None: the device that is.

    Raises:
        UsageError, TaskError: see errors.py.
    """
    target = targets.get("cuda") if gpu else choose_target("auto")
    device = shipped_gpu(gpu) if gpu else target.device()
    with open_lane(task, "cpp", session) as lane:  # only to load the task, which needs no device
        loaded = lane.describe()
    return begin(archive, loaded, device, RunSettings(target.name, candidates, models=("file/answers",), force=session.force))


def judge(kernel: str | Path, task: str | Path, session: Session | None = None) -> Verdict:
    """The verdict of one kernel file on one task file; raises as `judged` does."""
    return judged(kernel, task, session)[1]


def judged(kernel: str | Path, task: str | Path, session: Session | None = None) -> tuple[Admission, Verdict]:
    """What the judge says of the task, and of one kernel file on it.

    Raises:
        UsageError, TaskError, JudgeError: see errors.py. What is wrong with the kernel is in the verdict.
    """
    read = read_kernel(kernel)
    target = choose_target(read.target)
    with open_lane(task, target.name, session or Session()) as lane:
        return lane.admit(), lane.judge(read, patience=_JUDGE_PATIENCE)
