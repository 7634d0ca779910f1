"""What is shipped: every kernel file has a verified entry in the manifest and still compiles, the CUDA ones without a GPU."""

from pathlib import Path

import pytest

from evokernel import targets
from evokernel.archive.shipped import ManifestEntry, read_manifest
from evokernel.kernelfile import KernelFileError, make_kernel, parse, resolve
from evokernel.records import Status
from evokernel.targets import BuildError, nvrtc
from evokernel.targets.cuda import CudaTarget, described

ROOT = Path(__file__).parents[2] / "archive"
ENTRIES = {e.file: e for e in read_manifest(ROOT)}
FILES = sorted(p.relative_to(ROOT).as_posix() for p in ROOT.glob("*/*") if p.suffix in (".cpp", ".cu"))


def entry(file: str) -> ManifestEntry:
    assert file in ENTRIES, f"{file} has no entry: run experiments/seeds.py"
    return ENTRIES[file]


@pytest.mark.parametrize("file", FILES)
def test_a_shipped_file_is_the_verified_one(file: str) -> None:
    found = entry(file)
    assert make_kernel((ROOT / file).read_text(), found.target).id == found.kernel_id
    assert found.verdict.status is Status.VERIFIED and all(row.passed for row in found.verdict.errors)


@pytest.mark.parametrize("file", [f for f in FILES if f.endswith(".cpp")])
def test_a_cpp_seed_builds(file: str, build_directory: Path) -> None:
    target = targets.get("cpp")
    signature = entry(file).task.signature
    plan = resolve(parse(make_kernel((ROOT / file).read_text(), "cpp")), signature, target.device())
    dtypes = plan.dtypes(signature)
    assert Path(target.build(plan, dtypes, build_directory, target.device()).path).exists()


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a", "sm_100"])
@pytest.mark.parametrize("file", [f for f in FILES if f.endswith(".cu")])
def test_a_cuda_seed_compiles_without_a_gpu(file: str, architecture: str, build_directory: Path) -> None:
    if why := nvrtc.missing():
        pytest.skip(why)
    device, signature = described(architecture), entry(file).task.signature
    try:
        plan = resolve(parse(make_kernel((ROOT / file).read_text(), "cuda")), signature, device)
    except KernelFileError as error:
        assert architecture != "sm_90a", "seeds are made for sm_90a"
        pytest.skip(f"does not fit {architecture}: {str(error).splitlines()[0]}")
    dtypes = plan.dtypes(signature)
    try:
        artifact = CudaTarget().build(plan, dtypes, build_directory, device)
    except BuildError as error:
        assert architecture == "sm_80" or (architecture == "sm_100" and "wgmma" in str(error)), f"{architecture}: {error}"  # Hopper's alone
        pytest.skip(f"uses what {architecture} does not have: {str(error).splitlines()[0]}")
    assert artifact.resources.spill_bytes == 0 or architecture != "sm_90a"
