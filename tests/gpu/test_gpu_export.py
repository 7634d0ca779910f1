"""Exported modules of CUDA kernels, used as a user would on a GPU. A fallback to the reference is an error unless a test expects it."""

import contextlib
import copy
import functools
import importlib
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from evokernel import targets
from evokernel.archive.shipped import read_manifest
from evokernel.exports.module import drop_in
from evokernel.kernelfile import make_kernel

ROOT = Path(__file__).parents[2] / "archive"
SEEDS = {e.file: e for e in read_manifest(ROOT) if e.target == "cuda"}
PLAIN, PREPARED = "softmax/row_in_registers.cu", "conv_bn_relu/folded_library_convolution.cu"
SHARED_MEMORY, TWO_LAUNCHES = "attention/keys_in_shared_memory.cu", "cross_entropy/row_block_then_mean.cu"
FOUR = (PLAIN, PREPARED, SHARED_MEMORY, TWO_LAUNCHES)
WHY_NOT = targets.get("cuda").available()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(WHY_NOT is not None, reason=f"no GPU: {WHY_NOT}")]


@pytest.fixture(autouse=True)
def no_fallback_and_full_precision() -> Any:
    """pytest puts the filters back after each test."""
    warnings.filterwarnings("error", message="evokernel", category=RuntimeWarning)
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@pytest.fixture(scope="module")
def module_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The exported module of a seed, for the GPU that is here."""
    folder = tmp_path_factory.mktemp("exports")
    sys.path.insert(0, str(folder))

    @functools.cache
    def get(file: str) -> ModuleType:
        name = f"gpu_{file.replace('/', '_').removesuffix('.cu')}"
        (folder / f"{name}.py").write_text(drop_in(SEEDS[file].task, make_kernel((ROOT / file).read_text(), "cuda")))
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield get
    sys.path.remove(str(folder))


Get = Callable[[str], ModuleType]


class Pair:
    """An exported model with the reference of the same weights, and inputs, on the GPU."""

    def __init__(self, module: ModuleType, device: str = "cuda") -> None:
        self.module, self.device = module, device
        base = module.Model.__bases__[0]
        self.task = sys.modules[base.__module__]
        torch.manual_seed(1)
        self.reference = base(*self.task.get_init_inputs()).to(device)
        with torch.no_grad():
            for tensor in (*self.reference.parameters(), *self.reference.buffers()):
                if tensor.is_floating_point():
                    tensor.uniform_(0.1, 1.0).sub_(0.05)
        self.fast = module.Model(*self.task.get_init_inputs()).to(device)
        self.fast.load_state_dict(self.reference.state_dict())

    def inputs(self) -> list[torch.Tensor]:
        return [t.to(self.device) for t in self.task.get_inputs()]

    def check(self, got: Any, inputs: list[torch.Tensor], around: Callable[[Any, list[torch.Tensor]], Any] = lambda model, xs: model(*xs)) -> None:
        with torch.no_grad():
            expected = around(self.reference, inputs)
        torch.cuda.synchronize()
        pairs = list(zip(got, expected, strict=True)) if isinstance(expected, tuple) else [(got, expected)]
        for a, b in pairs:
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            if b.is_floating_point():
                error = float((a.detach() - b).abs().max() / b.abs().max())
                assert error <= 1e-4, f"relative error {error}"
            else:
                assert torch.equal(a, b)


@contextlib.contextmanager
def expected_fallback(module: ModuleType, words: str) -> Any:
    """Each reason warns once in a process; begin anew."""
    module._warn.cache_clear()
    with pytest.warns(RuntimeWarning, match=words):
        yield
    module._warn.cache_clear()


@pytest.mark.parametrize("file", sorted(SEEDS))
def test_same_results_as_the_reference(file: str, module_of: Get) -> None:
    pair = Pair(module_of(file))
    with torch.no_grad():
        for _ in range(2):
            inputs = pair.inputs()
            pair.check(pair.fast(*inputs), inputs)


def around(model: torch.nn.Module, inputs: list[torch.Tensor]) -> torch.Tensor:
    return model(inputs[0] * 0.5, *inputs[1:]) + 1


class Larger(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return around(self.inner, list(inputs))


@functools.cache
def inductor_fails() -> str:
    """Why torch's default compiler does not work on this machine (it needs triton, a C compiler and Python's headers)."""
    try:
        torch.compile(lambda x: x * 2 + 1)(torch.ones(64, device="cuda"))
    except (RuntimeError, OSError, ImportError) as error:
        return str(error)[:200] or type(error).__name__
    return ""


@pytest.mark.parametrize("backend", ["aot_eager", "cudagraphs", "inductor", "reduce-overhead"])
@pytest.mark.parametrize("file", FOUR)
def test_inside_a_compiled_model(file: str, backend: str, module_of: Get) -> None:
    """In one graph, except where weights are prepared."""
    if backend in ("inductor", "reduce-overhead") and (reason := inductor_fails()):
        pytest.skip(f"torch.compile does not work here: {reason}")
    pair = Pair(module_of(file))
    how: dict[str, Any] = {"mode": backend} if backend == "reduce-overhead" else {"backend": backend}
    torch._dynamo.reset()
    compiled = torch.compile(Larger(pair.fast), fullgraph=file != PREPARED, **how)
    with torch.no_grad():
        for _ in range(5):
            inputs = pair.inputs()
            torch.compiler.cudagraph_mark_step_begin()
            pair.check(compiled(*inputs).clone(), inputs, around)


def test_a_compiled_model_notices_other_shapes_and_attributes(module_of: Get) -> None:
    module = module_of(PLAIN)
    pair = Pair(module)
    torch._dynamo.reset()
    compiled = torch.compile(Larger(pair.fast), backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        inputs = pair.inputs()
        pair.check(compiled(*inputs), inputs, around)
        with expected_fallback(module, "shape and strides"):
            pair.check(compiled(inputs[0][:7]), [inputs[0][:7]], around)
        pair.check(compiled(*inputs), inputs, around)
        unaligned = torch.randn(inputs[0].numel() + 1, device="cuda")[1:].view_as(inputs[0])
        pair.check(torch.compile(pair.fast, backend="aot_eager", fullgraph=True)(unaligned), [unaligned])


def captured(model: torch.nn.Module, inputs: list[torch.Tensor]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A call as a CUDA graph, after one outside of it as torch asks for."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        model(*inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = model(*inputs)
    return graph, result


@pytest.mark.parametrize("file", FOUR)
def test_a_captured_graph_is_replayed_on_new_data(file: str, module_of: Get) -> None:
    pair = Pair(module_of(file))
    with torch.no_grad():
        inputs = pair.inputs()
        graph, result = captured(pair.fast, inputs)
        for _ in range(3):
            for static, fresh in zip(inputs, pair.inputs(), strict=True):
                static.copy_(fresh)
            graph.replay()
            pair.check(result, inputs)


def test_changed_weights_reach_calls_at_once_and_graphs_by_refresh(module_of: Get) -> None:
    pair = Pair(module_of(PREPARED))
    with torch.no_grad():
        inputs = pair.inputs()
        graph, result = captured(pair.fast, inputs)
        for model in (pair.fast, pair.reference):
            model.bn.weight.mul_(3.0)
        pair.check(pair.fast(*inputs), inputs)
        for model in (pair.fast, pair.reference):
            model.conv.weight.data.mul_(0.5)  # not counted by torch
        pair.fast.refresh()
        graph.replay()
        pair.check(result, inputs)
        pair.check(pair.fast(*inputs), inputs)


def test_a_capture_before_the_first_call_takes_the_reference(module_of: Get) -> None:
    module = module_of(PREPARED)
    pair = Pair(module)
    with torch.no_grad():
        inputs = pair.inputs()
        captured(pair.reference, inputs)  # torch's own libraries are loaded
        graph = torch.cuda.CUDAGraph()
        with expected_fallback(module, "call the model once before the capture"), torch.cuda.graph(graph):
            result = pair.fast(*inputs)
        graph.replay()
        pair.check(result, inputs)
        pair.check(pair.fast(*inputs), inputs)


def test_launches_are_ordered_on_the_current_stream(module_of: Get) -> None:
    for file in (PLAIN, PREPARED):
        pair = Pair(module_of(file))
        with torch.no_grad():
            inputs, fresh = pair.inputs(), pair.inputs()
            pair.fast(*inputs)
            torch.cuda.synchronize()
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                torch.cuda._sleep(100_000_000)  # some 50 ms: what is not on this stream would be done before the new data are there
                inputs[0].copy_(fresh[0])
                got = pair.fast(*inputs) * 2
            side.synchronize()
            pair.check(got / 2, inputs)


def test_other_threads(module_of: Get) -> None:
    """A fresh thread has no CUDA context of its own yet, and the first call of a model prepares its weights."""
    pair = Pair(module_of(PREPARED))
    inputs, got = pair.inputs(), []

    def call() -> None:
        with torch.no_grad():
            got.append(pair.fast(*inputs))

    torch.cuda.synchronize()
    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 4
    for result in got:
        pair.check(result, inputs)


def test_what_does_not_fit_goes_to_the_reference_with_a_warning(module_of: Get) -> None:
    module = module_of(PLAIN)
    pair = Pair(module)
    x = pair.inputs()[0]
    with torch.no_grad():
        unaligned = torch.randn(x.numel() + 1, device="cuda")[1:].view_as(x)
        others = {"shape and strides": x[:3], "float64": x.double(), "multiple of": unaligned, "on cpu": x.cpu()}
        for words, other in others.items():
            with expected_fallback(module, words):
                pair.check(pair.fast(other), [other])
    needs_grad = x.clone().requires_grad_()
    with expected_fallback(module, "gradients"):
        pair.fast(needs_grad).square().sum().backward()
    assert needs_grad.grad is not None
    convolution = Pair(module_of(PREPARED))
    with expected_fallback(convolution.module, "gradients"):
        convolution.fast(*convolution.inputs()).sum().backward()
    assert convolution.fast.conv.weight.grad is not None


def test_another_architecture_goes_to_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = drop_in(SEEDS[PLAIN].task, make_kernel((ROOT / PLAIN).read_text(), "cuda"))
    assert text.count("ARCHITECTURE = 'sm_") == 1
    (tmp_path / "for_another_gpu.py").write_text(text.replace("ARCHITECTURE = 'sm_", "ARCHITECTURE = 'sm_1"))
    monkeypatch.syspath_prepend(str(tmp_path))
    pair = Pair(importlib.import_module("for_another_gpu"))
    with torch.no_grad(), expected_fallback(pair.module, "made and verified for sm_1"):
        inputs = pair.inputs()
        pair.check(pair.fast(*inputs), inputs)


def test_strict_precision_whatever_the_process_allows(module_of: Get) -> None:
    pair = Pair(module_of(PREPARED))
    with torch.no_grad():
        inputs = pair.inputs()
        torch.backends.cudnn.allow_tf32 = True
        got = pair.fast(*inputs)
        assert torch.backends.cudnn.allow_tf32 and not torch.backends.cuda.matmul.allow_tf32
        torch.backends.cudnn.allow_tf32 = False
        pair.check(got, inputs)


def test_random_numbers_of_the_process_stay_its_own(module_of: Get) -> None:
    """Whether the mode matters is tried on the reference, with seeds."""
    pair = Pair(module_of(PLAIN))
    inputs = pair.inputs()
    state = torch.cuda.get_rng_state(), torch.get_rng_state()
    with torch.no_grad():
        got = pair.fast.eval()(*inputs)
    assert torch.equal(torch.cuda.get_rng_state(), state[0]) and torch.equal(torch.get_rng_state(), state[1])
    pair.check(got, inputs)


def test_copies_prepare_their_own_weights(module_of: Get) -> None:
    pair = Pair(module_of(PREPARED))
    with torch.no_grad():
        inputs = pair.inputs()
        pair.fast(*inputs)
        other = copy.deepcopy(pair.fast)
        other.bn.bias.add_(1.0)
        other(*inputs)
        pair.check(pair.fast(*inputs), inputs)
        pair.reference.bn.bias.add_(1.0)
        pair.check(other(*inputs), inputs)


def test_a_second_gpu(module_of: Get) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    for file in FOUR:
        for device in ("cuda:0", "cuda:1"):
            pair = Pair(module_of(file), device)
            with torch.no_grad():
                inputs = pair.inputs()
                pair.check(pair.fast(*inputs), inputs)
