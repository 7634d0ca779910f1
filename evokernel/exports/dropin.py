# The runtime of a drop-in module: needs torch and g++, nothing of evokernel. Its text below the next line goes into every exported file.
# --- runtime ---
import copy
import ctypes
import functools
import hashlib
import inspect
import linecache
import operator
import os
import subprocess
import sys
import tempfile
import threading
import types
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path

import torch

_ALIGNMENT_BYTES = 64
_MACHINERY = frozenset(torch.nn.Module().__dict__) | {"_compiled_call_impl"}
_PLAIN = frozenset((int, float, bool, str, type(None)))
_MISSING = "nothing"


class _Fit(Exception):
    """Why the kernel does not fit a call."""


def _load_reference(source: str, path: str) -> types.ModuleType:
    """The original task file as a module of its own."""
    module = types.ModuleType(f"_evokernel_reference_{hashlib.sha256(source.encode()).hexdigest()[:12]}")
    module.__file__ = path
    shown = f"<reference of {path}>"
    linecache.cache[shown] = (len(source), None, source.splitlines(keepends=True), shown)
    sys.modules[module.__name__] = module
    exec(compile(source, shown, "exec"), module.__dict__)
    return module


def _build(unit: str, compile_flags: list[str], link_flags: list[str]) -> ctypes.CDLL:
    """Compile once into the user's cache and load; the process's own OpenMP runtime (torch's) serves the kernel too."""
    # -march=native: a library made on one machine may crash on another that shares the cache
    cpu = next((line for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if line.startswith("flags")), "")
    key = hashlib.sha256("\0".join([unit, *compile_flags, *link_flags, cpu]).encode()).hexdigest()[:24]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evokernel-modules"
    library = folder / f"{key}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as work:
            (Path(work) / "kernel.cpp").write_text(unit, encoding="utf-8")
            subprocess.run(["g++", *compile_flags, "-c", "kernel.cpp", "-o", "kernel.o"], cwd=work, check=True, capture_output=True, text=True)
            subprocess.run(["g++", "kernel.o", "-o", "kernel.so", *link_flags], cwd=work, check=True, capture_output=True, text=True)
            (Path(work) / "kernel.so").replace(library)
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    mapped = (fields[5] for fields in (line.split(maxsplit=5) for line in lines) if len(fields) == 6)
    ctypes.CDLL(next((path for path in mapped if "libgomp" in Path(path).name), "libgomp.so.1"), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(library))


