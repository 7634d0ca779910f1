"""Reading kernel files: what is refused, where the message points, and what stands in it."""

import subprocess
import sys

import pytest

from evokernel.kernelfile import KernelFileError, make_kernel, parse
from evokernel.kernelfile.directives import LaunchLine, Tune

from .signatures import error_of

OK = "// @launch f(x, out)\n"


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("// @lanch f(x, out)", 1, 1, ["unknown directive '@lanch'", "'launch'"]),
        ("\n// @launch f(x, ou)", 2, 17, ["unknown name 'ou'", "did you mean 'out'", "power"]),
        ("// @const A = x.shap[0]", 1, 15, ["shape"]),
        ("// @const A = x.rank", 1, 15, ["no 'rank'", "ndim"]),
        ("// @const A = x.shape[2]", 1, 15, ["2 dimension(s)", "no index 2"]),
        ("// @const A = (1 +", 1, 15, ["not an expression"]),
        ("// @const A = 5 // 0", 1, 15, ["division by zero"]),
        ("// @const A = 1 +\n// @+   y_", 2, 9, ["unknown name 'y_'"]),
        ("// @const A = x + 1", 1, 15, ["x is a tensor here"]),
        ("// @const A = __import__('os')", 1, 15, ["unknown function"]),
        ("// @const A = x.numel()", 1, 15, ["unknown function 'x.numel'; in a plan that is x.numel"]),
        ("// @const A = len(x)", 1, 15, ["in a plan that is x.shape[0]"]),
        ("// @const A = [1, 2]", 1, 15, ["not part of the expression language"]),
        ("// @const A = 'text'", 1, 15, ["not a number"]),
        ("// @const A = 0x10", 1, 15, ["decimal"]),
        ("// @const A = 1if 2else 3", 1, 15, ["decimal"]),
        ("// @const A = 10**64", 1, 15, ["64 bits"]),
        ("// @const A = 2**100000", 1, 15, ["exponents"]),
        ("// @const A = device.warp", 1, 15, ["a device has no 'warp'", "sm_count"]),
        ("// @const float = 2", 1, 11, ["keyword"]),
        ("// @const A = 1\n// @scratch A float32 [2]", 2, 1, ["declared twice"]),
        ("// @tune A = 3 in 1 2", 1, 14, ["not among the values"]),
        ("// @tune A = 1", 1, 14, ["in 1 2 4 8"]),
        ("// @tune A = 1 in 1 two", 1, 21, ["'two'"]),
        ("// @tune A = true in true 1", 1, 14, ["one type"]),
        ("// @scratch t float23 [2]", 1, 15, ["float32"]),
        ("// @scratch t float32 [2] zeros", 1, 27, ["did you mean `zero`"]),
        ("// @launch f(x, out", 1, 13, ["never closed"]),
        ("// @launch f(x,, out)", 1, 16, ["missing before this comma"]),
        ("// @launch f<<<1, 2>>>(x, out)", 1, 13, ["without a launch shape"]),
        ("// @launch f(x, out) when x.ndim", 1, 22, ["only `if EXPR`"]),
        ("// @prepare f(w)", 1, 13, ["@prepare launch"]),
        ("// @flags ffast-math", 1, 11, ["unknown flag", "fast_math"]),
        ("// @flags prefer_vector_width=7", 1, 11, ["128"]),
        ("// @+ f(x)", 1, 1, ["none"]),
        ("// @launch f(x, out) \\\nint a;", 1, 1, ["backslash"]),
        ("#define A \\\n// @const B = 1\n", 2, 1, ["inside a macro"]),
        ("// @nondeterministic atomics", 1, 22, ["nothing follows"]),
    ],
)
def test_errors_are_located_and_say_what_to_write(text: str, line: int, column: int, words: list[str]) -> None:
    error = error_of(text if "launch" in text else f"{text}\n{OK}")
    message = str(error)
    assert (error.line, error.column) == (line, column), message
    assert all(word in message for word in words), message
    assert message.startswith(f"line {line}, column {column}: ") and message.splitlines()[-1].strip() == "^"
    caret = message.splitlines()[-1].index("^") - 2
    assert message.splitlines()[-2][2:][caret:] == text.split("\n")[line - 1][column - 1 :].rstrip()


