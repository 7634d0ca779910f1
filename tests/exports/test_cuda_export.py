"""Exported modules of CUDA kernels, as far as a machine without a GPU goes: the file, what it carries, and its fallback."""

import base64
import importlib.util
import subprocess
import sys
import zlib
from pathlib import Path
from types import ModuleType

import pytest
import torch

from evokernel.archive.shipped import import_shipped, read_manifest
from evokernel.archive.store import Archive
from evokernel.exports.module import drop_in, verified
from evokernel.kernelfile import make_kernel, parse, resolve, shipped_gpu
from evokernel.records import Task
from evokernel.targets import nvrtc
from evokernel.targets.cuda import CudaTarget
from evokernel.task import load_task

ROOT = Path(__file__).parents[2] / "archive"
SEEDS = {e.file: e for e in read_manifest(ROOT) if e.target == "cuda"}
pytestmark = pytest.mark.skipif(nvrtc.missing() is not None, reason=str(nvrtc.missing()))


def exported(tmp_path: Path, file: str) -> Path:
    entry, made = SEEDS[file], tmp_path / f"fast_{Path(file).stem}.py"
    made.write_text(drop_in(entry.task, make_kernel((ROOT / file).read_text(), "cuda"), entry.verdict.environment))
    return made


def imported(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def dtypes(task: Task, plan) -> dict[str, str]:  # type: ignore[no-untyped-def]
    return plan.dtypes(task.signature)


@pytest.mark.parametrize("file", sorted(SEEDS))
def test_a_seed_carries_its_machine_code_and_falls_back_on_a_cpu(file: str, tmp_path: Path, build_directory: Path) -> None:
    module, entry = imported(exported(tmp_path, file)), SEEDS[file]
    device = shipped_gpu(entry.verdict.environment.device)
    plan = resolve(parse(make_kernel((ROOT / file).read_text(), "cuda")), entry.task.signature, device)
    artifact = CudaTarget().build(plan, dtypes(entry.task, plan), build_directory, device)
    assert zlib.decompress(base64.b64decode(module.CUBIN)) == Path(artifact.path).read_bytes()
    assert (device.architecture, device.sm_count) == (module.ARCHITECTURE, module.SM_COUNT)
    assert all(launch["symbol"] in text for launch, text in zip(module.PLAN["launches"], artifact.functions, strict=True))

    reference = module.Model.__bases__[0]
    task = sys.modules[reference.__module__]
    model, inputs = module.Model(*task.get_init_inputs()), task.get_inputs()
    with torch.no_grad(), pytest.warns(RuntimeWarning, match="on cpu, the kernel is for .* on cuda"):
        got = model(*inputs)
    with torch.no_grad():
        torch.testing.assert_close(got, reference.forward(model, *inputs))


def test_a_seed_of_the_archive_is_exported_for_the_gpu_that_it_is_verified_on(tmp_path: Path) -> None:
    entry = SEEDS["softmax/row_in_registers.cu"]
    with Archive(tmp_path / "archive.db") as archive:
        import_shipped(archive, ROOT)
        kernel = archive.find(entry.kernel_id)
        found = verified(archive, kernel.id, None)
        task, environment = found.task, found.environment
    assert environment == entry.verdict.environment
    text = drop_in(task, kernel, environment)
    assert f"ARCHITECTURE = {environment.architecture!r}" in text and "refresh()" in text[:3000] and "CUDA graph" in text[:3000]
    assert max(map(len, text[:1500].splitlines())) <= 150


def test_the_file_is_imported_without_cuda_core_and_evokernel(tmp_path: Path) -> None:
    file = exported(tmp_path, "conv_bn_relu/folded_library_convolution.cu")
    code = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('evokernel', 'cuda'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Block())\n"
        f"sys.path.insert(0, {str(file.parent)!r})\n"
        f"import torch, {file.stem} as m\n"
        "print(m.Model(64)(torch.randn(4, 64, 56, 56)).shape)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=120, capture_output=True, text=True)
    assert "torch.Size([4, 64, 56, 56])" in done.stdout and "the kernel is for float32 on cuda" in done.stderr


@pytest.mark.parametrize(("precision", "asked", "tf32"), [("strict", "", False), ("strict", ", precision='tf32'", True), ("tf32", "", True)])
def test_a_library_step_keeps_the_precision_that_it_was_judged_with(tmp_path: Path, precision: str, asked: str, tf32: bool) -> None:
    """The setting is around the step alone, and the process gets its own back."""
    (tmp_path / "task.py").write_text(
        f"import torch\nEVOKERNEL = {{'precision': {precision!r}}}\n\n\nclass Model(torch.nn.Module):\n    def forward(self, x, y):\n"
        "        return x @ y\n\n\ndef get_inputs():\n    return [torch.randn(8, 8), torch.randn(8, 8)]\n"
    )
    text = f"// @call t = mm(x, y{asked})\n// @launch f<<<1, 64>>>(t, out)\n__global__ void f(const float* t, float* out) {{ *out = *t; }}"
    environment = SEEDS["softmax/row_in_registers.cu"].verdict.environment
    file = tmp_path / "fast_product.py"
    file.write_text(drop_in(load_task(tmp_path / "task.py").task, make_kernel(text, "cuda"), environment))
    module = imported(file)
    step = next(s for s in module.PLAN["steps"] if "op" in s)
    kernel = module._CudaKernel(module.TASK, module.PLAN, module.CUBIN, module.ARCHITECTURE, module.SM_COUNT)
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    with kernel.precision(step["tf32"]):
        assert torch.backends.cuda.matmul.allow_tf32 == torch.backends.cudnn.allow_tf32 == tf32
    assert before == (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