class _Kernel:
    """A resolved launch plan, run on a module's own tensors."""

    def __init__(self, unit: str, compile_flags: list[str], link_flags: list[str], task: dict, plan: dict) -> None:
        self.task, self.plan = task, plan
        self._sources = (unit, compile_flags, link_flags)
        self._lock = threading.Lock()
        self._library: ctypes.CDLL | None = None
        self._failure = ""

    def library(self) -> ctypes.CDLL:
        """The compiled kernel, built at the first call; raises _Fit, now and later, where it cannot be built."""
        with self._lock:
            if self._library is None and not self._failure:
                try:
                    self._library = _build(*self._sources)
                except subprocess.CalledProcessError as error:
                    self._failure = f"the kernel cannot be compiled: {error.stderr.strip()[-500:] or error}"
                except (OSError, RuntimeError) as error:
                    self._failure = f"the kernel cannot be built or loaded: {error}"
        if self._library is None:
            raise _Fit(self._failure)
        return self._library

    def bound_inputs(self, arguments: dict) -> dict:
        """Values of all input leaves by plan name; raises _Fit where one is not as the kernel needs it."""
        values = {}
        for spec in self.task["inputs"]:
            values[spec["name"]] = value = _leaf(spec["path"], arguments)
            _check(spec, value)
        for spec in self.task["scalars"]:
            values[spec["name"]] = value = _leaf(spec["path"], arguments)
            if type(value) is not type(spec["value"]) or (not spec["varies"] and value != spec["value"]):
                raise _Fit(f"{spec['path']} is {value!r}, the kernel is for {spec['value']!r}")
        return values

    def bound_weights(self, module: torch.nn.Module) -> dict:
        values = {}
        for spec in self.task["weights"]:
            values[spec["name"]] = value = _attribute(spec["path"], module)
            _check(spec, value)
        return values

    def prepare(self, weights: dict) -> dict:
        """Run the weight preparation; the persisted tensors by name."""
        made = {b["name"]: _empty(b) for b in self.plan["buffers"] if b["kind"] == "persist"}
        self._walk(self.plan["prepare"], 0, {**weights, **made})
        return made

    def run(self, values: dict) -> dict:
        """Run the plan; the outputs by name."""
        outputs = {o["name"]: torch.empty_strided(o["shape"], o["stride"], dtype=getattr(torch, o["dtype"])) for o in self.task["outputs"]}
        scratch = {b["name"]: _empty(b) for b in self.plan["buffers"] if b["kind"] == "scratch"}
        for buffer in self.plan["buffers"]:
            if buffer["zero"]:
                scratch[buffer["name"]].zero_()
        first = sum("symbol" in s for s in self.plan["prepare"])
        self._walk(self.plan["steps"], first, {**values, **outputs, **scratch})
        return outputs

    def _walk(self, steps: list, launch: int, values: dict) -> None:
        for step in steps:
            if "symbol" in step:
                self._launch(step, values)
            elif "op" in step:
                _vendor(step, values)
            else:
                values[step["buffer"]].fill_(step["value"])

    def _launch(self, step: dict, values: dict) -> None:
        slots = (ctypes.c_uint64 * max(len(step["args"]), 1))()
        tensors = [values[a["tensor"]].data_ptr() for a in step["args"] if "tensor" in a]
        numbers = [values[a["scalar"]] if "scalar" in a else a["value"] for a in step["args"] if "tensor" not in a]
        for i, value in enumerate(tensors + numbers):
            kind = ctypes.c_double if isinstance(value, float) else ctypes.c_int64
            slots[i] = ctypes.c_uint64.from_buffer_copy(kind(value)).value
        self.library()[step["symbol"]](slots)


def _leaf(path: str, arguments: dict) -> object:
    try:
        return eval(path, {"__builtins__": {}}, arguments)
    except (KeyError, IndexError, AttributeError, TypeError, NameError) as error:
        raise _Fit(f"{path} is missing ({error})") from None


def _attribute(path: str, module: torch.nn.Module) -> object:
    try:
        return operator.attrgetter(path)(module)
    except AttributeError:
        raise _Fit(f"{path} is missing") from None


def _check(spec: dict, value: object) -> None:
    if not isinstance(value, torch.Tensor):
        raise _Fit(f"{spec['path']} is no tensor")
    if type(value) not in (torch.Tensor, torch.nn.Parameter):  # a fake tensor would give a null pointer
        raise _Fit(f"{spec['path']} is a {type(value).__name__}, the kernel is for plain tensors")
    try:
        pointer = value.data_ptr()
    except RuntimeError:  # inside torch.func transforms, and sparse tensors
        raise _Fit(f"{spec['path']} has no memory of its own") from None
    if value.device.type != "cpu" or str(value.dtype) != f"torch.{spec['dtype']}":
        raise _Fit(f"{spec['path']} is {value.dtype} on {value.device}, the kernel is for {spec['dtype']} on the CPU")
    if list(value.shape) != spec["shape"] or (list(value.stride()) != spec["stride"] and value.numel() > 1):
        is_, for_ = (list(value.shape), list(value.stride())), (spec["shape"], spec["stride"])
        raise _Fit(f"{spec['path']} has shape and strides {is_}, the kernel is for {for_}")
    if pointer % _ALIGNMENT_BYTES:
        raise _Fit(f"{spec['path']} does not start at a multiple of {_ALIGNMENT_BYTES} bytes")


def _empty(buffer: dict) -> torch.Tensor:
    return torch.empty(buffer["shape"], dtype=getattr(torch, buffer["dtype"]))


