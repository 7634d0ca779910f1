"""The drop-in module, used as a user would: import the file, put it in the model's place."""

import importlib.util
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pytest
import torch

from evokernel.errors import UsageError
from evokernel.exports.module import drop_in
from evokernel.kernelfile import make_kernel
from evokernel.task import load_task

FIXTURES = Path(__file__).parent.parent / "cheats"


def exported(tmp_path: Path, task: str, kernel: str) -> Path:
    loaded = load_task(FIXTURES / "tasks" / f"{task}.py")
    text = (FIXTURES / "honest" / f"{kernel}.cpp").read_text()
    file = tmp_path / f"fast_{kernel}.py"
    file.write_text(drop_in(loaded.task, make_kernel(text, "cpp")))
    return file


def imported(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def fallbacks_are_errors() -> None:
    warnings.simplefilter("error", RuntimeWarning)


def test_same_constructor_state_and_answer(tmp_path: Path) -> None:
    module = imported(exported(tmp_path, "affine", "drawn_scalar"))
    torch.manual_seed(1)
    fast, reference = module.Model(256), module.Model.__bases__[0](256)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.uniform_(-1, 1)
    fast.load_state_dict(reference.state_dict())
    x = torch.randn(48, 256)
    with torch.no_grad():
        for alpha in (0.5, 1.25):
            got, expected = fast(x, alpha), reference(x, alpha)
            torch.testing.assert_close(got[0], expected[0])
            assert torch.equal(got[1], expected[1])


def test_prepared_weights_follow_the_parameters(tmp_path: Path) -> None:
    module = imported(exported(tmp_path, "linear", "prepared_weights"))
    model = module.Model(96)
    x = torch.randn(40, 96)
    with torch.no_grad():
        before = model(x)
        model.linear.weight.mul_(2.0)
        model.linear.bias.add_(1.0)
        after = model(x)
        torch.testing.assert_close(after, torch.relu(x @ model.linear.weight.T + model.linear.bias))
    assert not torch.allclose(before, after)


def test_a_vendor_call_and_strided_inputs(tmp_path: Path) -> None:
    with torch.no_grad():
        linear = imported(exported(tmp_path, "linear", "vendor_product")).Model(96)
        x = torch.randn(40, 96)
        torch.testing.assert_close(linear(x), torch.relu(x @ linear.linear.weight.T + linear.linear.bias))
        pieces = imported(exported(tmp_path, "pieces", "strided_gather")).Model()
        x, index = torch.randn(64, 96).t(), torch.randint(0, 96, (17,))
        picked, total, positive = pieces(x, index)
    assert torch.equal(picked, x[index]) and torch.equal(positive, x > 0)
    torch.testing.assert_close(total, x.sum())


def test_what_does_not_fit_goes_to_the_reference_with_a_warning(tmp_path: Path) -> None:
    model = imported(exported(tmp_path, "softmax", "plain_softmax")).Model()
    for x in (torch.randn(3, 520), torch.randn(64, 520, dtype=torch.float64), torch.randn(520, 64).t(), torch.randn(64 * 520 + 1)[1:].view(64, 520)):
        with pytest.warns(RuntimeWarning, match="the reference runs"):
            torch.testing.assert_close(model(x), torch.softmax(x, -1))
    needs_grad = torch.randn(64, 520, requires_grad=True)
    with pytest.warns(RuntimeWarning, match="gradients"):
        model(needs_grad).sum().backward()
    assert needs_grad.grad is not None


def test_inside_a_compiled_model(tmp_path: Path) -> None:
    module = imported(exported(tmp_path, "softmax", "plain_softmax"))

    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module.Model()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x * 2) + 1

    x = torch.randn(64, 520)
    with torch.no_grad():
        got = torch.compile(Outer(), backend="eager")(x)
    torch.testing.assert_close(got, torch.softmax(x * 2, -1) + 1)


def test_the_file_needs_nothing_of_evokernel(tmp_path: Path) -> None:
    file = exported(tmp_path, "softmax", "plain_softmax")
    code = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'evokernel':\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Block())\n"
        f"sys.path.insert(0, {str(file.parent)!r})\n"
        f"import torch, {file.stem} as m\n"
        "x = torch.randn(64, 520)\n"
        "torch.testing.assert_close(m.Model()(x), torch.softmax(x, -1))\n"
    )
    subprocess.run([sys.executable, "-W", "error::RuntimeWarning", "-c", code], check=True, timeout=120)


def test_a_plan_that_computes_with_a_drawn_scalar_is_refused_clearly(tmp_path: Path) -> None:
    loaded = load_task(FIXTURES / "tasks" / "affine.py")
    text = (FIXTURES / "honest" / "drawn_scalar.cpp").read_text().replace("out1, alpha,", "out1, alpha * 2,")
    with pytest.raises(UsageError, match="pass the scalar itself"):
        drop_in(loaded.task, make_kernel(text, "cpp"))
