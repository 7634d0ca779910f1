"""The cpp target: the contract of targets, what it refuses, and what it lets honest kernels do."""

from __future__ import annotations

import array
import multiprocessing
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from evokernel import targets
from evokernel.kernelfile import KernelFileError, make_kernel, parse, resolve
from evokernel.kernelfile.flags import FLAGS as ALLOWED
from evokernel.records import Role, Signature, TensorSpec
from evokernel.targets import compiler
from evokernel.targets.cpp import FLAGS, CppTarget
from tests.contracts.target_contract import COUNT, SIGNATURE, TargetContract

LAUNCH = "// @launch scale(x, out, x.numel, alpha)\n"
SCALE = LAUNCH + "void scale(const float* x, float* out, int64_t n, float a) {\n  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * a;\n}\n"


class HostMemory:
    def __init__(self, values: Sequence[float]) -> None:
        self.values = array.array("f", values)
        self.address = self.values.buffer_info()[0]

    def read(self) -> list[float]:
        return list(self.values)


class TestCpp(TargetContract):
    name = "cpp"
    scale = SCALE
    two_launches = (
        "// @scratch t float32 [x.numel]\n// @launch scale(x, t, x.numel, 2.0)\n// @launch scale(t, out, x.numel, 10.0)\n" + SCALE.split("\n", 1)[1]
    )
    broken = LAUNCH + "void scale(const float* x, float* out, int64_t n, float a) {\n  out[0] = y;\n}\n"
    refused = LAUNCH + "void scale(const float* x, float* out, int64_t n, float a) {\n  static int calls = 0; out[0] = ++calls;\n}\n"

    def memory(self, values: Sequence[float]) -> HostMemory:
        return HostMemory(values)


@pytest.fixture
def target() -> CppTarget:
    target = CppTarget()
    if (reason := target.available()) is not None:
        pytest.skip(reason)
    return target


@pytest.fixture
def own_directory(target: CppTarget, build_directory: Path, tmp_path: Path) -> Path:
    """A folder in which nobody else builds, with the headers that are precompiled already."""
    build(target, SCALE, build_directory)
    for prelude in build_directory.glob("prelude-*"):
        (tmp_path / prelude.name).symlink_to(prelude)
    return tmp_path


def build(target: CppTarget, text: str, directory: Path, signature: Signature = SIGNATURE) -> targets.Artifact:
    plan = resolve(parse(make_kernel(text, "cpp")), signature, target.device())
    return target.build(plan, plan.dtypes(signature), directory, target.device())


def with_body(body: str, before: str = "") -> str:
    return f"{LAUNCH}{before}\nvoid scale(const float* x, float* out, int64_t n, float a) {{\n{body}\n}}\n"


def run(target: CppTarget, text: str, directory: Path) -> list[float]:
    x, out = HostMemory([float(i) for i in range(COUNT)]), HostMemory([-1.0] * COUNT)
    target.load(build(target, text, directory)).launch(0, (x.address, out.address), (COUNT, 2.0))
    return out.read()


