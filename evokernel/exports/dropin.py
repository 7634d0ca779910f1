# What every drop-in module runs: a launch plan on a module's tensors. It needs torch, nothing of evokernel. An exported file is made of the texts
# below the marks: this one, dropin_cpp.py or dropin_cuda.py (what depends on the device), dropin_reference.py and dropin_model.py.
# --- runtime ---
import contextlib
import operator
import os
import threading
from pathlib import Path

import torch


class _Fit(Exception):
    """Why the kernel does not fit a call."""


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evokernel-modules"


class _Kernel:
    """A resolved launch plan, run on a module's own tensors. A subclass knows the kind of device: `_load` gives the functions of the plan's
    launches on one, in the plan's order, or raises OSError or RuntimeError; `_launch` calls one of them on the addresses of tensors and numbers,
    each in argument order."""

    device_type, alignment_bytes = "", 0

    def __init__(self, task: dict, plan: dict, *code) -> None:
        self.task, self.plan, self._code = task, plan, code
        self._lock = threading.Lock()
        self._loaded: dict = {}

    def _load(self, device: torch.device) -> list:
        raise NotImplementedError

    def _launch(self, function, tensors: list, numbers: list) -> None:
        raise NotImplementedError

    def functions(self, device: torch.device) -> list:
        """The functions of the launches, built and loaded at the first call; raises _Fit, now and later, where that fails."""
        with self._lock:
            if device not in self._loaded:
                try:
                    self._loaded[device] = self._load(device)
                except (OSError, RuntimeError) as error:
                    self._loaded[device] = f"the kernel cannot be built or loaded: {error}"
            found = self._loaded[device]
        if isinstance(found, str):
            raise _Fit(found)
        return found

    def on(self, device: torch.device) -> contextlib.AbstractContextManager:
        """Around everything that runs on a device."""
        return contextlib.nullcontext()

    def precision(self, tf32: bool) -> contextlib.AbstractContextManager:
        """Around a step of the vendor's library."""
        return contextlib.nullcontext()

    def before_prepare(self) -> None:
        """Raises _Fit where weights cannot be prepared now."""

    def settle(self) -> None:
        """Between the preparation of weights and calls that may be on other streams."""

    def bound_inputs(self, arguments: dict) -> dict:
        """Values of all input leaves by plan name; raises _Fit where one is not as the kernel needs it."""
        values = {}
        for spec in self.task["inputs"]:
            values[spec["name"]] = value = _leaf(spec["path"], arguments)
            self._check(spec, value)
        for spec in self.task["scalars"]:
            values[spec["name"]] = value = _leaf(spec["path"], arguments)
            if type(value) is not type(spec["value"]) or (not spec["varies"] and value != spec["value"]):
                raise _Fit(f"{spec['path']} is {value!r}, the kernel is for {spec['value']!r}")
        return values

    def bound_weights(self, module: torch.nn.Module) -> dict:
        values = {}
        for spec in self.task["weights"]:
            values[spec["name"]] = value = _attribute(spec["path"], module)
            self._check(spec, value)
        return values

    def device_of(self, tensors: list) -> torch.device:
        devices = {t.device for t in tensors}
        if len(devices) > 1:
            raise _Fit("the tensors of this call are on several devices")
        return next(iter(devices), torch.device(self.device_type))

    def prepare(self, weights: dict, device: torch.device, into: dict | None = None) -> dict:
        """Run the weight preparation; the persisted tensors by name. `into`: those of an earlier one, to be written anew."""
        made = into or self._empty("persist", device)
        self._walk(self.plan["prepare"], {**weights, **made}, device)
        return made

    def run(self, values: dict, device: torch.device) -> dict:
        """Run the plan; the outputs by name."""
        outputs = dict(zip((o["name"] for o in self.task["outputs"]), self.empty_outputs(device), strict=True))
        scratch = self._empty("scratch", device)
        for buffer in self.plan["buffers"]:
            if buffer["zero"]:
                scratch[buffer["name"]].zero_()
        self._walk(self.plan["steps"], {**values, **outputs, **scratch}, device)
        return outputs

    def empty_outputs(self, device: torch.device) -> list:
        return [_empty_like(spec, device) for spec in self.task["outputs"]]

    def fitting(self, spec: dict, value: torch.Tensor) -> torch.Tensor:
        """A tensor of the right shape and dtype in the layout that the kernel needs: itself or a copy."""
        if value.data_ptr() % self.alignment_bytes or (list(value.stride()) != spec["stride"] and value.numel() > 1):
            return _empty_like(spec, value.device).copy_(value)
        return value

    def _empty(self, kind: str, device: torch.device) -> dict:
        wanted = [b for b in self.plan["buffers"] if b["kind"] == kind]
        return {b["name"]: torch.empty(b["shape"], dtype=getattr(torch, b["dtype"]), device=device) for b in wanted}

    def _walk(self, steps: list, values: dict, device: torch.device) -> None:
        functions = self.functions(device)
        for step in steps:
            if "launch" in step:
                tensors = [values[a["tensor"]].data_ptr() for a in step["args"] if "tensor" in a]
                numbers = [values[a["scalar"]] if "scalar" in a else a["value"] for a in step["args"] if "tensor" not in a]
                self._launch(functions[step["launch"]], tensors, numbers)
            elif "op" in step:
                with self.precision(step["tf32"]):
                    _vendor(step, values)
            else:
                values[step["buffer"]].fill_(step["value"])

    def _check(self, spec: dict, value: object) -> None:
        if not isinstance(value, torch.Tensor):
            raise _Fit(f"{spec['path']} is no tensor")
        if type(value) not in (torch.Tensor, torch.nn.Parameter):  # a fake tensor would give a null pointer
            raise _Fit(f"{spec['path']} is a {type(value).__name__}, the kernel is for plain tensors")
        try:
            pointer = value.data_ptr()
        except RuntimeError:  # inside torch.func transforms, and sparse tensors
            raise _Fit(f"{spec['path']} has no memory of its own") from None
        if value.device.type != self.device_type or str(value.dtype) != f"torch.{spec['dtype']}":
            raise _Fit(f"{spec['path']} is {value.dtype} on {value.device.type}, the kernel is for {spec['dtype']} on {self.device_type}")
        if list(value.shape) != spec["shape"] or (list(value.stride()) != spec["stride"] and value.numel() > 1):
            is_, for_ = (list(value.shape), list(value.stride())), (spec["shape"], spec["stride"])
            raise _Fit(f"{spec['path']} has shape and strides {is_}, the kernel is for {for_}")
        if pointer % self.alignment_bytes:
            raise _Fit(f"{spec['path']} does not start at a multiple of {self.alignment_bytes} bytes")


def _empty_like(spec: dict, device: torch.device) -> torch.Tensor:
    return torch.empty_strided(spec["shape"], spec["stride"], dtype=getattr(torch, spec["dtype"]), device=device)


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


def _vendor(step: dict, values: dict) -> None:
    def value(item: object) -> object:
        if not isinstance(item, dict):
            return tuple(item) if isinstance(item, list) else item
        if "scalar" in item:
            return values[item["scalar"]]
        tensor = values[item["tensor"]]
        for name, *numbers in item["views"]:
            tensor = tensor.view(*numbers) if name == "view" else getattr(tensor, name)
        return tensor

    function = torch.nn.functional.linear if step["op"] == "linear" else getattr(torch, step["op"])
    args, kwargs, result = [value(v) for v in step["args"]], {k: value(v) for k, v in step["kwargs"].items()}, values[step["result"]]
    if step["op"].endswith("mm"):
        function(*args, out=result, **kwargs)
    else:
        result.copy_(function(*args, **kwargs))
