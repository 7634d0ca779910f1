"""From a path to an imported task file: finding it, importing it as a real module, reading its options."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import itertools
import re
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, TracebackType

from ..errors import TaskError, UsageError
from ..records import Domain, Options, Precision, Scalar

DOMAIN_KINDS = ("any", "positive", "nonnegative", "probability", "own")
_PROJECT_MARKS = ("pyproject.toml", "setup.py", ".git")
_counter = itertools.count(1)


class user_code:
    """Turns whatever the user's code raises into a TaskError that says which part failed, with what, and on which line."""

    def __init__(self, what: str, file: str | Path) -> None:
        self._what = what
        self._file = str(file)

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None or isinstance(error, TaskError | KeyboardInterrupt | GeneratorExit):
            return
        lines = [f.lineno for f in traceback.extract_tb(trace) if f.filename == self._file and f.lineno]
        where = f"{Path(self._file).name}, line {lines[-1]}" if lines else Path(self._file).name
        if isinstance(error, SyntaxError) and error.lineno:
            where = f"{Path(error.filename or self._file).name}, line {error.lineno}"
        text = f"{type(error).__name__}: {error}".rstrip(": ")[:1500]
        memory = isinstance(error, MemoryError) or "can't allocate memory" in text
        advice = "there is not enough memory: use smaller shapes" if memory else "fix the task file so that this runs on its own"
        raise TaskError(f"{self._what} failed at {where}: {text}; {advice}", refused=memory) from error


def find_task(path: str | Path) -> Path:
    """The task file meant by `path`: a file, or `DIR:level/number` in a checkout of KernelBench.

    Raises:
        UsageError: there is no such file, or not exactly one with that number.
    """
    plain = Path(path).expanduser()
    if plain.is_file():
        return plain.resolve()
    match = re.fullmatch(r"(.+):(?:level)?(\d+)/(\d+)", str(path), re.DOTALL)
    if not match:
        what = "is a folder" if plain.is_dir() else "does not exist"
        raise UsageError(f"task file {plain} {what}; name a file, or DIR:level/number in a KernelBench checkout")
    root = Path(match[1]).expanduser()
    name = f"level{match[2]}"
    level = next((d for d in (root / "KernelBench" / name, root / name) if d.is_dir()), None)
    if level is None:
        raise UsageError(f"{root} holds no folder {name} or KernelBench/{name}: is it a checkout of KernelBench?")
    found = sorted(f for f in level.glob("*.py") if re.match(rf"0*{int(match[3])}_", f.name))
    if len(found) != 1:
        raise UsageError(f"{level} holds {len(found)} files whose name starts with {match[3]}_; expected one")
    return found[0].resolve()


def import_task(file: Path) -> ModuleType:
    """Import a task file as a module of its own, under a name no other module has.

    The file's folder and its project's root go to the front of `sys.path` while the body runs, so that it finds its own
    packages, and to the end afterwards, for imports inside functions.

    Raises:
        TaskError: the file cannot be read or its body raises.
    """
    package = _package(file)
    stem = re.sub(r"\W", "_", file.stem)
    name = ".".join([*package, f"_evokernel_task_{next(_counter)}_{stem}"])
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise TaskError(f"{file} is not a Python file; a task file ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folders = [str(f) for f in _import_folders(file, len(package)) if str(f) not in sys.path]
    sys.path[:0] = folders
    try:
        with user_code("importing the task file", file):
            spec.loader.exec_module(module)
    except TaskError:
        sys.modules.pop(name, None)
        raise
    finally:
        for folder in folders:
            if folder in sys.path:
                sys.path.remove(folder)
        sys.path.extend(folders)
    return module


def _package(file: Path) -> list[str]:
    """Dotted parts of the package that the file lies in (none when its folder is no package)."""
    parts: list[str] = []
    folder = file.parent
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        parts.insert(0, folder.name)
        folder = folder.parent
    return parts


def _import_folders(file: Path, depth: int) -> list[Path]:
    """The task's folder, the folder above its package, and the project's root with its `src`."""
    folders = [file.parent, file.parents[depth]]
    for parent in file.parents:
        if any((parent / mark).exists() for mark in _PROJECT_MARKS):
            folders += [parent, *([parent / "src"] if (parent / "src").is_dir() else [])]
            break
    return list(dict.fromkeys(folders))


def read_options(module: ModuleType, file: Path) -> Options:
    """The module's `EVOKERNEL` dict as a record (defaults where it has none).

    Raises:
        TaskError: an unknown key, or a value that does not fit.
    """
    given = getattr(module, "EVOKERNEL", {})
    if not isinstance(given, dict):
        raise TaskError(f"EVOKERNEL in {file.name} must be a dict, not {type(given).__name__}")
    known = [f.name for f in dataclasses.fields(Options)]
    unknown = [str(k) for k in given if k not in known]
    if unknown:
        raise TaskError(f"EVOKERNEL in {file.name} has the unknown key {unknown[0]!r}; known keys: {', '.join(known)}")
    values = dict(given)
    try:
        if "precision" in values:
            values["precision"] = Precision(values["precision"])
        if "shapes" in values:
            values["shapes"] = _shapes(values["shapes"], module)
        if "domain" in values:
            values["domain"] = {str(name): _domain(name, value) for name, value in dict(values["domain"]).items()}
        if values.get("tolerance_units") is not None:
            values["tolerance_units"] = float(values["tolerance_units"])
        if "name" in values:
            values["name"] = str(values["name"])
        return Options(**values)
    except (ValueError, TypeError) as error:
        raise TaskError(f"EVOKERNEL in {file.name}: {error}") from error


def _shapes(value: object, module: ModuleType) -> tuple[dict[str, Scalar], ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(v, dict) for v in value):
        raise ValueError("shapes must be a list of dicts of keyword arguments for get_inputs, e.g. [{'rows': 64}]")
    accepted = inspect.signature(module.get_inputs).parameters if callable(getattr(module, "get_inputs", None)) else {}
    wild = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
    for name, leaf in ((k, v) for entry in value for k, v in entry.items()):
        if name not in accepted and not wild:
            raise ValueError(f"shapes names {name!r}, but get_inputs takes {', '.join(accepted) or 'no arguments'}")
        if not isinstance(leaf, int | float | bool | str | None):
            raise ValueError(f"shapes[...][{name!r}] must be a number, a string or None, not {type(leaf).__name__}")
    return tuple(dict(v) for v in value)


def _domain(name: object, value: object) -> Domain:
    if isinstance(value, str) and value in DOMAIN_KINDS:
        return Domain(value)
    if isinstance(value, Mapping) and set(value) <= {"kind", "low", "high"}:
        value = (value.get("low"), value.get("high"))
    if isinstance(value, list | tuple) and len(value) == 2 and all(isinstance(v, int | float) for v in value) and value[0] < value[1]:
        return Domain("range", float(value[0]), float(value[1]))
    raise ValueError(f"domain of {name!r} must be one of {', '.join(DOMAIN_KINDS)}, or (low, high), not {value!r:.80}")
