"""The cuda target: the contract of targets, what its compiler side accepts and refuses, and what it says. Only loading needs a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from evokernel import targets
from evokernel.errors import JudgeError, UsageError
from evokernel.kernelfile import KernelFileError, make_kernel, parse, resolve, shipped_gpus
from evokernel.kernelfile.flags import FLAGS as ALLOWED
from evokernel.records import Role, Signature, TensorSpec, contiguous_stride
from evokernel.targets import BuildError, nvrtc
from evokernel.targets.cuda import FLAGS, CudaTarget, described
from evokernel.targets.cuda_arguments import demangled
from tests.contracts.target_contract import SIGNATURE, TargetContract

from .cuda_offline import ARCHITECTURE, CompileOnly, build, needs_compiler

LAUNCH = "// @launch scale<<<cdiv(x.numel, 128), 128>>>(x, out, x.numel, alpha)\n"
HEAD = "__global__ void scale(const float* x, float* out, long long n, float a) {\n"
BODY = "  const int i = blockIdx.x * blockDim.x + threadIdx.x;\n  if (i < n) out[i] = x[i] * a;\n}\n"
SCALE = LAUNCH + HEAD + BODY
pytestmark = needs_compiler


class DeviceMemory:
    def __init__(self, values: Sequence[float]) -> None:
        import torch

        self.tensor = torch.tensor(list(values), dtype=torch.float32, device="cuda")
        self.address = self.tensor.data_ptr()

    def read(self) -> list[float]:
        import torch

        torch.cuda.synchronize()
        values: list[float] = self.tensor.tolist()
        return values


class TestCuda(TargetContract):
    name = "cuda"
    scale = SCALE
    two_launches = (
        "// @scratch t float32 [x.numel]\n// @launch scale<<<1, 64>>>(x, t, x.numel, 2.0)\n// @launch scale<<<1, 64>>>(t, out, x.numel, 10.0)\n"
        + HEAD
        + BODY
    )
    broken = LAUNCH + HEAD + "  out[0] = y;\n}\n"
    refused = LAUNCH + HEAD + "  static int calls; out[0] = ++calls;\n}\n"

    @pytest.fixture
    def target(self) -> targets.Target:
        return CompileOnly()

    def memory(self, values: Sequence[float]) -> DeviceMemory:
        return DeviceMemory(values)


def with_body(body: str, before: str = "") -> str:
    return f"{LAUNCH}{before}\n{HEAD}{body}\n}}\n"


def spec(name: str, shape: tuple[int, ...], role: Role = Role.INPUT, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(name, role, name, dtype, shape, contiguous_stride(shape))


@pytest.mark.parametrize(
    ("body", "before"),
    [
        ("out[threadIdx.x] = fminf(x[0], FLT_MAX) * INFINITY + (int64_t)a + UINT32_MAX + M_PI;", "#include <stdint.h>\n#include <cmath>"),
        ("out[0] = pow(x[0], 2.0) + pow(x[0], 2) + sinf(x[1]) + tan((double)x[2]) + max(1, 2) + isinf(a);", "#include <cuda_runtime.h>"),
        ("out[0] = TABLE[n & 3];", "__constant__ float TABLE[4] = {1, 2, 3, 4};"),
        ("out[0] = TABLE[n & 3].x + MORE[n & 1][0];", "constexpr float2 TABLE[4] = {{1, 2}, {3, 4}};\nconst int MORE[2][2] = {{1, 2}, {3, 4}};"),
        ("static const float table[4] = {1, 2, 3, 4};\nout[0] = table[n & 3];", ""),
        ("out[0] = helper(x[0]);", "float helper(float v) { return v + 1; }"),
        ("extern __shared__ float4 tile[];\ntile[threadIdx.x].x = x[0];\n__syncthreads();\nout[0] = tile[n & 7].x;", ""),
        ("out[0] = half_of(x[0]);", '#include <cuda_fp16.h>\nextern "C" { float half_of(float v) { return __half2float(__float2half(v)); } }'),
        ('asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(0), "l"(x));\nout[0] = a;', ""),
        ("// a comment about clock64() and createpolicy\nconst float printf_ = x[0];\nout[0] = printf_;", ""),
        ("out[0] = [=]() mutable { float v = a; return ++v; }();", ""),
    ],
)
def test_honest_habits_are_accepted(build_directory: Path, body: str, before: str) -> None:
    assert build(with_body(body, before), build_directory).resources.code_bytes > 0


@pytest.mark.parametrize(
    ("body", "before", "words"),
    [
        (
            'asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0}, {%0}, {%0}, {%0};" : "+f"(out[0]));', "",
            "line 4, column 15: error: Argument vector size mismatch for instruction 'mma': mma.sync.aligned.m16n8k8",
        ),
        ("out[0] = TABLE[n];", "__constant__ float TABLE[20000] = {1};", "too much global constant data .* `__constant__` holds 65536 bytes in all"),
    ],
)  # fmt: skip
def test_what_the_assembler_refuses_has_its_reason(build_directory: Path, body: str, before: str, words: str) -> None:
    with pytest.raises(BuildError, match=f"^(?:error: File uses )?{words}") as caught:
        build(with_body(body, before), build_directory)
    assert "aborted" not in str(caught.value) and "ptxas" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "before"),
    [
        (
            "out[0] = one_of(TABLE, n) + one_of(x, n);",
            "constexpr float TABLE[4] = {1, 2};\n__noinline__ float one_of(const float* t, int i) { return t[i]; }",
        ),
        ("const float* both[2] = {TABLE, TABLE + 2};\nout[0] = both[n & 1][n & 2];", "constexpr float TABLE[4] = {1, 2};"),
    ],
)
def test_a_table_whose_address_is_given_away_is_refused_with_advice(build_directory: Path, body: str, before: str) -> None:
    with pytest.raises(KernelFileError, match=r"line 2, column 17: TABLE survives a launch and may only be read where it is named, as in TABLE\[i\]"):
        build(with_body(body, before), build_directory)


def test_the_libraries_of_the_toolkit_are_there_without_a_toolkit(build_directory: Path) -> None:
    """One kernel with most of them: each header set costs seconds once."""
    before = "\n".join(f"#include <{h}>" for h in ("cuda_fp16.h", "mma.h", "cooperative_groups.h", "cub/block/block_reduce.cuh", "cuda/barrier"))
    body = (
        "using Reduce = cub::BlockReduce<float, 128>;\n__shared__ typename Reduce::TempStorage storage;\n"
        "__shared__ cuda::barrier<cuda::thread_scope_block> ready;\nif (threadIdx.x == 0) init(&ready, blockDim.x);\n__syncthreads();\n"
        "nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> sums;\nnvcuda::wmma::fill_fragment(sums, a);\n"
        "nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, 16, __half, nvcuda::wmma::row_major> left;\n"
        "nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, 16, 16, 16, __half, nvcuda::wmma::col_major> right;\n"
        "nvcuda::wmma::fill_fragment(left, __float2half(x[0]));\nnvcuda::wmma::fill_fragment(right, __float2half(x[1]));\n"
        "nvcuda::wmma::mma_sync(sums, left, right, sums);\nready.arrive_and_wait();\ncooperative_groups::this_grid().sync();\n"
        "const float total = Reduce(storage).Sum(sums.x[0]);\nif (threadIdx.x == 0) out[0] = total;"
    )
    resources = build(with_body(body, before), build_directory).resources
    assert {"tensor_cores", "shared_memory", "barriers", "shuffles"} <= set(resources.features)


def test_no_toolkit_of_the_machine_is_used(tmp_path: Path) -> None:
    """With an empty environment, and with one that points to a toolkit with broken headers."""
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "cuda_fp16.h").write_text("#error the toolkit of the machine was used")
    code = (
        "import sys; from pathlib import Path; from tests.targets.cuda_offline import build; from tests.targets.test_cuda_build import with_body\n"
        "print(build(with_body('out[0] = __half2float(__float2half(a));', '#include <cuda_fp16.h>'), Path(sys.argv[1])).resources.code_bytes > 0)"
    )
    for number, environment in enumerate(({}, {"CUDA_HOME": str(tmp_path), "CUDA_PATH": str(tmp_path), "PATH": os.defpath})):
        command = [sys.executable, "-c", code, str(tmp_path / str(number))]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=Path(__file__).parents[2], check=False)
        assert done.stdout.strip() == "True", done.stderr


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a", "sm_100"])
def test_every_architecture_compiles_without_its_gpu(build_directory: Path, architecture: str) -> None:
    assert build(SCALE, build_directory, architecture=architecture).resources.registers > 0


def test_an_architecture_without_a_description_or_a_compiler_is_our_error(build_directory: Path) -> None:
    with pytest.raises(UsageError, match="sm_90a"):
        described("sm_31")
    with pytest.raises(JudgeError, match="NVRTC does not take its options"):
        nvrtc.compile_source("", (), ["-arch=sm_31"])


def test_shipped_gpus_are_ones_that_the_compiler_knows(build_directory: Path) -> None:
    for architecture in sorted({d.architecture for d in shipped_gpus()}):
        assert build(SCALE, build_directory, architecture=architecture).code_hash


@pytest.mark.parametrize(
    ("parameters", "arguments", "words"),
    [
        ("const float* x, float* out", "x", "f takes 2 arguments (const float*, float*), and 1 are passed"),
        ("float* x, float* out", "x, out", "argument 1 of f: x may only be read here"),
        ("const double* x, float* out", "x, out", "x is float32 and the parameter is const double*; declare it const float*"),
        ("const half* x, float* out", "x, out", "x is float32 and the parameter is const half*"),
        ("const float* x, float* out, float n", "x, out, out", "out is a tensor (float32) and the parameter is float"),
        ("const float* x, float* out, float* n", "x, out, 3", "3 is a number and the parameter is float*"),
        ("const float* x, float* out, int n", "x, out, 2.5", "2.5 is a float and the parameter is int"),
        ("const float* x, float* out, int n", "x, out, 2**31", "2147483648 does not fit in int"),
        ("const float* x, float* out, unsigned n", "x, out, -1", "-1 does not fit in unsigned int"),
        ("const float* x, float* out, bool n", "x, out, 2", "2 is passed to a bool"),
        ("const float* x, float* out, float4 n", "x, out, 2", "the parameter is float4; numbers are passed to integer types"),
    ],
)
def test_arguments_are_checked_against_the_parameters(build_directory: Path, parameters: str, arguments: str, words: str) -> None:
    text = f"// @fill out 0\n// @launch f<<<1, 32>>>({arguments})\n#include <cuda_fp16.h>\n__global__ void f({parameters}) {{}}\n"
    with pytest.raises(BuildError) as caught:
        build(text, build_directory)
    assert str(caught.value).startswith("line 2: error: in this launch: ") and words in str(caught.value)


def test_every_dtype_is_passed_to_its_types(build_directory: Path) -> None:
    accepted = {
        "float64": ("double", "double2"), "float32": ("float", "float1", "float4", "unsigned", "uint4"),
        "float16": ("half", "half2", "unsigned short", "uint4"),
        "bfloat16": ("__nv_bfloat16", "__nv_bfloat162", "unsigned short"), "int64": ("long long", "int64_t", "long", "longlong1", "longlong2"),
        "int32": ("int", "int4", "unsigned"), "int16": ("short", "short2"), "int8": ("int8_t", "char", "char4"), "uint8": ("uint8_t", "uchar4"),
        "bool": ("bool", "unsigned char"),
    }  # fmt: skip
    pairs = [(dtype, ctype) for dtype, types in accepted.items() for ctype in types]
    inputs = [spec(f"a{i}", (8,), dtype=dtype) for i, (dtype, _) in enumerate(pairs)]
    signature = Signature((*inputs, spec("out", (8,), Role.OUTPUT)))
    text = f"// @launch f<<<1, 32>>>({', '.join(t.name for t in inputs)}, out)\n#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"
    text += f"__global__ void f({', '.join(f'const {ctype}* a{i}' for i, (_, ctype) in enumerate(pairs))}, void* out) {{}}\n"
    assert build(text, build_directory, signature).functions


def test_template_instances_are_found(build_directory: Path) -> None:
    text = (
        "// @const N = 4\n// @launch rows<N * 2, float><<<1, 32>>>(x, out)\n// @launch rows<2, int><<<1, 32>>>(x, out)\n"
        "// @launch plain<<<1, 32>>>(out)\n"
        "template <int V, class T> __global__ void rows(const float* x, float* out) { out[0] = x[0] + V + sizeof(T) + N; }\n"
        'extern "C" __global__ void plain(float* out) { out[0] = 1; }\n'
    )
    functions = build(text, build_directory).functions
    assert [demangled(f.split('"symbol":"')[1].split('"')[0]) for f in functions] == [
        "void rows<8, float>(float const*, float*)", "void rows<2, int>(float const*, float*)", "plain(float*)",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("// @launch g<<<1, 32>>>(x, out)\n__global__ void f(const float* x, float* out) {}", 'the kernel "g" is not in the file'),
        ("// @launch f<4><<<1, 32>>>(x, out)\ntemplate <class T> __global__ void f(const float* x, float* out) {}", 'instance of the template "f"'),
        ("// @launch f<<<1, 32>>>(x, out)\nvoid f(const float* x, float* out) {}", "this is not a __global__ function"),
        ("// @launch f<<<1, 32>>>(x, out)\n__global__ void f(const float* x, float* out) {}\n__global__ void f(int) {}", "overloaded kernel"),
        ("// @launch norm<<<1, 32>>>(x, out)\n__global__ void norm(const float* x, float* out) {}", "give the kernel another name"),
    ],
)
def test_a_launch_without_its_kernel_points_at_the_plan_line(build_directory: Path, text: str, words: str) -> None:
    with pytest.raises(BuildError, match=r"^line 1: error: in this launch: ") as caught:
        build(text, build_directory)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "before", "body", "words"),
    [
        ("1, 512", "__launch_bounds__(256)", "out[0] = 1;", "at most 256 (__launch_bounds__)"),
        ("1, 32", "", "__shared__ float s[13000]; s[threadIdx.x] = x[0]; __syncthreads(); out[0] = s[31 - threadIdx.x];", "use `extern __shared__`"),
        (
            "1, 32, 231000",
            "",
            "__shared__ float s[1024]; s[threadIdx.x] = x[0]; __syncthreads(); out[0] = s[31 - threadIdx.x];",
            "4096 bytes of static and 231000 of dynamic",
        ),
        (
            "1, 1024",
            "",
            "float v[96];\n#pragma unroll\nfor (int i = 0; i < 96; ++i) v[i] = x[i * 77];\n__syncthreads();\n#pragma unroll\n"
            "for (int i = 0; i < 96; ++i) out[i] = v[95 - i];",
            "use smaller blocks, or __launch_bounds__",
        ),
    ],
)
def test_what_a_block_may_take_is_checked(build_directory: Path, shape: str, before: str, body: str, words: str) -> None:
    text = f"// @launch f<<<{shape}>>>(x, out)\n__global__ void {before} f(const float* x, float* out) {{\n{body}\n}}\n"
    with pytest.raises(BuildError, match=r"^line 1: error: in this launch: ") as caught:
        build(text, build_directory)
    assert words in str(caught.value)


def test_clusters_need_an_architecture_that_has_them(build_directory: Path) -> None:
    text = "// @launch f<<<4, 32, cluster=2>>>(x, out)\n__global__ void f(const float* x, float* out) { out[0] = x[0]; }\n"
    assert build(text, build_directory).functions
    with pytest.raises(BuildError, match="clusters need sm_90 or newer; this is sm_80"):
        build(text, build_directory, architecture="sm_80")


def test_resources_are_those_of_the_compiled_code(build_directory: Path) -> None:
    text = (
        "// @flags maxrregcount=32\n// @launch f<<<1, 64>>>(x, out, x.numel)\n__global__ void f(const float4* x, float* out, int n) {\n"
        "__shared__ float s[64]; float v[100];\nfor (int i = 0; i < 100; ++i) v[i] = x[i * n].x * x[i * n].w;\n"
        "for (int i = 0; i < n; ++i) v[(i * n) % 100] += v[i % 100];\ns[threadIdx.x] = v[n] + __shfl_xor_sync(~0u, v[1], 1);\n__syncthreads();\n"
        "float4 q = x[threadIdx.x];\natomicAdd(out, s[63 - threadIdx.x] + q.x + q.y + q.z + q.w);\n}\n"
    )
    resources = build(text, build_directory).resources
    assert 0 < resources.registers <= 32 and resources.spill_bytes >= 400 and resources.shared_bytes == 256
    assert {"atomics", "shared_memory", "shuffles", "vector_loads"} <= set(resources.features) and "vector_stores" not in resources.features


def test_numbers_and_shapes_are_part_of_a_measurement_but_not_of_the_build(build_directory: Path) -> None:
    plans = [resolve(parse(make_kernel(SCALE, "cuda")), SIGNATURE, described(ARCHITECTURE), scalars={"alpha": alpha}) for alpha in (2.0, 3.0)]
    two, three = (CudaTarget().build(p, {"x": "float32", "out": "float32"}, build_directory, described(ARCHITECTURE)) for p in plans)
    assert two.path == three.path and two.code_hash != three.code_hash
    wider = build(SCALE.replace("128>>>", "256>>>"), build_directory)
    assert wider.code_hash not in (two.code_hash, three.code_hash)


def test_flags_are_an_allow_list_and_change_the_build(build_directory: Path) -> None:
    assert set(FLAGS) == set(ALLOWED["cuda"])
    flags = "use_fast_math ftz=true fmad=false prec_div=false prec_sqrt=true extra_device_vectorization maxrregcount=64"
    text = with_body("out[0] = expf(x[0]) / a;")
    assert build(f"// @flags {flags}\n{text}", build_directory).code_hash != build(text, build_directory).code_hash


def test_messages_are_short_clean_and_located(build_directory: Path) -> None:
    with pytest.raises(BuildError) as caught:
        build(SCALE + "".join(f"int v{i} = undeclared{i};\n" for i in range(60)) + "#error \x1b[31mred", build_directory)
    message = str(caught.value)
    assert len(message.splitlines()) <= 30 and "\x1b" not in message and "site-packages" not in message and "line 6, column 10: error" in message


@pytest.mark.parametrize(
    ("include", "words"),
    [
        ("<vector>", "is not among the headers"),
        ("<limits>", "use <cuda/std/limits> and cuda::std::"),
        ("<nothing/like/this.h>", "is not among the headers"),
        ("<cuda/std/../../../../../../../../../../../../../../etc/passwd>", r"without `\.\.`"),
    ],
)
def test_an_include_must_be_of_an_installed_header(build_directory: Path, include: str, words: str) -> None:
    with pytest.raises(KernelFileError, match=f"line 2, column 1: .*{words}"):
        build(with_body("out[0] = a;", f"#include {include}"), build_directory)


def test_macros_of_the_candidate_do_not_reach_headers(build_directory: Path) -> None:
    before = "#define __half broken\n#define static nothing\n#include <cuda_fp16.h>\n#undef __half\n#undef static"
    assert build(with_body("out[0] = __half2float(__float2half(a));", before), build_directory).functions


def test_a_compilation_without_an_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "TIME_LIMIT_S", 1.0)
    bomb = "template <int N, int P> struct X { static constexpr int v = X<N - 1, 2 * P>::v + X<N - 1, 2 * P + 1>::v; };\n"
    bomb += "template <int P> struct X<0, P> { static constexpr int v = P; };\nint q() { return X<24, 0>::v; }"
    with pytest.raises(BuildError, match="the compiler did not finish within 1 s"):
        build(SCALE + bomb, tmp_path)
    assert build(with_body("out[0] = 5 * a;"), tmp_path).functions and not list(tmp_path.glob("building-*"))


def test_threads_may_build_at_once(build_directory: Path) -> None:
    made: list[str] = []
    bodies = [with_body(f"out[0] = a + {i % 3};") for i in range(6)]
    threads = [threading.Thread(target=lambda b=b: made.append(build(b, build_directory).path)) for b in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(made) == 6 and len(set(made)) == 3


def test_choosing_a_target_needs_neither_cuda_core_nor_a_gpu() -> None:
    code = (
        "import sys\nfrom evokernel import targets\nfor name in targets.names():\n    targets.get(name).available()\n"
        "assert targets.names()[0] == 'cuda' and not {m for m in sys.modules if m.startswith(('cuda.core', 'cuda.bindings', 'torch'))}\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_without_a_gpu_it_says_what_is_missing() -> None:
    if (reason := CudaTarget().available()) is None:
        pytest.skip("there is a GPU")
    assert "driver" in reason and "\n" not in reason
    with pytest.raises(UsageError, match="driver"):
        CudaTarget().device()


def test_a_normalisation_kernel_in_vectors_compiles(build_directory: Path) -> None:
    """One kernel as a model would write it: tunables, a template, a folded weight, one barrier."""
    text = """// @tune BLOCK = 256 in 128 256 512
