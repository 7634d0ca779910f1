"""`evokernel export module`: verified kernels as one Python file with a drop-in torch.nn.Module.

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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import codec, targets
from ..archive.search import Filters
from ..archive.store import Archive
from ..errors import UsageError
from ..kernelfile import parse, resolve, shipped_gpus
from ..kernelfile.steps import Call, Fill, Launch, Plan, Step
from ..records import Device, Environment, Kernel, Precision, Role, Scalar, Task, TensorSpec
from ..targets.cpp import LINK, compile_flags
from ..targets.cuda import CudaTarget, described
from ..targets.cuda_program import CudaLaunch
from ..targets.shims import shim_names, translation_unit

_PRELUDE = Path(targets.__file__).with_name("cpp_prelude.h")
_PARTS = ("dropin.py", "dropin_{}.py", "dropin_reference.py", "dropin_model.py")
_MARK = "# --- runtime ---\n"
_NEEDS = {"cpp": ("torch and g++", "no compiler"), "cuda": ("torch, cuda-core and a GPU of the architecture {}", "no GPU of this architecture")}
_GRAPHS = """
Everything runs on torch's current stream and may be captured in a CUDA graph, after one call outside of it. A graph keeps the weights as
they were prepared last: call model.refresh() after changing them, then replay.
"""


@dataclass(frozen=True)
class Verified:
    """A kernel, a task for which it is verified, and where: on this machine's device if it is, else where it is fastest."""

    task: Task
    kernel: Kernel
    environment: Environment


def verified(archive: Archive, id_prefix: str, task: str | None) -> Verified:
    """`task`: a name, or an id's first digits.

    Raises:
        UsageError: no such kernel; or it is verified for no task, or for several and none is named.
    """
    kernel = archive.find(id_prefix)
    entries = archive.entries(Filters(kernel_id=kernel.id, verified=True))
    of_task = [e for e in entries if task in (None, e.task_name) or (e.task_id or "").startswith(task or "")]
    made_on = [(e.task_id, e.task_name, e.verdict.environment) for e in of_task if e.task_id and e.verdict]
    tasks = {i: name for i, name, _ in made_on}
    if not tasks:
        raise UsageError(f"kernel {kernel.id} is not verified for {'task ' + task if task else 'any task'}; only verified kernels are exported")
    if len(tasks) > 1:
        listed = ", ".join(f"{i} ({name})" for i, name in tasks.items())
        raise UsageError(f"kernel {kernel.id} is verified for several tasks: {listed}; give --task with one of the ids")
    target = targets.get(kernel.target)
    here = "" if target.available() else target.device().name
    environments = [environment for _, _, environment in made_on]
    return Verified(archive.task(next(iter(tasks))), kernel, next((e for e in environments if e.device == here), environments[0]))


def drop_in(task: Task, kernel: Kernel, environment: Environment | None = None) -> str:
    """The text of the drop-in file of one kernel; see `drop_in_of`."""
    return drop_in_of([(task, kernel, environment)])


def drop_in_of(choices: Sequence[tuple[Task, Kernel, Environment | None]]) -> str:
    """The text of the drop-in file: of one kernel, or of several for the same Model (other shapes, dtypes or devices), of which a call takes the
    first that fits.

    Each environment says where the kernel is verified, and so what GPU the file is for; this machine's when None. `cpp` kernels are compiled where
    they are used. A `cuda` kernel is compiled here, which needs no GPU.

    Raises:
        UsageError: the target, the plan, or the task's relative imports cannot be exported, nothing is known of the GPU, or the Models differ.
        JudgeError: NVRTC is missing.
        BuildError: the kernel does not compile.
    """
    first = choices[0][0]
    for task, kernel, _ in choices:
        if kernel.target not in _NEEDS:
            raise UsageError(f"kernels for {kernel.target} cannot be exported as a module; those for {' and '.join(_NEEDS)} can")
        _refuse_relative_imports(task.source)
        if model_definition(task.source) != model_definition(first.source):
            raise UsageError(f"tasks {first.name} ({first.id}) and {task.name} ({task.id}) do not define the same Model; export them one by one")
    constants: dict[str, Any] = {}
    made, needs = [], []
    for number, (task, kernel, environment) in enumerate(choices, 1):
        device = verified_gpu(environment) if kernel.target == "cuda" and environment else targets.get(kernel.target).device()
        mark = f"_{number}" if number > 1 else ""
        data, code = _kernel_data(task, kernel, device)
        constants |= {f"{name}{mark}": value for name, value in {**data, **code}.items()}
        made.append(f"(SOURCE{mark}, _{kernel.target.capitalize()}Kernel({', '.join(f'{n}{mark}' for n in ('TASK', 'PLAN', *code))}))")
        unproven = ", AND IS NOT PROVEN TO BE RIGHT: it was judged by force" * bool(environment and environment.forced)
        needs.append(f"{kernel.id} (task {task.id}) needs {_NEEDS[kernel.target][0].format(device.architecture)}{unproven}")
    used = sorted({kernel.target for _, kernel, _ in choices})
    names = [name.format(target) for name in _PARTS for target in (used if "{}" in name else used[:1])]
    parts = (Path(__file__).with_name(name).read_text(encoding="utf-8") for name in names)
    runtime = "\n\n".join(re.sub(r"(?m)^from \.dropin\w* import .*\n", "", part.partition(_MARK)[2]) for part in parts)
    body = "\n".join(f"{name} = {pprint.pformat(value, width=140)}" for name, value in constants.items())
    head = _head(first, needs, used)
    return f"# ruff: noqa\n{head}\n{runtime}\n\n{body}\n\nModel = drop_in(__file__, __name__, {', '.join(made)})\n"


