"""`evokernel export module`: a verified kernel as one Python file with a drop-in torch.nn.Module.

The file holds the task's source (the reference, for construction, state and fallback), the code, the resolved plan as data, and the
runtime: dropin.py with dropin_cpp.py or dropin_cuda.py. It imports torch, for `cuda` cuda-core, and nothing of evokernel. A `cpp` kernel
travels as its translation unit; a `cuda` kernel as the cubin for the architecture that it is verified for, and it runs on no other.
"""

from __future__ import annotations

import ast
import base64
import pprint
import re
import tempfile
import zlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import codec, targets
from ..archive.search import Filters
from ..archive.store import Archive
from ..errors import UsageError
from ..kernelfile import parse, resolve, shipped_gpus
from ..kernelfile.steps import Call, Fill, Launch, Plan, Step
from ..records import Device, Environment, Kernel, Precision, Role, Scalar, Status, Task, TensorSpec
from ..targets.cpp import LINK, compile_flags
from ..targets.cuda import CudaTarget, described
from ..targets.cuda_program import CudaLaunch
from ..targets.shims import shim_names, translation_unit

_PRELUDE = Path(targets.__file__).with_name("cpp_prelude.h")
_PARTS = ("dropin.py", "dropin_{}.py", "dropin_reference.py", "dropin_model.py")
_MARK = "# --- runtime ---\n"
_NEEDS = {
    "cpp": ("torch and g++", "no compiler"),
    "cuda": ("torch, cuda-core and a GPU of the architecture {}", "no GPU of this architecture"),
}
_GRAPHS = """
Everything runs on torch's current stream and may be captured in a CUDA graph, after one call outside of it. A graph keeps the weights as
they were prepared last: call model.refresh() after changing them, then replay.
"""


def verified_task(archive: Archive, kernel: Kernel, task_id: str | None) -> Task:
    """The task for which a kernel is verified.

    Raises:
        UsageError: for none, or for several and none is named.
    """
    entries = archive.entries(Filters(kernel_id=kernel.id, verified=True))
    tasks = {e.task_id: e for e in entries if e.task_id and e.verdict and e.verdict.status is Status.VERIFIED}
    if task_id:
        tasks = {i: e for i, e in tasks.items() if i.startswith(task_id)}
    if not tasks:
        raise UsageError(f"kernel {kernel.id} is not verified for {'task ' + task_id if task_id else 'any task'}; only verified kernels are exported")
    if len(tasks) > 1:
        listed = ", ".join(f"{i} ({e.task_name})" for i, e in tasks.items())
        raise UsageError(f"kernel {kernel.id} is verified for several tasks: {listed}; give --task ID")
    return archive.task(next(iter(tasks)))


def verified_on(archive: Archive, kernel: Kernel, task: Task) -> Environment:
    """Where a kernel is verified for a task: on this machine's GPU if it is, else where it is fastest.

    Raises:
        UsageError: nowhere.
    """
    entries = archive.entries(Filters(kernel_id=kernel.id, task_id=task.id, verified=True))
    made_on = [e.verdict.environment for e in entries if e.verdict]
    if not made_on:
        raise UsageError(f"kernel {kernel.id} is not verified for task {task.id}; only verified kernels are exported")
    target = targets.get(kernel.target)
    here = "" if target.available() else target.device().name
    return next((e for e in made_on if e.device == here), made_on[0])


