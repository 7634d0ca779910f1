import ast
from dataclasses import replace
from pathlib import Path

import pytest

from evokernel.archive.shipped import read_manifest
from evokernel.errors import UsageError
from evokernel.exports.kernelbench import kernelbench_file
from evokernel.kernelfile import make_kernel
from evokernel.records import ScalarSpec

ROOT = Path(__file__).parents[2] / "archive"
SEEDS = {entry.file: entry for entry in read_manifest(ROOT)}


def written(file: str, **changed: object) -> str:
    entry = SEEDS[file]
    task = entry.task
    if changed:
        task = replace(task, variants=(replace(task.signature, **changed),))
    kernel = make_kernel((ROOT / file).read_text(), "cuda")
    return kernelbench_file(task, kernel, entry.verdict.environment)


@pytest.mark.parametrize("file", ["linear_relu/split_k_cluster.cu", "max_and_argmax/first_of_equals.cu", "embedding_bag/groups_share_a_bag.cu"])
def test_the_file_has_the_tasks_model_the_device_code_and_a_forward_like_its_own(file: str) -> None:
    text = written(file)
    tree = ast.parse(text)
    classes = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)}
    forwards = {name: next(m for m in node.body if getattr(m, "name", "") == "forward") for name, node in classes.items() if name.startswith("Model")}
    assert ast.dump(forwards["Model"].args) == ast.dump(forwards["ModelNew"].args)
    assert ast.unparse(classes["ModelNew"].bases[0]) == "Model" and "get_inputs" in text
    source = (ROOT / file).read_text()
    assert text.count("__global__") == source.count("__global__") and "$" not in text.partition("CUDA_SOURCE")[2].replace(source, "")


def test_several_outputs_come_back_as_the_task_returns_them() -> None:
    assert "[out0, out1] = EXTENSION.run(x)\n        return (out0, out1)" in written("max_and_argmax/first_of_equals.cu")


def test_fixed_scalars_are_checked_and_varying_ones_refused() -> None:
    assert "assert x.flag == 3" in written("softmax/row_in_registers.cu", scalars=(ScalarSpec("flag", "x.flag", 3),))
    with pytest.raises(UsageError, match="export module"):
        written("softmax/row_in_registers.cu", scalars=(ScalarSpec("flag", "x.flag", 3, varies=True),))


def test_plans_that_are_more_than_launches_are_refused() -> None:
    with pytest.raises(UsageError, match="export module"):
        written("linear_relu/library_product_relu_in_place.cu")
    entry = SEEDS["softmax/row_buffer_streaming_store.cpp"]
    with pytest.raises(UsageError, match="CUDA kernels"):
        kernelbench_file(entry.task, make_kernel((ROOT / entry.file).read_text(), "cpp"), entry.verdict.environment)