@pytest.mark.parametrize(
    ("body", "before", "words"),
    [
        ("out[0] = (float)(size_t)malloc(n);", '#include <math.h>\nextern "C" void* malloc(size_t);', "malloc is not allowed: declare `// @scratch"),
        ("auto p = new float[n]; p[n - 1] = a; out[0] = (size_t)p + p[0];", "", "operator new is not allowed: declare `// @scratch"),
        ("out[0] = __rdtsc();", "// no malloc, no __rdtsc in comments", "rdtsc is refused: a kernel has no clock"),
        ("out[0] = omp_get_wtime();", "", "no clock"),
        ("omp_set_num_threads(1);", "", "num_threads(n)"),
        ('__builtin_printf("%f", a);', "", "prints nothing"),
        ("if (n < 0) __builtin_abort();", "", "remove the check"),
        ("_mm_setcsr(0x8040); out[0] = a;", "", "floating-point mode"),
        ("__writeeflags(__readeflags() | 1 << 21); out[0] = a;", "", "popf is refused: flags of the processor survive"),
        ("thread_local int calls; calls += n; out[0] = calls;", "", "thread-local"),
        ("out[0] = (size_t)__builtin_thread_pointer();", "", "segment register"),
        (
            "out[0] = seen;",
            "struct Seen { int v; Seen() { v = omp_get_num_procs(); } operator float() { return v; } };\nSeen seen;",
            "when the kernel is loaded",
        ),
        ("out[0] = seen;", "int seen = 3;\nvoid set(int v) { seen = v; }", "seen is a writable global"),
        ("out[0] = a;", "__attribute__((constructor)) void begin() { omp_get_num_procs(); }", "when the kernel is loaded"),
        ("out[0] = a;", 'extern "C" void _init() {}', "when the kernel is loaded"),
        ("out[0] = other(x);", "float other(const float*);", "define it in this file"),
        ("out[0] = getpid();", 'extern "C" int getpid();', "define it in this file"),
        ("float v[4] = {}; std::stable_sort(out, out + n); out[0] = v[0];", "", "is not allowed"),
        ("#pragma omp critical(mine)\nout[0] += a;", "", "critical"),
        ("#pragma omp target\nout[0] += a;", "", "GOMP_target"),
    ],
)
def test_what_makes_host_code_dangerous_is_refused(target: CppTarget, build_directory: Path, body: str, before: str, words: str) -> None:
    with pytest.raises(KernelFileError) as caught:
        build(target, with_body(body, before), build_directory)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("#pragma omp task firstprivate(n)\nout[0] = n;", "task"),
        ("#pragma omp taskwait depend(in: out)\nout[0] = a;", "task"),
        ("#pragma omp taskgroup\nout[0] = a;", "task"),
        ("#pragma omp parallel\n#pragma omp single\n#pragma omp taskloop\nfor (int64_t i = 0; i < n; ++i) out[i] = x[i];", "taskloop"),
        ("#pragma omp parallel reduction(task, +: a)\na += n;\nout[0] = a;", "reductions"),
        ("#pragma omp parallel for reduction(task, +: a)\nfor (int64_t i = 0; i < n; ++i) a += x[i];\nout[0] = a;", "reductions"),
        ("#pragma omp parallel\n#pragma omp sections reduction(task, +: a)\n{\na += n;\n}\nout[0] = a;", "reduction"),
        ("#pragma omp parallel\n#pragma omp scope reduction(task, +: a)\na += n;\nout[0] = a;", "scope"),
        (
            "#pragma omp parallel for ordered(1)\nfor (int64_t i = 1; i < n; ++i) {\n#pragma omp ordered depend(sink: i - 1)\nout[i] = out[i - 1];\n"
            "#pragma omp ordered depend(source)\n}",
            "doacross",
        ),
        (
            "#pragma omp parallel for reduction(inscan, +: a)\nfor (int64_t i = 0; i < n; ++i) {\na += x[i];\n"
            "#pragma omp scan inclusive(a)\nout[i] = a;\n}",
            "loop_start",
        ),
    ],
)
def test_what_makes_openmp_allocate_is_refused(target: CppTarget, build_directory: Path, body: str, name: str) -> None:
    with pytest.raises(KernelFileError, match=rf"GOMP_\w*{name}\w* is not allowed: .* write `#pragma omp parallel for`"):
        build(target, with_body(body), build_directory)


@pytest.mark.parametrize(
    "code",
    [
        '#define JOIN(a, b) a##b\nvoid g() { JOIN(a, sm)("nop"); }',
        '#define JOIN(a, b) a##b\n__attribute__((JOIN(sec, tion)(".mine,\\"aw\\",@progbits\\n.incbin \\"/etc/hostname\\" #"))) int v = 3;',
        'extern "C" const char _DYNAMIC[];\nconst char* t() { return _DYNAMIC; }',
        '#define JOIN(a, b) a##b\nextern "C" void h() __attribute__((JOIN(al, ias)("x")));',
    ],
)
def test_pasted_words_cannot_reach_the_assembler(target: CppTarget, build_directory: Path, code: str) -> None:
    with pytest.raises(targets.BuildError, match="poisoned"):
        build(target, SCALE + code, build_directory)