// @require x.shape[1] % (4 * BLOCK) == 0
// @persist doubled float32 [weight.shape[0]]
// @prepare launch twice<<<cdiv(weight.numel, 128), 128>>>(weight, doubled, weight.numel)
// @launch rms<x.shape[1] // (4 * BLOCK)><<<x.shape[0], BLOCK>>>(x, doubled, out, 1e-6)
__global__ void twice(const float* w, float* doubled, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) doubled[i] = 2 * w[i];
}

template <int V> __global__ void __launch_bounds__(BLOCK) rms(const float4* __restrict__ x, const float4* w, float4* __restrict__ out, float eps)
{
    __shared__ float part[BLOCK / 32];
    const size_t row = (size_t)blockIdx.x * V * BLOCK;
    float4 v[V];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < V; ++i) {
        v[i] = x[row + i * BLOCK + threadIdx.x];
        sum += v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w;
    }
    for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int i = 0; i < BLOCK / 32; ++i) sum += part[i];
    const float k = rsqrtf(sum / (4 * V * BLOCK) + eps);
#pragma unroll
    for (int i = 0; i < V; ++i) {
        const float4 g = w[i * BLOCK + threadIdx.x];
        out[row + i * BLOCK + threadIdx.x] = make_float4(v[i].x * k * g.x, v[i].y * k * g.y, v[i].z * k * g.z, v[i].w * k * g.w);
    }
}
"""
    signature = Signature((spec("x", (64, 2048)), spec("weight", (2048,), Role.PARAMETER), spec("out", (64, 2048), Role.OUTPUT)))
    artifact = build(text, build_directory, signature)
    assert len(artifact.functions) == 2 and {"vector_loads", "vector_stores", "shuffles"} <= set(artifact.resources.features)
    assert artifact.resources.shared_bytes == 32
