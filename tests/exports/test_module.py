"""The drop-in module, used as a user would: import the file, put it in the model's place."""

import contextlib
import importlib.util
import io
import pickle
import subprocess
import sys
import textwrap
import threading
import warnings
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch._dynamo

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


def made(tmp_path: Path, source: str, kernel: str) -> ModuleType:
    task, file = tmp_path / "task.py", tmp_path / "fast_made.py"
    task.write_text(textwrap.dedent(source))
    file.write_text(drop_in(load_task(task).task, make_kernel(textwrap.dedent(kernel), "cpp")))
    return imported(file)


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
    with pytest.warns(RuntimeWarning, match="autocast"), torch.autocast("cpu", torch.bfloat16):
        model(torch.randn(64, 520))


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


def importable(file: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Imported by its name, which torch.compile needs to put the kernel into its graph."""
    monkeypatch.syspath_prepend(str(file.parent))
    module = importlib.import_module(file.stem)
    monkeypatch.setitem(sys.modules, file.stem, module)
    return module


class Doubled(torch.nn.Module):
    """A larger model with a drop-in inside."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x * 2) + 1


@torch._dynamo.config.patch(recompile_limit=32)
def test_one_graph_with_all_guards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one graph, and each change of what the kernel has baked in is noticed by code that is compiled already."""
    made(tmp_path, SLOPES, SLOPES_KERNEL)
    model = importable((tmp_path / "fast_made.py").rename(tmp_path / "fast_in_one_graph.py"), monkeypatch).Model(16)
    compiled = torch.compile(Doubled(model), backend="aot_eager", fullgraph=True)

    def check(warning: str = "", slope: float = 0.1, eps: float = 0.5, rows: int = 8) -> None:
        x = torch.randn(rows, 16)
        with torch.no_grad(), pytest.warns(RuntimeWarning, match=warning) if warning else contextlib.nullcontext():
            torch.testing.assert_close(compiled(x), torch.where(x > 0, 2 * x, 2 * x * slope) + eps + 1)

    check()
    check("shape and strides", rows=4)
    model.slope = 0.9
    check("slope = 0.1", slope=0.9)
    model.slope, model.norm.eps = 0.1, 2.0
    check(r"norm.eps = 0.5", eps=2.0)
    model.norm.eps = 0.5
    check()
    check()
    model.eval()
    check()
    model.norm = torch.nn.ReLU()
    model.norm.eps = 0.5
    check("another class")
    model.norm = torch.nn.Identity()
    model.norm.eps = 0.5
    x = torch.randn(8, 16, requires_grad=True)
    with pytest.warns(RuntimeWarning, match="gradients"):
        compiled(x).sum().backward()
    assert x.grad is not None
    with torch.autocast("cpu", torch.bfloat16):
        check("autocast")
    check()


def test_one_graph_with_strided_inputs_scalars_and_library_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    affine = importable(exported(tmp_path, "affine", "drawn_scalar"), monkeypatch).Model(256)
    linear = importable(exported(tmp_path, "linear", "vendor_product"), monkeypatch).Model(96)
    pieces = importable(exported(tmp_path, "pieces", "strided_gather"), monkeypatch).Model()
    compiled = [torch.compile(m, backend="aot_eager", fullgraph=True) for m in (affine, linear, pieces)]
    with torch.no_grad():
        for alpha in (0.5, 1.25, 0.75):
            x = torch.randn(48, 256)
            got, expected = compiled[0](x, alpha), type(affine).__bases__[0].forward(affine, x, alpha)
            torch.testing.assert_close(got[0], expected[0])
            assert torch.equal(got[1], expected[1])
        x = torch.randn(40, 96)
        for _ in range(2):
            torch.testing.assert_close(compiled[1](x), torch.relu(x @ linear.linear.weight.T + linear.linear.bias))
            linear.linear.weight.mul_(2.0)
        x, index = torch.randn(64, 96).t(), torch.randint(0, 96, (17,))
        assert torch.equal(compiled[2](x, index)[0], x[index])


def test_prepared_weights_are_no_part_of_a_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph would keep those of its first call: the module runs between two graphs instead."""
    model = importable(exported(tmp_path, "linear", "prepared_weights"), monkeypatch).Model(96)
    compiled, x = torch.compile(Doubled(model), backend="aot_eager"), torch.randn(40, 96)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), torch.relu(2 * x @ model.linear.weight.T + model.linear.bias) + 1)
            model.linear.weight.mul_(2.0)