def drop_in(task: Task, kernel: Kernel, environment: Environment | None = None) -> str:
    """The text of the drop-in file.

    `environment`: where the kernel is verified, which tells what GPU the file is for; this machine's when None. `cpp` kernels are compiled where
    they are used. A `cuda` kernel is compiled here, which needs no GPU.

    Raises:
        UsageError: the target, the plan, or the task's relative imports cannot be exported, or nothing is known of the GPU.
        JudgeError: NVRTC is missing.
        BuildError: the kernel does not compile.
    """
    if kernel.target not in _NEEDS:
        raise UsageError(f"kernels for {kernel.target} cannot be exported as a module; those for {' and '.join(_NEEDS)} can")
    _refuse_relative_imports(task.source)
    signature = task.signature
    cuda = kernel.target == "cuda"
    device = _verified_gpu(environment) if cuda and environment else targets.get(kernel.target).device()
    parsed = parse(kernel)
    plan = resolve(parsed, signature, device)
    sentinels: dict[str, Scalar] = {s.name: s.value for s in signature.scalars}
    varying = [s for s in signature.scalars if s.varies]
    for i, spec in enumerate(varying):
        sentinels[spec.name] = 7919 + i if isinstance(spec.value, int) else 7919.125 + i
    probe = resolve(parsed, signature, device, scalars=sentinels)
    dtypes = plan.dtypes(signature)
    launches, code = (_cuda_code if cuda else _cpp_code)(plan, dtypes, device)
    data = _Data(plan, {sentinels[s.name]: s.name for s in varying}, launches, task.options.precision is not Precision.STRICT)
    constants = {"SOURCE": task.source, "TASK": _task_data(task), "PLAN": data.plan(probe), **code}
    needs, misfits = _NEEDS[kernel.target]
    head = (
        f'"""A drop-in for the Model of {task.name!r}, made by evokernel from kernel {kernel.id} (task {task.id}).\n\n'
        "It takes the constructor arguments and the state_dict of the original, and falls back to the original with a warning where the kernel\n"
        "does not fit: other shapes, dtypes or strides, other constructor arguments or attributes than the task's, a train/eval mode that\n"
        f"changes the result, gradients, autocast, {misfits}.\n"
        f"It needs {needs.format(device.architecture)}. The reference, the kernel and its launch plan are data at the end of the file.\n\n"
        "Call model.refresh() after writing weights through `.data` or another alias that torch does not count as a change: weights that the\n"
        "kernel has prepared (folded, packed) would stay the old ones. Integer inputs are not checked to be in range: an index outside of its\n"
        f'table reads foreign memory instead of raising.\n{_GRAPHS if cuda else ""}"""\n'
    )
    parts = (Path(__file__).with_name(name.format(kernel.target)).read_text(encoding="utf-8") for name in _PARTS)
    runtime = "\n\n".join(re.sub(r"(?m)^from \.dropin\w* import .*\n", "", part.partition(_MARK)[2]) for part in parts)
    body = "\n".join(f"{name} = {pprint.pformat(value, width=140)}" for name, value in constants.items())
    made = f"_{kernel.target.capitalize()}Kernel(TASK, PLAN, {', '.join(code)})"
    return f"# ruff: noqa\n{head}\n{runtime}\n\n{body}\n\nModel = drop_in(SOURCE, __file__, __name__, {made})\n"


def _verified_gpu(environment: Environment) -> Device:
    """Raises: UsageError: it is neither shipped nor here."""
    if CudaTarget().available() is None and (here := CudaTarget().device()).name == environment.device:
        return here
    named = next((d for d in shipped_gpus() if d.name == environment.device), None)
    return replace(named, architecture=environment.architecture) if named else described(environment.architecture)


def _cpp_code(plan: Plan, dtypes: dict[str, str], _: Device) -> tuple[list[Any], dict[str, Any]]:
    """One entry a launch, and the constants from which the file's runtime makes the kernel."""
    unit = f"{_PRELUDE.read_text(encoding='utf-8')}\n{translation_unit(plan, dtypes)}"
    return list(shim_names(plan)), {"UNIT": unit, "COMPILE": list(compile_flags(plan)), "LINK": list(LINK)}


def _cuda_code(plan: Plan, dtypes: dict[str, str], device: Device) -> tuple[list[Any], dict[str, Any]]:
    with tempfile.TemporaryDirectory() as work:
        artifact = CudaTarget().build_for(plan, dtypes, Path(work), device.architecture)
        cubin = base64.b64encode(zlib.compress(Path(artifact.path).read_bytes(), 9))
    found = [codec.loads(CudaLaunch, text) for text in artifact.functions]
    launches = [{"symbol": f.symbol, "kinds": f.kinds, "opt_in_bytes": f.opt_in_bytes, **codec.encode(f.grid)} for f in found]
    return launches, {"CUBIN": cubin, "ARCHITECTURE": device.architecture, "SM_COUNT": device.sm_count}