@pytest.mark.parametrize(
    "expression", ["-" * 1900 + "1", "(" * 900 + "1" + ")" * 900, "not " * 400 + "1", "1+" * 950 + "1", "9" * 1999, "1" + "+1" * 1200]
)
def test_huge_expressions_are_refused_and_not_evaluated(expression: str) -> None:
    assert len(str(error_of(f"// @const A = {expression}\n{OK}"))) < 1000


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ('#include "torch/extension.h"', "framework"),
        ("#include <torch/extension.h>", "framework"),
        ("#include <vector>", "<vector> is not among"),
        ('#include "/etc/passwd"', "no quotes"),
        ("#define H <cmath>\n#include H", "no quotes and no macros"),
        ('# 1 "x.h"', "#1 is refused"),
        ("#line 3", "#line is refused"),
        ("#embed <x>", "#embed is refused"),
        ("%:include <vector>", "digraphs"),
        ('#pragma GCC dependency "x"', "pragma is refused"),
        ('_Pragma("GCC dependency \\"x\\"")', "_Pragma"),
        ('void g() { asm("nop"); }', "intrinsics"),
        ('void g() { __asm__ volatile(""); }', "intrinsics"),
        ("const char* p = __FILE__;", "__FILE__ is refused"),
        ("int a??(3??);", "trigraphs"),
        ('void g() { a\\\nsm(""); }', "inside a word"),
        ("void g() { k<<<1, 2>>>(); }", "// @launch kernel<<<grid, block>>>(args)"),
        ("#if __has_include(<x>)\n#endif", "__has_include is refused"),
        ('#define P(a, b) a##b\n#if P(__has_, include)("x")\n#endif', "__has_include is refused"),
        ('%:define P(a, b) a%:%:b\n#if P(__h, P(as_incl, ude))("x")\n#endif', "__has_include is refused"),
        ("#define P(a, b) a##b\nconst char* p = P(__DA, TE__);", "__DATE__ is refused"),
        ("#if _CCCL_CHECK_BUILTIN(has_include)\n#endif", "__has_include is refused"),
        ('\\\n#include "/etc/passwd"', "no quotes"),
        ('// a comment \\ \n#include "/etc/passwd"', "blanks behind the backslash"),
    ],
)
def test_code_that_is_refused(code: str, words: str) -> None:
    error = error_of(OK + code)
    assert words in str(error) and error.line >= 2


@pytest.mark.parametrize("code", ["constexpr int N = 4;", "static const int N = 4;", "#define N 4", "const auto N{4};"])
def test_a_constant_is_declared_once(code: str) -> None:
    assert "plan line 1" in str(error_of(f"// @const N = 4\n{OK}{code}"))


def test_honest_code_is_accepted() -> None:
    code = """#pragma once
#include <cmath>   // exp
#include <immintrin.h>
#define LOAD(i) \\
  auto v##i = x[i]; \\
  (void)v##i
#ifdef __AVX2__
#endif
// @brief prose with @launch inside, and asm, malloc, <<<1, 2>>>
const char* s = "asm <<< #include \\" // @launch g(x)";
template <int N> struct A { int v[N > 2 ? N >> 1 : 1]; };  // N is a parameter here, and a constant of the plan
void f(const float* x, float* out) { bool N2 = x[0] == N; int e = N << 2; for (int i = 0; i < N; ++i) out[i] = N2 + e; }
#pragma omp declare simd
/* // @nothing
   // @launch g(x, out) */
auto raw = R"(
// @launch h(x, out)
)";
"""
    parsed = parse(make_kernel(f"// @const N = 4\n{OK}{code}", "cpp"))
    assert len(parsed.directives) == 2


def test_comparisons_and_templates_split_where_they_should() -> None:
    parsed = parse(make_kernel("// @launch f<(x.ndim > 1), A<int, 2>, 3>(min(x.numel, 4), out) if x.ndim > 1 and (2 < 3)", "cpp"))
    step = parsed.directives[0]
    assert isinstance(step, LaunchLine) and step.template is not None and step.condition is not None
    assert [t.span.text for t in step.template] == ["(x.ndim > 1)", "A<int, 2>", "3"] and [a.span.text for a in step.args] == [
        "min(x.numel, 4)",
        "out",
    ]
    assert step.condition.span.text == "x.ndim > 1 and (2 < 3)"


def test_a_launch_key_behind_the_arguments_is_told_its_place() -> None:
    with pytest.raises(KernelFileError, match=r"pdl belongs into the launch shape: `kernel<<<grid, block, pdl=...>>>\(args\)`"):
        parse(make_kernel("// @launch f<<<1, 32>>>(x, out) pdl=True", "cuda"))


def test_tunables_keep_their_types() -> None:
    tunes = [
        d
        for d in parse(make_kernel("// @tune A = 1 in 1, 2,4\n// @tune B = 1 in 1 0.5\n// @tune C = true in false true\n" + OK, "cpp")).directives
        if isinstance(d, Tune)
    ]
    assert [(t.default, t.values) for t in tunes] == [(1, (1, 2, 4)), (1.0, (1.0, 0.5)), (True, (False, True))]
    assert [type(t.default) for t in tunes] == [int, float, bool]
    assert "at most 8 tunables" in str(error_of("\n".join(f"// @tune A{i} = 1 in 1 2" for i in range(9)) + "\n" + OK))


def test_importing_needs_neither_torch_nor_a_compiler() -> None:
    code = "import sys, evokernel.kernelfile; print([m for m in ('torch', 'numpy', 'subprocess', 'json') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