def test_a_scalar_of_the_call_in_a_library_step(tmp_path: Path) -> None:
    source = """
        import torch


        class Model(torch.nn.Module):
            def forward(self, x, a, b, alpha):
                return torch.addmm(x, a, b, alpha=alpha)


        def get_inputs():
            return [torch.randn(8, 16), torch.randn(8, 4), torch.randn(4, 16), 0.5 + float(torch.rand(()))]
        """
    model = made(tmp_path, source, "// @call out = addmm(x, a, b, alpha=alpha)\n").Model()
    x, a, b = torch.randn(8, 16), torch.randn(8, 4), torch.randn(4, 16)
    for alpha in (0.5, 1.5):
        torch.testing.assert_close(model(x, a, b, alpha), x + alpha * (a @ b))


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


SLOPES = """
    import torch
    from torch import nn


    class Model(nn.Module):
        def __init__(self, features, slope=0.1):
            super().__init__()
            self.slope, self.norm = slope, nn.Identity()
            self.norm.eps = 0.5

        def forward(self, x):
            return torch.where(x > 0, x, x * self.slope) + self.norm.eps


    def get_inputs():
        return [torch.randn(8, 16)]


    def get_init_inputs():
        return [16]
    """
SLOPES_KERNEL = """
    // @launch slopes(x, out, x.numel)
    void slopes(const float* x, float* out, int64_t n)
    {
        for (int64_t i = 0; i < n; ++i) out[i] = (x[i] > 0 ? x[i] : x[i] * 0.1f) + 0.5f;
    }
    """


def test_attributes_that_the_kernel_has_baked_in(tmp_path: Path) -> None:
    module = made(tmp_path, SLOPES, SLOPES_KERNEL)
    x = torch.randn(8, 16)
    state = torch.get_rng_state()
    torch.testing.assert_close(module.Model(16)(x), torch.where(x > 0, x, x * 0.1) + 0.5)
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.warns(RuntimeWarning, match=r"slope is 0\.9, the kernel is for 0\.1"):
        torch.testing.assert_close(module.Model(16, slope=0.9)(x), torch.where(x > 0, x, x * 0.9) + 0.5)
    model = module.Model(16)
    model(x)
    model.norm.eps = 2.0
    with pytest.warns(RuntimeWarning, match=r"norm\.eps is 2\.0, the kernel is for 0\.5"):
        torch.testing.assert_close(model(x), torch.where(x > 0, x, x * 0.1) + 2.0)
    model.norm.eps = 0.5
    model(x)
    del model.norm.eps
    with pytest.warns(RuntimeWarning, match=r"norm\.eps is 'nothing'"), pytest.raises(AttributeError):
        model(x)


def test_a_submodule_of_another_class(tmp_path: Path) -> None:
    model = made(tmp_path, SLOPES, SLOPES_KERNEL).Model(16)
    model.norm = torch.nn.ReLU()
    model.norm.inplace, model.norm.eps = False, 0.5
    with pytest.warns(RuntimeWarning, match="norm"):
        model(torch.randn(8, 16))


def test_a_mode_that_matters_and_one_that_does_not(tmp_path: Path) -> None:
    x = torch.randn(8, 16)
    harmless = made(tmp_path, SLOPES, SLOPES_KERNEL).Model(16).eval()
    torch.testing.assert_close(harmless(x), torch.where(x > 0, x, x * 0.1) + 0.5)
    model = made(tmp_path, SLOPES.replace("self.norm.eps\n", "self.norm.eps * self.training\n"), SLOPES_KERNEL).Model(16)
    torch.testing.assert_close(model(x), torch.where(x > 0, x, x * 0.1) + 0.5)
    with pytest.warns(RuntimeWarning, match="train/eval"):
        torch.testing.assert_close(model.eval()(x), torch.where(x > 0, x, x * 0.1))
    model.train()(x)


