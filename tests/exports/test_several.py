"""One drop-in file with several kernels: a call takes the first that fits."""

import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch._dynamo

from evokernel.errors import UsageError
from evokernel.exports.module import drop_in_of, model_definition
from evokernel.kernelfile import make_kernel
from evokernel.task import load_task
from tests.exports.test_module import FIXTURES, imported

TASKS, HONEST = FIXTURES / "tasks", FIXTURES / "honest"


@pytest.fixture
def several(tmp_path: Path) -> Path:
    """Softmax kernels for the task's own shape and for a smaller one."""
    kernel = make_kernel((HONEST / "plain_softmax.cpp").read_text(), "cpp")
    source = (TASKS / "softmax.py").read_text()
    small = tmp_path / "small.py"
    small.write_text(source.replace("64, 520", "8, 40"))
    assert small.read_text() != source
    choices = [(load_task(path).task, kernel, None) for path in (TASKS / "softmax.py", small)]
    file = tmp_path / "fast_several.py"
    file.write_text(drop_in_of(choices))
    return file


def test_each_call_takes_the_first_kernel_that_fits(several: Path) -> None:
    model = imported(several).Model()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error", RuntimeWarning)
        for shape in ((64, 520), (8, 40)):
            x = torch.randn(shape)
            torch.testing.assert_close(model(x), torch.softmax(x, -1))
    with torch.no_grad(), pytest.warns(RuntimeWarning, match=r"520.*;.*40"):
        torch.testing.assert_close(model(torch.ones(3, 5)), torch.softmax(torch.ones(3, 5), -1))
    model.refresh()


def test_under_torch_compile_too(several: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(several.parent))
    monkeypatch.delitem(sys.modules, several.stem, raising=False)
    model = __import__(several.stem).Model()
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=False)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error", RuntimeWarning)
        for shape in ((64, 520), (8, 40)):
            x = torch.randn(shape)
            torch.testing.assert_close(compiled(x), torch.softmax(x, -1))


def test_only_the_same_model_may_have_several(tmp_path: Path) -> None:
    task = load_task(TASKS / "softmax.py").task
    kernel = make_kernel((HONEST / "plain_softmax.cpp").read_text(), "cpp")
    other = replace(task, source=task.source.replace("softmax(", "log_softmax("))
    with pytest.raises(UsageError, match="the same Model"):
        drop_in_of([(task, kernel, None), (other, kernel, None)])


def test_what_only_inputs_use_is_no_part_of_a_model() -> None:
    model, inputs = "class Model(torch.nn.Module):\n    e = HALF\n", "def get_inputs():\n    return [torch.ones(ROWS)]\n"
    source = f"import torch\nROWS = {{}}\nEPS = {{}}\nHALF = EPS / 2\n{model}{inputs}"
    assert model_definition(source.format(4, 1)) == model_definition(source.format(8, 1)) != model_definition(source.format(4, 2))
