"""A kernel file as the text that KernelBench takes: a `ModelNew` that builds the same device code with `load_inline` and launches it.

The launch plan becomes a small C++ function; buffers come from torch, and launches go to the default stream, as in KernelBench's own examples.
"""

from __future__ import annotations

from evokernel.kernelfile.steps import Arg, Launch, Plan
from evokernel.records import Signature, Task, TensorSpec
from evokernel.targets.cuda_source import prepared

_HEAD = """#include <torch/extension.h>
#include <cuda_runtime.h>
#include <c10/cuda/CUDAException.h>
"""
_LAUNCH = """
struct Address {
    void* at;
    template <class T> operator T*() const { return static_cast<T*>(at); }
};

template <class... P, class... A>
void launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, std::vector<cudaLaunchAttribute> attributes, A... arguments)
{
    if (shared) C10_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.attrs = attributes.data();
    config.numAttrs = attributes.size();
    C10_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, arguments...));
}

cudaLaunchAttribute cluster(unsigned x, unsigned y, unsigned z)
{
    cudaLaunchAttribute found = {};
    found.id = cudaLaunchAttributeClusterDimension;
    found.val.clusterDim = {x, y, z};
    return found;
}

cudaLaunchAttribute flag(cudaLaunchAttributeID id)
{
    cudaLaunchAttribute found = {};
    found.id = id;
    (id == cudaLaunchAttributeCooperative ? found.val.cooperative : found.val.programmaticStreamSerializationAllowed) = 1;
    return found;
}
"""
_TORCH_TYPES = {
    "float64": "kFloat64", "float32": "kFloat32", "float16": "kFloat16", "bfloat16": "kBFloat16", "int64": "kInt64", "int32": "kInt32",
    "int16": "kInt16", "int8": "kInt8", "uint8": "kUInt8", "bool": "kBool",
}  # fmt: skip
INTEGERS = ("int64", "int32", "int16", "int8", "uint8", "bool")


def cuda_source(plan: Plan, signature: Signature) -> str:
    """Device code and launcher as one CUDA file with a function `run(inputs..., weights...)`.

    Raises:
        ValueError: the plan has steps that are no launches, or several outputs.
    """
    if plan.prepare or not all(isinstance(step, Launch) for step in plan.steps) or len(signature.outputs) != 1:
        raise ValueError("only plans of launches alone, with one output, are translated")
    source = prepared(plan.code)
    includes = "".join(f"#include <{header}>\n" for header in source.headers)
    given = [*signature.inputs, *signature.weights]
    made = [(t.name, t.dtype, t.shape, False) for t in signature.outputs] + [(b.name, b.dtype, b.shape, b.zero) for b in plan.buffers]
    lines = [f"auto {name} = {_made(dtype, shape, zero, given[0])};" for name, dtype, shape, zero in made]
    lines += [_launched(step) for step in plan.steps if isinstance(step, Launch) and step.enabled]
    body = "\n    ".join([*lines, f"return {signature.outputs[0].name};"])
    return f"{_HEAD}{includes}\nnamespace candidate {{\n{source.code}\n}}\n{_LAUNCH}\n{_head(given)}\n{{\n    {body}\n}}\n"


def model_new(task: Task, plan: Plan, name: str) -> str:
    """The whole custom program: the task's module, the extension, and `ModelNew` with the same parameters."""
    signature = task.signature
    inputs = ", ".join(t.name for t in signature.inputs)
    passed = [_given(t) for t in signature.inputs] + [f"self.get_parameter({t.path!r})" for t in signature.weights]
    return (
        f"{task.source}\n\nfrom torch.utils.cpp_extension import load_inline\n\n"
        f"CUDA_SOURCE = r'''{cuda_source(plan, signature)}'''\n"
        f"EXTENSION = load_inline(name={name!r}, cpp_sources={_head([*signature.inputs, *signature.weights]) + ';'!r}, "
        f"cuda_sources=CUDA_SOURCE, functions=['run'])\n\n\n"
        f"class ModelNew(Model):\n    def forward(self, {inputs}):\n        return EXTENSION.run({', '.join(passed)})\n"
    )


def reference(task: Task) -> str:
    """The task as KernelBench's evaluator can run it: it hands all inputs over as floats, so integer ones are turned back."""
    inputs = task.signature.inputs
    if not any(t.dtype in INTEGERS for t in inputs):
        return task.source
    names, given = ", ".join(t.name for t in inputs), ", ".join(map(_given, inputs))
    return f"{task.source}\n\nclass Given(Model):\n    def forward(self, {names}):\n        return super().forward({given})\n\n\nModel = Given\n"


def _given(tensor: TensorSpec) -> str:
    return f"{tensor.name}.to(torch.{tensor.dtype})" if tensor.dtype in INTEGERS else tensor.name


def _head(given: list[TensorSpec]) -> str:
    return f"torch::Tensor run({', '.join(f'torch::Tensor {t.name}' for t in given)})"


def _made(dtype: str, shape: tuple[int, ...], zero: bool, beside: TensorSpec) -> str:
    return f"torch::{'zeros' if zero else 'empty'}({{{', '.join(map(str, shape))}}}, {beside.name}.options().dtype(torch::{_TORCH_TYPES[dtype]}))"


def _launched(step: Launch) -> str:
    grid = step.grid
    assert grid is not None
    attributes = [f"cluster({', '.join(map(str, grid.cluster))})"] if grid.cluster else []
    attributes += ["flag(cudaLaunchAttributeCooperative)"] if grid.cooperative else []
    attributes += ["flag(cudaLaunchAttributeProgrammaticStreamSerialization)"] if grid.pdl else []
    shape = ", ".join(f"dim3({', '.join(map(str, size))})" for size in (grid.grid, grid.block))
    arguments = ", ".join(map(_argument, step.args))
    return f"launch(candidate::{step.function}, {shape}, {grid.smem_bytes}, {{{', '.join(attributes)}}}, {arguments});"


def _argument(arg: Arg) -> str:
    if arg.tensor is not None:
        return f"Address{{{arg.tensor}.data_ptr()}}"
    return str(arg.value).lower() if isinstance(arg.value, bool | int) else repr(arg.value)