@pytest.mark.parametrize(
    ("body", "before"),
    [
        ("#pragma omp parallel for schedule(dynamic, 8)\nfor (int64_t i = 0; i < n; ++i) out[i] = x[i] * a;", ""),
        ("#pragma omp parallel for simd num_threads(2)\nfor (int64_t i = 0; i < n; ++i) out[i] = fmaxf(x[i], 0.0f) * a;", ""),
        (
            "double s = 0;\n#pragma omp parallel for reduction(+ : s)\nfor (int64_t i = 0; i < n; ++i) { s += x[i]; out[i] = x[i] * a; }\n"
            "if (s < 0) out[0] = s;",
            "",
        ),
        (
            "#pragma omp parallel\n{\n#pragma omp for\nfor (int64_t i = 0; i < n; ++i) out[i] = 0;\n#pragma omp critical\n"
            "if (omp_get_thread_num() == 0) std::transform(x, x + n, out, [=](float v) { return v * a; });\n}",
            "#include <algorithm>",
        ),
        (
            "int64_t end;\n#pragma omp parallel private(end)\n{\n#pragma omp single copyprivate(end)\nend = n;\n"
            "#pragma omp for schedule(dynamic) nowait\nfor (int64_t i = 0; i < end; ++i) out[i] = x[i] * a;\n}",
            "",
        ),
        (
            "#pragma omp parallel for ordered schedule(dynamic)\nfor (int64_t i = 0; i < n; ++i) {\n#pragma omp ordered\nout[i] = x[i] * a;\n}",
            "",
        ),
        (
            "for (int64_t i = 0; i < n; i += 8) _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(a)));",
            "#include <immintrin.h>",
        ),
        (
            "alignas(64) float tile[4096];\nmemcpy(tile, x, n * sizeof(float));\nfor (int64_t i = 0; i < n; ++i) out[i] = tile[i] * a;",
            "#include <cstring>",
        ),
        (
            "for (int64_t i = 0; i < n; ++i) out[i] = TABLE[1] * x[i] * a + 0 * (expm1f(0) + tanhf(0) + erff(0) + TABLE[(int)x[i] & 3]);",
            "const float TABLE[4] = {0, 1, 2, 3};",
        ),
        ("static constexpr float two[] = {2.0f, 1.0f};\nfor (int64_t i = 0; i < n; ++i) out[i] = x[i] * two[i < 0];", ""),
        (
            "inner<8>(x, out, n, a);",
            "namespace { template <int W, class T> void inner(const T* x, T* out, int64_t n, T a)\n"
            "{ for (int64_t i = 0; i < n; i += W) for (int k = 0; k < W; ++k) out[i + k] = x[i + k] * a; } }",
        ),
        (
            "std::array<float, 64> t; std::copy(x, x + n, t.begin()); std::sort(t.begin(), t.end());\n"
            "for (int64_t i = 0; i < n; ++i) out[i] = t[i] * a;",
            "#include <array>",
        ),
    ],
)
def test_honest_habits_are_accepted_and_right(target: CppTarget, build_directory: Path, body: str, before: str) -> None:
    assert run(target, with_body(body, before), build_directory) == [2.0 * i for i in range(COUNT)]


def test_every_dtype_reaches_its_own_type(target: CppTarget, build_directory: Path) -> None:
    types = {
        "float64": "double",
        "float32": "float",
        "float16": "_Float16",
        "bfloat16": "uint16_t",
        "int64": "int64_t",
        "int32": "int32_t",
        "int16": "int16_t",
        "int8": "int8_t",
        "uint8": "uint8_t",
        "bool": "bool",
    }
    inputs = [TensorSpec(f"a{i}", Role.INPUT, "a", dtype, (4,), (1,)) for i, dtype in enumerate(types)]
    signature = Signature((*inputs, SIGNATURE.tensor("out")))
    parameters = ", ".join(f"const {ctype}* a{i}" for i, ctype in enumerate(types.values()))
    text = f"// @launch f({', '.join(t.name for t in inputs)}, 3, True, out)\n"
    text += f"void f({parameters}, int k, bool b, float* out) {{ out[0] = k + b + a0[0]; }}"
    artifact = build(target, text, build_directory, signature)
    zeros, out = array.array("d", [1.5] * 8), HostMemory([0.0] * COUNT)
    address = zeros.buffer_info()[0]
    target.load(artifact).launch(0, [address] * len(types) + [out.address], (3, True))
    assert out.read()[0] == 5.5
    with pytest.raises(targets.BuildError, match="line 1: error: in this launch"):
        build(target, text.replace("const int32_t*", "const float*"), build_directory, signature)


def test_bfloat16_conversions_round_to_even_and_keep_nan(target: CppTarget, build_directory: Path) -> None:
    body = "for (int64_t i = 0; i < n; ++i) out[i] = bf16_to_float(float_to_bf16(x[i]));"
    program = target.load(build(target, with_body(body), build_directory))
    x, out = HostMemory([1.0, 1.00390625, 1.01171875, 3.0e38, float("nan"), float("-inf"), -0.0, 1e-40] + [0.0] * 56), HostMemory([9.0] * COUNT)
    program.launch(0, (x.address, out.address), (COUNT, 1.0))
    values = out.read()
    assert values[:3] == [1.0, 1.0, 1.015625] and values[4] != values[4] and values[5] == float("-inf") and str(values[6]) == "-0.0"


def test_the_wrong_number_or_kind_of_arguments_is_never_passed_on(target: CppTarget, build_directory: Path) -> None:
    program = target.load(build(target, SCALE, build_directory))
    for pointers, numbers in (((1,), (2, 3.0)), ((1, 2), (2.5, 3.0)), ((1, 2), (2,))):
        with pytest.raises(struct.error):
            program.launch(0, pointers, numbers)


def test_floats_never_become_integers(target: CppTarget, build_directory: Path) -> None:
    with pytest.raises(targets.BuildError, match="a float of the plan fits parameters of type float or double"):
        build(target, SCALE.replace("x.numel, alpha", "alpha, alpha"), build_directory)