def _refuse_relative_imports(source: str) -> None:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level:
            dots = "." * node.level + (node.module or "")
            raise UsageError(
                f"line {node.lineno} of the task imports relatively (`from {dots} import ...`), which an exported file cannot follow; "
                "make the import absolute, or copy what it needs into the task file, and judge it again"
            )


def _task_data(task: Task) -> dict[str, Any]:
    signature = task.signature
    return {
        "inputs": _specs(signature.inputs),
        "weights": _specs(signature.weights),
        "outputs": _specs(signature.outputs),
        "states": _specs(signature.of_role(Role.STATE)),
        "scalars": [{"name": s.name, "path": s.path, "value": s.value, "varies": s.varies} for s in signature.scalars],
        "result": signature.outputs_expr,
    }


def _specs(specs: Iterable[TensorSpec]) -> list[dict[str, Any]]:
    return [{"name": t.name, "path": t.path, "dtype": t.dtype, "shape": list(t.shape), "stride": list(t.stride)} for t in specs]


class _Data:
    """A plan as plain values; an argument that equals a sentinel is a scalar of the call."""

    def __init__(self, plan: Plan, names: dict[Scalar, str], launches: list[Any], tf32: bool) -> None:
        self._plan = plan
        self._names = names
        self._launches = launches
        self._numbers = iter(range(len(launches)))
        self._tf32 = tf32

    def plan(self, probe: Plan) -> dict[str, Any]:
        buffers = [{"name": b.name, "kind": b.kind, "dtype": b.dtype, "shape": list(b.shape), "zero": b.zero} for b in self._plan.buffers]
        prepare = [self._step(a, b) for a, b in zip(self._plan.prepare, probe.prepare, strict=True)]
        steps = [self._step(a, b) for a, b in zip(self._plan.steps, probe.steps, strict=True)]
        return {"launches": self._launches, "buffers": buffers, "prepare": [s for s in prepare if s], "steps": [s for s in steps if s]}

    def _step(self, step: Step, probe: Step) -> dict[str, Any] | None:
        if isinstance(step, Launch) and isinstance(probe, Launch):
            number = next(self._numbers)
            pairs = zip(step.args, probe.args, strict=True)
            args = [{"tensor": a.tensor} if a.tensor is not None else self._number(a.value, b.value) for a, b in pairs]
            self._same(step.enabled, probe.enabled)
            return {"launch": number, "args": args} if step.enabled else None
        if isinstance(step, Call) and isinstance(probe, Call):
            args = [self._argument(a, b) for a, b in zip(step.args, probe.args, strict=True)]
            kwargs = {a.name: self._argument(a.value, b.value) for a, b in zip(step.kwargs, probe.kwargs, strict=True)}
            self._same(step.enabled, probe.enabled)
            tf32 = self._tf32 or step.precision == "tf32"
            return {"op": step.op, "result": step.result, "args": args, "kwargs": kwargs, "tf32": tf32} if step.enabled else None
        return {"buffer": step.buffer, "value": step.value} if isinstance(step, Fill) else None

    def _number(self, value: object, probed: object) -> dict[str, Any]:
        if probed in self._names:
            return {"scalar": self._names[probed]}
        self._same(value, probed)
        return {"value": value}

    def _argument(self, value: object, probed: object) -> Any:
        """An argument of a library step: a view and a scalar of the call become dicts, other values stay."""
        found = self._number(value, probed)
        return found if "scalar" in found else codec.encode(value)

    def _same(self, value: object, probed: object) -> None:
        if value != probed:
            raise UsageError("this plan computes with a scalar that changes from call to call; pass the scalar itself to the function to export it")