def model_definition(source: str) -> list[str]:
    """What a task's Model is made of: the statements of the file without get_inputs, get_init_inputs and what only they use."""
    body = [n for n in ast.parse(source).body if getattr(n, "name", "") not in ("get_inputs", "get_init_inputs")]
    kept: list[ast.stmt] = [n for n in body if isinstance(n, ast.ClassDef | ast.FunctionDef)]
    while more := [n for n in body if n not in kept and _bound(n) & {u.id for k in kept for u in ast.walk(k) if isinstance(u, ast.Name)}]:
        kept += more
    return sorted(map(ast.dump, kept))


def _bound(statement: ast.stmt) -> set[str]:
    nodes = list(ast.walk(statement))
    names = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return names | {(n.asname or n.name).partition(".")[0] for n in nodes if isinstance(n, ast.alias)}


def _head(task: Task, needs: list[str], used: list[str]) -> str:
    misfits = " or ".join(_NEEDS[target][1] for target in used)
    return (
        f'"""A drop-in for the Model of {task.name!r}, made by evokernel. A call takes the first of its kernels that fits:\n\n'
        + "".join(f"- {line}.\n" for line in needs)
        + "\nIt takes the constructor arguments and the state_dict of the original, and falls back to the original with a warning where no kernel\n"
        "fits: other shapes, dtypes or strides, other constructor arguments or attributes than the task's, a train/eval mode that\n"
        f"changes the result, gradients, autocast, {misfits}.\n"
        "The reference, the kernels and their launch plans are data at the end of the file.\n\n"
        "Call model.refresh() after writing weights through `.data` or another alias that torch does not count as a change: weights that a\n"
        "kernel has prepared (folded, packed) would stay the old ones. Integer inputs are not checked to be in range: an index outside of its\n"
        f'table reads foreign memory instead of raising.\n{_GRAPHS if "cuda" in used else ""}"""\n'
    )


def _kernel_data(task: Task, kernel: Kernel, device: Device) -> tuple[dict[str, Any], dict[str, Any]]:
    """The constants of one kernel in the file: source, task and plan; and the code."""
    signature, parsed = task.signature, parse(kernel)
    plan = resolve(parsed, signature, device)
    sentinels: dict[str, Scalar] = {s.name: s.value for s in signature.scalars}
    varying = [s for s in signature.scalars if s.varies]
    for i, spec in enumerate(varying):
        sentinels[spec.name] = 7919 + i if isinstance(spec.value, int) else 7919.125 + i
    probe = resolve(parsed, signature, device, scalars=sentinels)
    launches, code = (_cuda_code if kernel.target == "cuda" else _cpp_code)(plan, plan.dtypes(signature), device)
    data = _Data(plan, {sentinels[s.name]: s.name for s in varying}, launches, task.options.precision is not Precision.STRICT)
    return {"SOURCE": task.source, "TASK": _task_data(task), "PLAN": data.plan(probe)}, code


def verified_gpu(environment: Environment) -> Device:
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
        artifact = CudaTarget().build(plan, dtypes, Path(work), device)
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
