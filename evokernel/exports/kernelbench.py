"""`evokernel export kernelbench`: a CUDA kernel as the text that KernelBench takes, a `ModelNew` that builds the device code with `load_inline`.

The launch plan becomes a small C++ function (kernelbench.cu is its frame). Buffers come from torch, launches go to the current stream. The sizes are
those that the kernel was verified for; other shapes are refused by the function itself.
"""

from __future__ import annotations

import ast
from pathlib import Path
from string import Template

from ..errors import UsageError
from ..kernelfile import parse, resolve
from ..kernelfile.steps import Arg, Buffer, Launch, Plan
from ..records import Environment, Kernel, Role, Signature, Task, TensorSpec
from ..targets.cuda_source import prepared
from .module import verified_gpu

_QUOTES = "'''"
_FRAME = Path(__file__).with_name("kernelbench.cu")
_TORCH_TYPES = {
    "float64": "kFloat64", "float32": "kFloat32", "float16": "kFloat16", "bfloat16": "kBFloat16", "int64": "kInt64", "int32": "kInt32",
    "int16": "kInt16", "int8": "kInt8", "uint8": "kUInt8", "bool": "kBool",
}  # fmt: skip
INTEGERS = ("int64", "int32", "int16", "int8", "uint8", "bool")


def kernelbench_file(task: Task, kernel: Kernel, environment: Environment) -> str:
    """The whole file. `environment`: where the kernel is verified, which tells what GPU its grid is for.

    Raises:
        UsageError: not a CUDA kernel, or its plan is more than launches on the call's tensors.
    """
    if kernel.target != "cuda":
        raise UsageError(f"KernelBench runs CUDA kernels; {kernel.id} is for {kernel.target}: `evokernel export module` takes it")
    device = verified_gpu(environment)
    made = model_new(task, resolve(parse(kernel), task.signature, device), f"evokernel_{kernel.id}")
    how = "judged BY FORCE, which proves nothing," if environment.forced else "verified"
    return f"# ModelNew for KernelBench, made by evokernel from kernel {kernel.id} (task {task.id}), {how} on {environment.device}.\n{made}"


def model_new(task: Task, plan: Plan, name: str) -> str:
    """The task's module, the extension (called `name`), and `ModelNew` with the same constructor and parameters.

    Raises:
        UsageError: the plan has other steps than launches, a scalar that changes from call to call, or buffers that forward changes.
    """
    signature = task.signature
    given = [*signature.inputs, *signature.weights]
    arguments = _forward_arguments(task)
    self_ = arguments.args[0].arg
    passed = [cast(t) for t in signature.inputs] + [f"attrgetter({t.path!r})({self_})" for t in signature.weights]
    outputs = ", ".join(t.name for t in signature.outputs)
    fixed = "".join(f"        assert {s.path} == {s.value!r}, 'the kernel is for another {s.name}'\n" for s in signature.scalars)
    source = cuda_source(plan, signature)
    return (
        f"{task.source}\n\nfrom operator import attrgetter\n\nfrom torch.utils.cpp_extension import load_inline\n\n"
        f"CUDA_SOURCE = {repr(source) if _QUOTES in source else f'r{_QUOTES}{source}{_QUOTES}'}\n"
        f"EXTENSION = load_inline(name={name!r}, cpp_sources={_head(given) + ';'!r}, cuda_sources=CUDA_SOURCE, functions=['run'])\n\n\n"
        f"class ModelNew(Model):\n    def forward({ast.unparse(arguments)}):\n{fixed}"
        f"        [{outputs}] = EXTENSION.run({', '.join(passed)})\n        return {signature.outputs_expr}\n"
    )


def cuda_source(plan: Plan, signature: Signature) -> str:
    """Device code and launcher as one CUDA file with a function `run(inputs..., weights...)` that gives the outputs.

    Raises:
        UsageError: as `model_new`.
    """
    if plan.prepare or not all(isinstance(step, Launch) for step in plan.steps):
        raise UsageError("the plan prepares weights, or calls the vendor's library; `evokernel export module` takes such kernels")
    if signature.of_role(Role.STATE) or any(s.varies for s in signature.scalars) or not (signature.inputs or signature.weights):
        raise UsageError("forward changes buffers, takes a scalar that changes, or takes no tensor; `evokernel export module` takes such kernels")
    source = prepared(plan.code)
    given = [*signature.inputs, *signature.weights]
    lines = [f"check({t.name}, {_quoted(t.path)}, {_list(t.shape)}, {_list(t.stride)}, torch::{_TORCH_TYPES[t.dtype]});" for t in given]
    lines += [f"auto {t.name} = at::empty_strided({_list(t.shape)}, {_list(t.stride)}, {_beside(t, given[0])});" for t in signature.outputs]
    lines += [f"auto {b.name} = torch::{'zeros' if b.zero else 'empty'}({_list(b.shape)}, {_beside(b, given[0])});" for b in plan.buffers]
    lines += [_launched(step) for step in plan.steps if isinstance(step, Launch) and step.enabled]
    lines.append(f"return {{{', '.join(t.name for t in signature.outputs)}}};")
    includes = "".join(f"#include <{header}>\n" for header in source.headers)
    return Template(_FRAME.read_text(encoding="utf-8")).substitute(headers=includes, code=source.code, head=_head(given), body="\n    ".join(lines))


def cast(tensor: TensorSpec) -> str:
    """The expression of an input; KernelBench's evaluator hands all tensors over as floats, so integer ones are turned back."""
    return f"{tensor.path}.to(torch.{tensor.dtype})" if tensor.dtype in INTEGERS else tensor.path


def _forward_arguments(task: Task) -> ast.arguments:
    for node in ast.parse(task.source).body:
        if isinstance(node, ast.ClassDef) and node.name == "Model":
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name == "forward":
                    return item.args
    raise UsageError(f"task {task.name} does not define forward in its class Model; write it there, and judge the kernel again")


def _head(given: list[TensorSpec]) -> str:
    return f"std::vector<torch::Tensor> run({', '.join(f'torch::Tensor {t.name}' for t in given)})"


def _beside(made: TensorSpec | Buffer, given: TensorSpec) -> str:
    return f"{given.name}.options().dtype(torch::{_TORCH_TYPES[made.dtype]})"


def _launched(step: Launch) -> str:
    grid = step.grid
    assert grid is not None
    attributes = [f"cluster({', '.join(map(str, grid.cluster))})"] if grid.cluster else []
    attributes += ["flag(cudaLaunchAttributeCooperative)"] if grid.cooperative else []
    attributes += ["flag(cudaLaunchAttributeProgrammaticStreamSerialization)"] if grid.pdl else []
    shape = ", ".join(f"dim3({', '.join(map(str, size))})" for size in (grid.grid, grid.block))
    arguments = ", ".join(["", *map(_argument, step.args)])
    return f"launch(candidate::{step.function}, {shape}, {grid.smem_bytes}, {{{', '.join(attributes)}}}{arguments});"


def _argument(arg: Arg) -> str:
    if arg.tensor is not None:
        return f"Address{{{arg.tensor}.data_ptr()}}"
    return str(arg.value).lower() if isinstance(arg.value, bool | int) else repr(arg.value)


def _list(numbers: tuple[int, ...]) -> str:
    return f"{{{', '.join(map(str, numbers))}}}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