def _vendor(step: dict, values: dict) -> None:
    def value(item: object) -> object:
        if not isinstance(item, dict):
            return tuple(item) if isinstance(item, list) else item
        tensor = values[item["tensor"]]
        for name, *numbers in item["views"]:
            tensor = tensor.view(*numbers) if name == "view" else getattr(tensor, name)
        return tensor

    function = torch.nn.functional.linear if step["op"] == "linear" else getattr(torch, step["op"])
    result = function(*map(value, step["args"]), **{k: value(v) for k, v in step["kwargs"].items()})
    values[step["result"]].copy_(result)


def _call(value: object) -> tuple[tuple, dict]:
    """Positional and keyword arguments from what get_inputs or get_init_inputs returned."""
    if isinstance(value, dict):
        return (), value
    if isinstance(value, (list, tuple, types.GeneratorType)) and not hasattr(value, "_fields"):
        return tuple(value), {}
    return (value,), {}


def _is_plain(value: object) -> bool:
    return type(value) in _PLAIN or (isinstance(value, (tuple, list)) and all(type(v) in _PLAIN for v in value))


def _plain(module: torch.nn.Module) -> dict:
    return {k: v for k, v in module.__dict__.items() if k not in _MACHINERY and _is_plain(v)}


def _facts(model: torch.nn.Module) -> dict:
    """What a kernel may have baked in, by the name of the submodule: plain attributes, and the class (not that of the model itself)."""
    named = model.named_modules(remove_duplicate=False)
    return {name: {**_plain(m), "__class__": type(m)} if name else _plain(m) for name, m in named}


def _submodules(model: torch.nn.Module) -> list[torch.nn.Module]:
    return [module for _, module in model.named_modules(remove_duplicate=False)]


def _matcher(made_for: torch.nn.Module, top: bool = True) -> Callable[[torch.nn.Module, list], bool]:
    """A fast test for the facts of `made_for`, which appends the modes in the order of _submodules. True is certain, False says: look closely."""
    plain = _plain(made_for)
    pick, values, size = operator.itemgetter("_modules", "training", *plain), tuple(plain.values()), len(made_for.__dict__)
    children = [(name, None if child is None else _matcher(child, top=False)) for name, child in made_for._modules.items()]
    class_ = None if top else type(made_for)

    def matches(module: torch.nn.Module, modes: list) -> bool:
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


def _difference(got: dict, made_for: dict) -> str:
    """The first attribute that differs, with both values; empty where they only look different (nan)."""
    for name in dict.fromkeys([*made_for, *got]):
        ours, theirs = got.get(name, {}), made_for.get(name, {})
        for key in dict.fromkeys([*theirs, *ours]):
            is_, for_ = repr(ours.get(key, _MISSING)), repr(theirs.get(key, _MISSING))
            if ours.get(key, _MISSING) != theirs.get(key, _MISSING) and is_ != for_:
                return f"{name + '.' if name else ''}{key} is {is_}, the kernel is for {for_}"
    return ""


class _Reference:
    """The task file: its Model, and how its own get_init_inputs construct that."""

    def __init__(self, source: str, path: str) -> None:
        self.module = _load_reference(source, path)
        self._lock = threading.RLock()
        self._harmless: dict[tuple, bool] = {}

    def check(self, model: torch.nn.Module) -> None:
        """Raises _Fit where the model differs from what the kernel was made for in an attribute, or in a mode that changes its results."""
        with self._lock:
            matches, facts, made_for_modes = self._made_for
        modes: list[bool] = []
        if not matches(model, modes):
            if reason := _difference(_facts(model), facts):
                raise _Fit(reason)
            modes = [m.training for m in _submodules(model)]
        if modes != made_for_modes and not self._is_harmless(tuple(modes)):
            raise _Fit("train/eval mode differs from the one the kernel was made for, and it changes the result")

    @functools.cached_property
    def _made_for(self) -> tuple[Callable[[torch.nn.Module, list], bool], dict, list[bool]]:
        """The facts and modes of the Model that the kernel was made for."""
        model = self._constructed()
        return _matcher(model), _facts(model), [m.training for m in _submodules(model)]

    def _constructed(self) -> torch.nn.Module:
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.manual_seed(0)
            args, kwargs = _call(getattr(self.module, "get_init_inputs", list)())
            return self.module.Model(*args, **kwargs)

    def _is_harmless(self, modes: tuple) -> bool:
        """Whether the reference gives the same results and buffers in these modes, on its own inputs."""
        with self._lock:
            if modes not in self._harmless:
                model = self._constructed()
                with torch.random.fork_rng(devices=[]), torch.device("cpu"):
                    torch.manual_seed(0)
                    inputs = _call(self.module.get_inputs())
                expected, got = (_results(*copy.deepcopy((model, inputs)), m) for m in (self._made_for[2], modes))
                self._harmless[modes] = len(expected) == len(got) and all(map(torch.equal, expected, got))
            return self._harmless[modes]


