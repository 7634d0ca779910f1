"""`evokernel export module`: a verified kernel as one Python file with a drop-in torch.nn.Module.

The file holds the task's source (the reference, for construction, state and fallback), the translation unit, the resolved plan as
data, and the runtime of dropin.py. It imports torch and nothing of evokernel.
"""

from __future__ import annotations

import ast
import pprint
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .. import targets
from ..archive.search import Filters
from ..archive.store import Archive
from ..codec import encode
from ..errors import UsageError
from ..kernelfile import parse, resolve
from ..kernelfile.steps import Arg, Call, Launch, Plan, Step
from ..records import Kernel, Role, Scalar, Status, Task, TensorSpec
from ..targets.cpp import LINK, compile_flags
from ..targets.shims import shim_names, translation_unit

_PRELUDE = Path(targets.__file__).with_name("cpp_prelude.h")
_MARK = "# --- runtime ---\n"


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


def drop_in(task: Task, kernel: Kernel) -> str:
    """The text of the drop-in file.

    Raises:
        UsageError: the kernel's target or plan, or the task's relative imports, cannot be exported.
    """
    if kernel.target != "cpp":
        raise UsageError(f"kernels for {kernel.target} cannot be exported as a module yet")
    _refuse_relative_imports(task.source)
    signature = task.signature
    device = targets.get(kernel.target).device()
    parsed = parse(kernel)
    plan = resolve(parsed, signature, device)
    sentinels: dict[str, Scalar] = {s.name: s.value for s in signature.scalars}
    varying = [s for s in signature.scalars if s.varies]
    for i, spec in enumerate(varying):
        sentinels[spec.name] = 7919 + i if isinstance(spec.value, int) else 7919.125 + i
    probe = resolve(parsed, signature, device, scalars=sentinels)
    dtypes = {t.name: t.dtype for t in signature.tensors} | {b.name: b.dtype for b in plan.buffers}
    unit = f"{_PRELUDE.read_text(encoding='utf-8')}\n{translation_unit(plan, dtypes)}"
    data = _Data(plan, {sentinels[s.name]: s.name for s in varying})
    constants = {
        "SOURCE": task.source, "UNIT": unit, "COMPILE": list(compile_flags(plan)), "LINK": list(LINK),
        "TASK": _task_data(task), "PLAN": data.plan(probe),
    }  # fmt: skip
    head = (
        f'"""A drop-in for the Model of {task.name!r}, made by evokernel from kernel {kernel.id} (task {task.id}).\n\n'
        "It takes the constructor arguments and the state_dict of the original, needs torch and g++, and falls back to the original\n"
        "with a warning where the kernel does not fit: other shapes, dtypes or strides, other constructor arguments or attributes than the\n"
        "task's, a train/eval mode that changes the result, gradients, no compiler. The reference, the kernel and its launch plan are data at\n"
        "the end of the file.\n\n"
        "Call model.refresh() after writing weights through `.data` or another alias that torch does not count as a change: weights that the\n"
        "kernel has prepared (folded, packed) would stay the old ones. Integer inputs are not checked to be in range: an index outside of its\n"
        'table reads foreign memory instead of raising.\n"""\n'
    )
    runtime = (Path(__file__).with_name("dropin.py")).read_text(encoding="utf-8").partition(_MARK)[2]
    body = "\n".join(f"{name} = {pprint.pformat(value, width=140)}" for name, value in constants.items())
    return f"# ruff: noqa\n{head}\n{runtime}\n\n{body}\n\nModel = drop_in(SOURCE, __file__, __name__, _Kernel(UNIT, COMPILE, LINK, TASK, PLAN))\n"


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

    def __init__(self, plan: Plan, names: dict[Scalar, str]) -> None:
        self._plan = plan
        self._names = names
        self._symbols = iter(shim_names(plan))

    def plan(self, probe: Plan) -> dict[str, Any]:
        buffers = [{"name": b.name, "kind": b.kind, "dtype": b.dtype, "shape": list(b.shape), "zero": b.zero} for b in self._plan.buffers]
        prepare = [self._step(a, b) for a, b in zip(self._plan.prepare, probe.prepare, strict=True)]
        steps = [self._step(a, b) for a, b in zip(self._plan.steps, probe.steps, strict=True)]
        return {"buffers": buffers, "prepare": [s for s in prepare if s], "steps": [s for s in steps if s]}

    def _step(self, step: Step, probe: Step) -> dict[str, Any] | None:
        if isinstance(step, Launch) and isinstance(probe, Launch):
            symbol = next(self._symbols)
            args = [self._arg(a, b) for a, b in zip(step.args, probe.args, strict=True)]
            self._same(step.enabled, probe.enabled)
            return {"symbol": symbol, "args": args} if step.enabled else None
        if isinstance(step, Call):
            kwargs = {k.name: encode(k.value) for k in step.kwargs}
            return {"op": step.op, "result": step.result, "args": encode(step.args), "kwargs": kwargs} if step.enabled else None
        return {"buffer": step.buffer, "value": step.value} if not isinstance(step, Launch) else None

    def _arg(self, arg: Arg, probe: Arg) -> dict[str, Any]:
        if arg.tensor is not None:
            return {"tensor": arg.tensor}
        if probe.value in self._names:
            return {"scalar": self._names[probe.value]}
        self._same(arg.value, probe.value)
        return {"value": arg.value}

    def _same(self, value: object, probed: object) -> None:
        if value != probed:
            raise UsageError("this plan computes with a scalar that changes from call to call; pass the scalar itself to the function to export it")