def test_refresh_after_a_write_that_torch_does_not_count(tmp_path: Path) -> None:
    model = imported(exported(tmp_path, "linear", "prepared_weights")).Model(96)
    x = torch.randn(40, 96)
    with torch.no_grad():
        model(x)
        model.linear.weight.data.mul_(2.0)
        model.refresh()
        torch.testing.assert_close(model(x), torch.relu(x @ model.linear.weight.T + model.linear.bias))


def test_replaced_parameters_never_meet_the_old_preparation(tmp_path: Path) -> None:
    model = imported(exported(tmp_path, "linear", "prepared_weights")).Model(96)
    x = torch.randn(40, 96)
    with torch.no_grad():
        for i in range(6):
            model.linear.weight = None
            model.linear.weight = torch.nn.Parameter(torch.full((192, 96), float(i)))
            torch.testing.assert_close(model(x), torch.relu(x @ model.linear.weight.T + model.linear.bias))


def test_parameters_made_in_inference_mode(tmp_path: Path) -> None:
    module = imported(exported(tmp_path, "linear", "prepared_weights"))
    x = torch.randn(40, 96)
    with torch.inference_mode():
        model = module.Model(96)
        model(x)
        model.linear.weight.mul_(2.0)
        torch.testing.assert_close(model(x), torch.relu(x @ model.linear.weight.T + model.linear.bias))


def test_tensors_without_memory(tmp_path: Path) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    model = imported(exported(tmp_path, "softmax", "plain_softmax")).Model()
    x = torch.randn(3, 64, 520)
    with pytest.warns(RuntimeWarning, match="no memory"):
        torch.testing.assert_close(torch.func.vmap(model)(x), torch.softmax(x, -1))
    with FakeTensorMode(), pytest.warns(RuntimeWarning, match="FakeTensor"):
        assert model(torch.empty(64, 520)).shape == (64, 520)


@pytest.mark.parametrize("missing", ["compiler", "cache", "sound code"])
def test_a_kernel_that_cannot_be_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    file = exported(tmp_path, "softmax", "plain_softmax")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if missing == "compiler":
        monkeypatch.setenv("PATH", str(tmp_path))
    elif missing == "cache":
        (tmp_path / "cache").write_text("no folder")
    else:
        file.write_text(file.read_text().replace("COMPILE = [", "COMPILE = ['-DEVOKERNEL=', '-Dfloat=', "))
    model = imported(file).Model()
    x = torch.randn(64, 520)
    with pytest.warns(RuntimeWarning, match="cannot be"):
        torch.testing.assert_close(model(x), torch.softmax(x, -1))
    torch.testing.assert_close(model(x), torch.softmax(x, -1))


def test_pickles_and_copies_start_without_prepared_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = exported(tmp_path, "linear", "prepared_weights")
    module = imported(file)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    model, x = module.Model(96), torch.randn(40, 96)
    with torch.no_grad():
        expected = model(x)
        assert torch.equal(pickle.loads(pickle.dumps(model))(x), expected)
        whole = io.BytesIO()
        torch.save(model, whole)
        whole.seek(0)
        assert torch.equal(torch.load(whole, weights_only=False)(x), expected)
    assert sorted(vars(model)) == sorted(vars(module.Model.__bases__[0](96)))
    assert len(pickle.dumps(model)) < 1.2 * len(pickle.dumps(module.Model(96)))


def test_first_calls_from_several_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache with a space"))
    model = made(tmp_path, SLOPES, SLOPES_KERNEL).Model(16)
    x, got = torch.randn(8, 16), []
    threads = [threading.Thread(target=lambda: got.append(model(x))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 4
    for y in got:
        torch.testing.assert_close(y, torch.where(x > 0, x, x * 0.1) + 0.5)
    assert len(list((tmp_path / "cache with a space" / "evokernel-modules").glob("*.so"))) == 1


def test_relative_imports_are_refused(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "layers.py").write_text("WIDTH = 16\n")
    with pytest.raises(UsageError, match="absolute"):
        made(tmp_path, SLOPES.replace("from torch import nn\n", "from torch import nn\n    from .layers import WIDTH\n"), SLOPES_KERNEL)


def test_the_header_says_what_is_not_checked(tmp_path: Path) -> None:
    head = exported(tmp_path, "softmax", "plain_softmax").read_text()[:3000]
    assert "refresh()" in head and "Integer inputs are not checked" in head