def _results(model: torch.nn.Module, inputs: tuple[tuple, dict], modes: list | tuple) -> list:
    """Tensors that a module returns in the given modes, and its buffers afterwards."""
    for module, mode in zip(_submodules(model), modes, strict=True):
        module.training = mode
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.no_grad():
        torch.manual_seed(0)
        result = model(*inputs[0], **inputs[1])
    return [v for v in torch.utils._pytree.tree_leaves(result) if isinstance(v, torch.Tensor)] + list(model.buffers())


def drop_in(source: str, path: str, name: str, kernel: _Kernel) -> type[torch.nn.Module]:
    """The reference's Model with the kernel in its forward: same constructor, same state_dict. A call that the kernel does not fit
    goes to the reference, with one warning a reason. `name` is the importable name of the exported file, for pickle."""
    reference = _Reference(source, path)
    task = kernel.task
    rebuilt = compile(task["result"], path, "eval")
    signature = inspect.signature(reference.module.Model.forward)
    prepared: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # not on the instances: copies and pickles start without

    class Model(reference.module.Model):  # type: ignore[name-defined]
        @torch.compiler.disable
        def forward(self, *args, **kwargs):
            try:
                return self._fast(args, kwargs)
            except _Fit as reason:
                _warn(str(reason))
                return super().forward(*args, **kwargs)

        def refresh(self) -> None:
            """Forget prepared weights. Needed after a write through `.data` or another alias that torch does not count as a change."""
            prepared.pop(self, None)

        def _fast(self, args, kwargs):
            arguments = signature.bind(self, *args, **kwargs).arguments
            inputs = kernel.bound_inputs(arguments)
            weights = kernel.bound_weights(self)
            tensors = [v for v in (*inputs.values(), *weights.values()) if isinstance(v, torch.Tensor)]
            if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
                raise _Fit("gradients are asked for; call it under torch.no_grad() to use the kernel")
            states = {spec["name"]: operator.attrgetter(spec["path"])(self) for spec in task["states"]}
            if not torch.is_inference_mode_enabled() and any(s.is_inference() for s in states.values()):
                raise _Fit("a buffer made under torch.inference_mode() is written outside of it")
            reference.check(self)
            kernel.library()
            with torch.no_grad():
                outputs = kernel.run({**inputs, **weights, **self._prepared(weights)})
                for state_name, state in states.items():
                    state.copy_(outputs[state_name])
            return eval(rebuilt, dict(outputs))

        def _prepared(self, weights):
            if not kernel.plan["prepare"]:
                return {}
            if any(w.is_inference() for w in weights.values()):  # their changes are not counted
                return kernel.prepare(weights)
            key = tuple((w.data_ptr(), w._version) for w in weights.values())
            known, made, _ = prepared.get(self, (None, None, None))
            if known != key:
                made = kernel.prepare(weights)
                # the weights are held, so that no new ones can come to lie at their addresses
                prepared[self] = key, made, [w.detach() for w in weights.values()]
            return made

    Model.__module__, Model.__qualname__ = name, "Model"
    return Model


@functools.cache
def _warn(reason: str) -> None:
    warnings.warn(f"evokernel: the reference runs instead of the kernel: {reason}", RuntimeWarning, stacklevel=4)
