# The part of a drop-in's runtime that puts a kernel into a Model's forward.
# --- runtime ---
import contextlib
import functools
import hashlib
import inspect
import operator
import sys
import threading
import warnings
import weakref
from typing import Any

import torch

from .dropin import _Fit, _Kernel
from .dropin_reference import _MISSING, _MODES, _Reference


class _DropIn:
    """What belongs to one kernel of an exported file. The weights prepared for a Model are here and not on it: copies and pickles start without."""

    def __init__(self, reference: _Reference, kernel: _Kernel) -> None:
        self.kernel, self.task = kernel, kernel.task
        self.reference = reference
        self.signature = inspect.signature(self.reference.module.Model.forward)
        self.result = eval(f"lambda {', '.join(o['name'] for o in self.task['outputs'])}: {self.task['result']}")
        self._prepared_for: weakref.WeakKeyDictionary[torch.nn.Module, Any] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def call(self, model: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        """Forward with the kernel; raises _Fit where it does not fit."""
        arguments = self.signature.bind(model, *args, **kwargs).arguments
        inputs = self.kernel.bound_inputs(arguments)
        weights = self.kernel.bound_weights(model)
        tensors = [v for v in (*inputs.values(), *weights.values()) if isinstance(v, torch.Tensor)]
        device = self.kernel.device_of(tensors)
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            raise _Fit(_GRADIENTS)
        if torch.is_autocast_enabled(device.type):
            raise _Fit(_AUTOCAST)
        states = {spec["name"]: operator.attrgetter(spec["path"])(model) for spec in self.task["states"]}
        if not torch.is_inference_mode_enabled() and any(s.is_inference() for s in states.values()):
            raise _Fit("a buffer made under torch.inference_mode() is written outside of it")
        self.reference.check(model)
        self.kernel.functions(device)
        with torch.no_grad(), self.kernel.on(device):
            outputs = self.kernel.run({**inputs, **weights, **self._prepared(model, weights, device)}, device)
            for name, state in states.items():
                state.copy_(outputs[name])
        return self.result(**outputs)

    def refresh(self, model: torch.nn.Module) -> None:
        """Prepare the weights of a model anew, if they have been prepared before."""
        if model in self._prepared_for:
            self._prepared_for[model] = None, *self._prepared_for[model][1:]
            with contextlib.suppress(_Fit), torch.no_grad():  # the next call says why
                weights = self.kernel.bound_weights(model)
                device = self.kernel.device_of(list(weights.values()))
                with self.kernel.on(device):
                    self._prepared(model, weights, device)

    def _prepared(self, model: torch.nn.Module, weights: dict[str, Any], device: torch.device) -> dict[str, Any]:
        if not self.kernel.plan["prepare"]:
            return {}
        if any(w.is_inference() for w in weights.values()):  # their changes are not counted
            return self.kernel.prepare(weights, device)
        key = tuple((w.data_ptr(), w._version) for w in weights.values())
        with self._lock:
            known, made, _ = self._prepared_for.get(model, (None, {}, None))
            if known != key:
                self.kernel.before_prepare()
                self._prepared_for[model] = None, made, None  # until all is written
                with torch.inference_mode(False), torch.no_grad():  # they will be written anew outside of inference mode too
                    self.kernel.settle()
                    # Into the same memory where there is some: captured CUDA graphs read it.
                    made = self.kernel.prepare(weights, device, {n: t for n, t in made.items() if t.device == device})
                    self.kernel.settle()
                # the weights are held, so that no new ones can come to lie at their addresses
                self._prepared_for[model] = key, made, [w.detach() for w in weights.values()]
        return dict(made)


class _Traced:
    """The kernel as an operation in the graphs of torch.compile. Whatever `misfit` looks at becomes a guard of the compiled code."""

    def __init__(self, drop: _DropIn) -> None:
        kernel, task, parameters = drop.kernel, drop.task, list(drop.signature.parameters)
        self.signature, self.result, self.kernel, self.scalars = drop.signature, drop.result, kernel, task["scalars"]
        self.specs = [(spec, getattr(torch, spec["dtype"])) for spec in (*task["inputs"], *task["weights"])]
        self.names, self.numbers = [s["name"] for s, _ in self.specs], [s["name"] for s in self.scalars if s["varies"]]
        paths = {s["name"]: s["path"] for s in (*task["inputs"], *self.scalars)}
        for spec in task["weights"]:
            paths[spec["name"]] = functools.reduce("getattr({}, {!r})".format, spec["path"].split("."), parameters[0])
        self.leaves = {n: eval(f"lambda {', '.join(f'{p}=None' for p in parameters)}: {path}") for n, path in paths.items()}
        constant = torch.compiler.assume_constant_result  # marks a function, so that each needs one of its own
        self.baked, self.warn = constant(lambda: drop.reference.baked), constant(lambda reason: _warn(reason))  # noqa: PLW0108
        self.is_harmless = constant(lambda modes: drop.reference.is_harmless(modes))  # noqa: PLW0108
        self.unready = constant(lambda kind, index: self._unready(kind, index))  # noqa: PLW0108
        name = hashlib.sha256(repr((task, kernel.plan, kernel._code)).encode()).hexdigest()[:16]
        schema = "(Tensor[] tensors, Scalar[] numbers) -> Tensor[]"
        self.operation = torch.library.custom_op(f"evokernel::k{name}", self._run, mutates_args=(), schema=schema)
        self.operation.register_fake(lambda tensors, numbers: kernel.empty_outputs(tensors[0].device))

    def _run(self, tensors: list[torch.Tensor], numbers: list[Any]) -> list[torch.Tensor]:
        device = tensors[0].device
        with torch.no_grad(), self.kernel.on(device):
            fitting = [self.kernel.fitting(spec, t) for (spec, _), t in zip(self.specs, tensors, strict=True)]
            values = dict(zip([*self.names, *self.numbers], [*fitting, *numbers], strict=True))
            return list(self.kernel.run(values, device).values())

    def _unready(self, kind: str, index: int | None) -> str:
        try:
            self.kernel.functions(torch.device(kind, index))
        except _Fit as reason:
            return str(reason)
        return ""

    def values(self, model: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        arguments = self.signature.bind(model, *args, **kwargs).arguments
        return {name: leaf(**arguments) for name, leaf in self.leaves.items()}

    def misfit(self, model: torch.nn.Module, values: dict[str, Any]) -> str:
        """Why the kernel does not fit a call, "" where it does."""
        if torch.is_autocast_enabled(self.kernel.device_type):
            return _AUTOCAST
        for spec, dtype in self.specs:
            t = values[spec["name"]]
            if type(t) not in (torch.Tensor, torch.nn.Parameter) or t.device.type != self.kernel.device_type or t.dtype != dtype:
                return f"{spec['path']} is no plain {spec['dtype']} tensor on {self.kernel.device_type}"
            if list(t.shape) != spec["shape"] or (list(t.stride()) != spec["stride"] and t.numel() > 1):
                return f"the kernel is for {spec['path']} of shape and strides {spec['shape'], spec['stride']}"
            if torch.is_grad_enabled() and t.requires_grad:
                return _GRADIENTS
            if t.device != values[self.names[0]].device:
                return "the tensors of this call are on several devices"
        for spec in self.scalars:
            value = values[spec["name"]]
            if type(value) is not type(spec["value"]) or (not spec["varies"] and value != spec["value"]):
                return f"the kernel is for {spec['path']} = {spec['value']!r}"
        modules, baked = dict(model.named_modules(remove_duplicate=False)), self.baked()
        if list(modules) != [name for name, _, _, _ in baked]:
            return "the model has other submodules than the one the kernel is for"
        for name, kind, _, attributes in baked:
            if kind is not None and type(modules[name]) is not kind:
                return f"{name} is of another class than the kernel is for"
            for key, value in attributes:
                if not getattr(modules[name], key, _MISSING) == value:  # noqa: SIM201 - torch 2.11 traces no other way
                    return f"the kernel is for {name + '.' if name else ''}{key} = {value!r}"
        modes = tuple([modules[name].training for name, _, _, _ in baked])
        if modes != tuple([mode for _, _, mode, _ in baked]) and not self.is_harmless(modes):
            return _MODES
        device = values[self.names[0]].device
        return str(self.unready(device.type, device.index))

    def run(self, values: dict[str, Any]) -> Any:
        outputs = self.operation([values[n] for n in self.names], [values[n] for n in self.numbers])
        return self.result(*outputs)


def drop_in(path: str, name: str, *kernels: tuple[str, _Kernel]) -> type[torch.nn.Module]:
    """The reference's Model with kernels in its forward: same constructor, same state_dict. Each kernel comes with its task's source; a call goes to
    the first that fits, or to the reference, with one warning a reason. `name` is the importable name of the exported file, for pickle."""
    references = [_Reference(kernels[0][0], path)]
    references += [_Reference(source, path, references[0].module) for source, _ in kernels[1:]]
    drops = [_DropIn(reference, kernel) for reference, (_, kernel) in zip(references, kernels, strict=True)]
    # Not where weights are prepared: a compiled graph would keep those of its first call. Nor where buffers change, nor where torch.compile, which
    # imports the modules of what it traces, would not find this one.
    traceable = all((k.task["inputs"] or k.task["weights"]) and not (k.plan["prepare"] or k.task["states"]) for _, k in kernels)
    traced = [_Traced(drop) for drop in drops] if traceable and name in sys.modules else None
    base: Any = references[0].module.Model

    class Model(base):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            if traced is None or not torch.compiler.is_dynamo_compiling():
                return self._forward_now(args, kwargs)
            reasons = []
            for kernel in traced:
                values = kernel.values(self, args, kwargs)
                reason = kernel.misfit(self, values)
                if not reason:
                    return kernel.run(values)
                reasons.append(reason)
            traced[0].warn("; ".join(reasons))
            return super().forward(*args, **kwargs)

        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def _forward_now(self, args: Any, kwargs: Any) -> Any:
            reasons = []
            for drop in drops:
                try:
                    return drop.call(self, args, kwargs)
                except _Fit as reason:
                    reasons.append(str(reason))
            _warn("; ".join(dict.fromkeys(reasons)))
            return super().forward(*args, **kwargs)

        def refresh(self) -> None:
            """Prepare the weights anew, into the same memory. Needed after a write through `.data` or another alias that torch does not count
            as a change, and before the replay of a CUDA graph that was captured with other weights."""
            for drop in drops:
                drop.refresh(self)

    Model.__module__, Model.__qualname__ = name, "Model"
    return Model


_AUTOCAST = "autocast is on, and the kernel was made without it; put the call into torch.autocast(device_type, enabled=False) to use the kernel"
_GRADIENTS = "gradients are asked for; call it under torch.no_grad() to use the kernel"


@functools.cache
def _warn(reason: str) -> None:
    warnings.warn(f"evokernel: the reference runs instead of the kernel: {reason}", RuntimeWarning, stacklevel=4)
