"""Which texts are the same kernel."""

import pytest

from evokernel.kernelfile import KernelFileError, make_kernel, normalise

CODE = '// @launch f(x, out)\nvoid f(const float* x, float* o) { o[0] = x[0] - -1; const char* s = "a // b"; }\n'


def same(one: str, other: str) -> bool:
    return make_kernel(one, "cpp").id == make_kernel(other, "cpp").id


@pytest.mark.parametrize(
    "other",
    [
        CODE.replace("{ o", "{\n\n   // an ordinary comment\n  o"),
        CODE.replace("float* o", "float * /* where it goes */ o"),
        CODE.replace("// @launch f(x, out)", "//   @launch f(x,  out)   # why").replace("(x,  out)", "(x, out)"),
        "// @brief documentation\n" + CODE,
        CODE.replace("\n", "\r\n"),
        "\ufeff" + CODE,
        CODE.replace("f(x, out)", "f(x,\n// @+ out)", 1),
    ],
)
def test_white_space_and_ordinary_comments_do_not_count(other: str) -> None:
    assert same(CODE, other)


@pytest.mark.parametrize(
    "other",
    [
        CODE.replace("- -1", "+ -1"),
        CODE.replace("f(x, out)", "f(out, x)", 1),
        CODE.replace("a // b", "a // c"),
        CODE.replace("void f", "inline void f"),
        CODE + "// @nondeterministic\n",
    ],
)
def test_code_plan_and_strings_count(other: str) -> None:
    assert not same(CODE, other)


def test_tokens_never_run_together() -> None:
    assert normalise("a = b++ + c;") != normalise("a = b + ++c;")
    assert normalise("#define F (x)") != normalise("#define F(x)")
    assert normalise("#define A\nint x;") != normalise("#define A int x;")


def test_the_target_is_part_of_the_identity() -> None:
    assert make_kernel(CODE, "cpp").id != make_kernel(CODE, "cuda").id


def test_comments_in_raw_strings_and_character_literals_stay() -> None:
    assert "// kept" in normalise('auto s = R"x(// kept)x"; char c = \'"\'; // gone')
    assert "gone" not in normalise('auto s = R"x(// kept)x"; char c = \'"\'; // gone')
    assert "gone" not in normalise("long n = 1'000'000; // gone")


@pytest.mark.parametrize("text", ["a\0b", "a\ud800b", "x" * ((1 << 20) + 1), "é" * (1 << 19) + "é"])
def test_texts_that_cannot_be_stored_are_refused(text: str) -> None:
    with pytest.raises(KernelFileError):
        make_kernel(text, "cpp")


def test_the_place_of_a_nul_is_shown() -> None:
    with pytest.raises(KernelFileError, match="line 2, column 3"):
        make_kernel("int a;\nab\0", "cpp")
