# The runtime of a drop-in module: needs torch and g++, nothing of evokernel. Its text below the next line goes into every exported file.
# --- runtime ---
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
import types
import warnings
from pathlib import Path

import torch

_MODES = (torch.nn.modules.batchnorm._NormBase, torch.nn.modules.dropout._DropoutNd, torch.nn.RReLU)
_ALIGNMENT_BYTES = 64


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
    key = hashlib.sha256("\0".join([unit, *compile_flags, *link_flags]).encode()).hexdigest()[:24]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evokernel-modules"
    library = folder / f"{key}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as work:
            (Path(work) / "kernel.cpp").write_text(unit, encoding="utf-8")
            subprocess.run(["g++", *compile_flags, "-c", "kernel.cpp", "-o", "kernel.o"], cwd=work, check=True, capture_output=True, text=True)
            subprocess.run(["g++", "kernel.o", "-o", "kernel.so", *link_flags], cwd=work, check=True, capture_output=True, text=True)
            (Path(work) / "kernel.so").replace(library)
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").split()
    ctypes.CDLL(next((m for m in maps if "libgomp" in m), "libgomp.so.1"), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(library))


class _Fit(Exception):
    """Why the kernel does not fit a call."""


class _Kernel:
    """A resolved launch plan, run on a module's own tensors."""

    def __init__(self, unit: str, compile_flags: list[str], link_flags: list[str], task: dict, plan: dict) -> None:
        self.task, self.plan = task, plan
        self.library = _build(unit, compile_flags, link_flags)

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
            values[spec["name"]] = value = operator.attrgetter(spec["path"])(module)
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
        self.library[step["symbol"]](slots)


def _leaf(path: str, arguments: dict) -> object:
    try:
        return eval(path, {"__builtins__": {}}, arguments)
    except (KeyError, IndexError, AttributeError, TypeError, NameError) as error:
        raise _Fit(f"{path} is missing ({error})") from None


def _check(spec: dict, value: object) -> None:
    if not isinstance(value, torch.Tensor):
        raise _Fit(f"{spec['path']} is no tensor")
    if value.device.type != "cpu" or str(value.dtype) != f"torch.{spec['dtype']}":
        raise _Fit(f"{spec['path']} is {value.dtype} on {value.device}, the kernel is for {spec['dtype']} on the CPU")
    if list(value.shape) != spec["shape"] or (list(value.stride()) != spec["stride"] and value.numel() > 1):
        is_, for_ = (list(value.shape), list(value.stride())), (spec["shape"], spec["stride"])
        raise _Fit(f"{spec['path']} has shape and strides {is_}, the kernel is for {for_}")
    if value.data_ptr() % _ALIGNMENT_BYTES:
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


def drop_in(source: str, path: str, kernel: _Kernel) -> type[torch.nn.Module]:
    """The reference's Model with the kernel in its forward: same constructor, same state_dict. A call that the kernel does not fit
    goes to the reference, with one warning a reason."""
    reference = _load_reference(source, path)
    task = kernel.task
    rebuilt = compile(task["result"], path, "eval")
    signature = inspect.signature(reference.Model.forward)

    class Model(reference.Model):  # type: ignore[name-defined]
        @functools.wraps(reference.Model.__init__)
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.__dict__["_evokernel_modes"] = {n: m.training for n, m in self.named_modules() if isinstance(m, _MODES)}

        @torch.compiler.disable
        def forward(self, *args, **kwargs):
            try:
                return self._fast(args, kwargs)
            except _Fit as reason:
                _warn(str(reason))
                return super().forward(*args, **kwargs)

        def _fast(self, args, kwargs):
            arguments = signature.bind(self, *args, **kwargs).arguments
            inputs = kernel.bound_inputs(arguments)
            weights = kernel.bound_weights(self)
            tensors = [v for v in (*inputs.values(), *weights.values()) if isinstance(v, torch.Tensor)]
            if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
                raise _Fit("gradients are asked for; call it under torch.no_grad() to use the kernel")
            modes = self.__dict__["_evokernel_modes"]
            if any(self.get_submodule(n).training != mode for n, mode in modes.items()):
                raise _Fit("train/eval mode differs from the one the kernel was made for")
            with torch.no_grad():
                outputs = kernel.run({**inputs, **weights, **self._prepared(weights)})
                for state in task["states"]:
                    operator.attrgetter(state["path"])(self).copy_(outputs[state["name"]])
            return eval(rebuilt, dict(outputs))

        def _prepared(self, weights):
            key = tuple((w.data_ptr(), w._version) for w in weights.values())
            if self.__dict__.get("_evokernel_key") != key:
                self.__dict__["_evokernel_made"] = kernel.prepare(weights) if kernel.plan["prepare"] else {}
                self.__dict__["_evokernel_key"] = key
            return self.__dict__["_evokernel_made"]

    return Model


@functools.cache
def _warn(reason: str) -> None:
    warnings.warn(f"evokernel: the reference runs instead of the kernel: {reason}", RuntimeWarning, stacklevel=4)
