# The part of a drop-in's runtime that knows the task's own Model: what a kernel may have baked in of it, and whether modes matter.
# --- runtime ---
import copy
import functools
import hashlib
import linecache
import operator
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import torch

from .dropin import _Fit

_MACHINERY = frozenset(torch.nn.Module().__dict__) | {"_compiled_call_impl", "_is_torch_compile"}
_PLAIN = frozenset((int, float, bool, str, type(None)))
_MISSING = "nothing"
_MODES = "train/eval mode differs from the one the kernel was made for, and it changes the result"


def _load_reference(source: str, path: str) -> types.ModuleType:
    """The original task file as a module of its own."""
    module = types.ModuleType(f"_evokernel_reference_{hashlib.sha256(source.encode()).hexdigest()[:12]}")
    module.__file__ = path
    shown = f"<reference of {path}>"
    linecache.cache[shown] = (len(source), None, source.splitlines(keepends=True), shown)
    sys.modules[module.__name__] = module
    exec(compile(source, shown, "exec"), module.__dict__)
    return module


def _call(value: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments from what get_inputs or get_init_inputs returned."""
    if isinstance(value, dict):
        return (), value
    if isinstance(value, (list, tuple, types.GeneratorType)) and not hasattr(value, "_fields"):
        return tuple(value), {}
    return (value,), {}


def _is_plain(value: object) -> bool:
    return type(value) in _PLAIN or (isinstance(value, (tuple, list)) and all(type(v) in _PLAIN for v in value))


def _plain(module: torch.nn.Module) -> dict[str, Any]:
    return {k: v for k, v in module.__dict__.items() if k not in _MACHINERY and _is_plain(v)}


def _facts(model: torch.nn.Module) -> dict[str, Any]:
    """What a kernel may have baked in, by the name of the submodule: plain attributes, and the class (not that of the model itself)."""
    named = model.named_modules(remove_duplicate=False)
    return {name: {**_plain(m), "__class__": type(m)} if name else _plain(m) for name, m in named}


def _submodules(model: torch.nn.Module) -> list[torch.nn.Module]:
    return [module for _, module in model.named_modules(remove_duplicate=False)]


def _matcher(made_for: torch.nn.Module, top: bool = True) -> Callable[[torch.nn.Module, list[Any]], bool]:
    """A fast test for the facts of `made_for`, which appends the modes in the order of _submodules. True is certain, False says: look closely."""
    plain = _plain(made_for)
    pick, values, size = operator.itemgetter("_modules", "training", *plain), tuple(plain.values()), len(made_for.__dict__)
    children = [(name, None if child is None else _matcher(child, top=False)) for name, child in made_for._modules.items()]
    class_ = None if top else type(made_for)

    def matches(module: torch.nn.Module, modes: list[Any]) -> bool:
        attributes = module.__dict__
        if len(attributes) != size or (class_ and type(module) is not class_):
            return False
        try:
            found = pick(attributes)
        except KeyError:
            return False
        modes.append(found[1])
        if found[2:] != values or len(found[0]) != len(children):
            return False
        for (name, child), (known, test) in zip(found[0].items(), children, strict=True):
            if name != known or (child is None) != (test is None) or (test and not test(child, modes)):
                return False
        return True

    return matches


def _difference(got: dict[str, Any], made_for: dict[str, Any]) -> str:
    """The first attribute that differs, with both values; empty where they only look different (nan)."""
    for name in dict.fromkeys([*made_for, *got]):
        ours, theirs = got.get(name, {}), made_for.get(name, {})
        for key in dict.fromkeys([*theirs, *ours]):
            is_, for_ = repr(ours.get(key, _MISSING)), repr(theirs.get(key, _MISSING))
            if ours.get(key, _MISSING) != theirs.get(key, _MISSING) and is_ != for_:
                return f"{name + '.' if name else ''}{key} is {is_}, the kernel is for {for_}"
    return ""


class _Reference:
    """The task file: its Model (or that of `shared`, a file that defines the same), and how its own get_init_inputs construct that."""

    def __init__(self, source: str, path: str, shared: types.ModuleType | None = None) -> None:
        self.module = _load_reference(source, path)
        for name, value in vars(shared).items() if shared else ():
            if getattr(value, "__module__", "") == getattr(shared, "__name__", None) and name not in ("get_inputs", "get_init_inputs"):
                setattr(self.module, name, value)
        self._lock = threading.RLock()
        self._harmless: dict[tuple[Any, ...], bool] = {}

    def check(self, model: torch.nn.Module) -> None:
        """Raises _Fit where the model differs from what the kernel was made for in an attribute, or in a mode that changes its results."""
        with self._lock:
            matches, facts, made_for_modes = self._made_for
        modes: list[bool] = []
        if not matches(model, modes):
            if reason := _difference(_facts(model), facts):
                raise _Fit(reason)
            modes = [m.training for m in _submodules(model)]
        if modes != made_for_modes and not self.is_harmless(tuple(modes)):
            raise _Fit(_MODES)

    @functools.cached_property
    def _made_for(self) -> tuple[Callable[[torch.nn.Module, list[Any]], bool], dict[str, Any], list[bool]]:
        """The facts and modes of the Model that the kernel was made for."""
        model = self._constructed()
        return _matcher(model), _facts(model), [m.training for m in _submodules(model)]

    @functools.cached_property
    def baked(self) -> tuple[Any, ...]:
        """The same for torch.compile, whose guards see no added attributes: name, class, mode and plain attributes, also those of the class."""
        found = []
        for name, module in self._constructed().named_modules(remove_duplicate=False):
            keys = [k for k in dir(module) if not k.startswith("__") and k not in _MACHINERY and _is_plain(getattr(module, k))]
            found.append((name, type(module) if name else None, module.training, tuple((k, getattr(module, k)) for k in keys)))
        return tuple(found)

    def _constructed(self) -> torch.nn.Module:
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.default_generator.manual_seed(0)
            args, kwargs = _call(getattr(self.module, "get_init_inputs", list)())
            return self.module.Model(*args, **kwargs)

    def is_harmless(self, modes: tuple[Any, ...]) -> bool:
        """Whether the reference gives the same results and buffers in these modes, on its own inputs."""
        with self._lock:
            if modes not in self._harmless:
                model = self._constructed()
                with torch.random.fork_rng(devices=[]), torch.device("cpu"):
                    torch.default_generator.manual_seed(0)
                    inputs = _call(self.module.get_inputs())
                expected, got = (_results(*copy.deepcopy((model, inputs)), m) for m in (self._made_for[2], modes))
                self._harmless[modes] = len(expected) == len(got) and all(map(torch.equal, expected, got))
            return self._harmless[modes]


def _results(model: torch.nn.Module, inputs: tuple[tuple[Any, ...], dict[str, Any]], modes: list[Any] | tuple[Any, ...]) -> list[Any]:
    """Tensors that a module returns in the given modes, and its buffers afterwards."""
    for module, mode in zip(_submodules(model), modes, strict=True):
        module.training = mode
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.no_grad():
        torch.default_generator.manual_seed(0)
        result = model(*inputs[0], **inputs[1])
    return [v for v in torch.utils._pytree.tree_leaves(result) if isinstance(v, torch.Tensor)] + list(model.buffers())