def test_resources_name_what_the_compiler_made(target: CppTarget, build_directory: Path) -> None:
    text = with_body("#pragma omp parallel for\nfor (int64_t i = 0; i < n; i += 8) _mm256_stream_ps(out + i, _mm256_loadu_ps(x + i));")
    resources = build(target, text, build_directory).resources
    assert {"openmp", "avx2", "nontemporal"} <= set(resources.features) and resources.code_bytes > 100


def test_the_numbers_of_a_call_need_no_new_build_but_are_another_measurement(target: CppTarget, build_directory: Path) -> None:
    parsed = parse(make_kernel(SCALE, "cpp"))
    plans = [resolve(parsed, SIGNATURE, target.device(), scalars={"alpha": alpha}) for alpha in (2.0, 3.0)]
    two, three = (target.build(plan, {"x": "float32", "out": "float32"}, build_directory, target.device()) for plan in plans)
    assert two.path == three.path and two.code_hash != three.code_hash


def test_flags_are_an_allow_list_and_change_the_build(target: CppTarget, build_directory: Path) -> None:
    assert set(FLAGS) == set(ALLOWED["cpp"])
    body = "float s = 0; for (int64_t i = 0; i < n; ++i) s += x[i]; out[0] = s * a;"
    fast, plain = (build(target, flags + with_body(body), build_directory) for flags in ("// @flags fast_math\n", ""))
    assert fast.code_hash != plain.code_hash


def test_a_compiler_that_takes_too_long_is_stopped(target: CppTarget, own_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "TIME_LIMIT_S", 1.0)
    bomb = "template <int N, int P> struct X { static constexpr int v = X<N - 1, 2 * P>::v + X<N - 1, 2 * P + 1>::v; };\n"
    bomb += "template <int P> struct X<0, P> { static constexpr int v = P; };\nint q() { return X<24, 0>::v; }"
    with pytest.raises(targets.BuildError, match=r"the compiler (did not finish|was stopped|ran out)"):
        build(target, SCALE + bomb, own_directory)
    assert not list(own_directory.glob("building-*"))


def test_messages_are_short_and_clean(target: CppTarget, build_directory: Path) -> None:
    with pytest.raises(targets.BuildError) as caught:
        build(target, SCALE + "".join(f"int v{i} = undeclared{i};\n" for i in range(100)) + "#error \x1b[31mred", build_directory)
    text = str(caught.value)
    assert len(text.splitlines()) <= 30 and "\x1b" not in text and "/" not in text and "line 5, column 10: error" in text


def _build_in_process(directory: str, results: multiprocessing.Queue[str]) -> None:
    results.put(build(CppTarget(), SCALE.replace("scale", "together"), Path(directory)).path)


def test_two_processes_may_build_the_same_kernel_at_once(own_directory: Path) -> None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=_build_in_process, args=(str(own_directory), results)) for _ in range(2)]
    for process in processes:
        process.start()
    paths = {results.get(timeout=60) for _ in processes}
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert len(paths) == 1 and Path(paths.pop()).exists() and not list(own_directory.glob("building-*"))


def test_candidates_share_the_openmp_runtime_of_torch(target: CppTarget, build_directory: Path) -> None:
    artifact = build(target, with_body("out[0] = omp_get_max_threads();"), build_directory)
    code = f"""
import array, re, sys, torch
from evokernel.records import Resources
from evokernel.targets import Artifact, get
program = get("cpp").load(Artifact({artifact.path!r}, "", Resources(), {artifact.functions!r}))
out = array.array("f", [0.0])
seen = []
for threads in (1, 2, 1):
    torch.set_num_threads(threads)
    program.launch(0, (out.buffer_info()[0], out.buffer_info()[0]), (1, 1.0))
    seen.append(int(out[0]))
print(seen, len(set(re.findall(r"/\\S*libgomp\\S*", open("/proc/self/maps").read()))))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[1, 2, 1] 1", done.stderr


def test_it_works_without_any_openmp_in_the_process(target: CppTarget, build_directory: Path) -> None:
    artifact = build(target, with_body("#pragma omp parallel for\nfor (int64_t i = 0; i < n; ++i) out[i] = 7;"), build_directory)
    code = f"""
import array
from evokernel.records import Resources
from evokernel.targets import Artifact, get
out = array.array("f", [0.0] * 4)
get("cpp").load(Artifact({artifact.path!r}, "", Resources(), {artifact.functions!r})).launch(0, (out.buffer_info()[0],) * 2, (4, 1.0))
print(list(out))
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stdout.strip() == "[7.0, 7.0, 7.0, 7.0]"
