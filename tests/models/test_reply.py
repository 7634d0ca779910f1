"""What is found in answers of models, and what they are told when nothing is."""

from __future__ import annotations

import contextlib
import time

import pytest

from evokernel.models.reply import MAX_KERNEL_BYTES, NoKernel, read, without_reasoning

KERNEL = "// an idea\n// @launch f<<<x.numel // 256, 256>>>(x, out)\n\n__global__ void f(const float* x, float* out) {\n  int i = 0;\n}\n"
DRAFT = KERNEL.replace("int i = 0", "int draft = 0")


def fenced(text: str, language: str = "cuda", fence: str = "```") -> str:
    return f"{fence}{language}\n{text}{fence}\n"


def found(text: str, parent: str | None = None, **more: str) -> str:
    return read(text, target="cuda", parent=parent, **more)


def reason(text: str, parent: str | None = None, target: str = "cuda", **more: str) -> str:
    with pytest.raises(NoKernel) as caught:
        read(text, target=target, parent=parent, **more)
    assert 0 < len(str(caught.value)) < 700 and "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("language", ["cuda", "CUDA", "cu", "cpp", "c++", "C++", "c", "", "text", "cuda kernel.cu", "{.cuda}", "cpp:f.cu"])
def test_the_block_of_a_fitting_language(language: str) -> None:
    assert found(f"An idea.\n\n{fenced(KERNEL, language)}\nGood luck!") == KERNEL


@pytest.mark.parametrize(
    "text",
    [
        fenced(DRAFT) + "Better:\n" + fenced(KERNEL),
        fenced(KERNEL) + "Build it so:\n" + fenced("nvcc f.cu\n", "bash") + fenced("printf();\n", "cpp"),
        "```cuda\n" + DRAFT + "no, again\n" + fenced(KERNEL),  # a draft that was never closed
        fenced(KERNEL, fence="~~~"),
        fenced(KERNEL, fence="````"),
        fenced(fenced(KERNEL), "markdown"),
        fenced(fenced(DRAFT), "markdown", "````") + fenced(KERNEL),
        "1. First\n   ```cuda\n" + KERNEL + "   ```\n",
        fenced(KERNEL).replace("\n", "\r\n"),
        KERNEL,  # a kernel file and nothing else
        "<think>" + fenced(DRAFT) + "</think>\n" + fenced(KERNEL),
        "see ```f``` and\n```inline``` too\n" + fenced(KERNEL),
        "Title\n=====\n" + fenced(KERNEL),
        "the parent's edit was\n<<<<<<< SEARCH\nint a;\n=======\nint b;\n>>>>>>> REPLACE\n" + fenced(KERNEL),
    ],
)
def test_the_last_whole_kernel_file_counts(text: str) -> None:
    assert found(text) == KERNEL


def test_fences_inside_a_longer_fence_are_part_of_the_file() -> None:
    text = KERNEL + "/*\n=======\n```\nnot a fence\n```\n*/\n"
    assert found(fenced(text, fence="````")) == text


def test_a_block_that_is_not_closed_counts_only_if_the_answer_is_known_to_be_whole() -> None:
    cut = fenced(DRAFT) + "Final:\n```cuda\n" + KERNEL
    assert found(cut, stop="end") == KERNEL
    assert "cut off" in reason(cut) and "cut off" in reason(cut, stop="length")
    assert found(fenced(KERNEL) + "which is beca", stop="length") == KERNEL


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["no text"]),
        ("  \n", ["no text"]),
        ("<think>I should", ["no text"]),
        ("I would use shared memory.", ["no code block", "@launch"]),
        (fenced("import torch\nclass ModelNew: ...\n", "python"), ["python", "wrong language"]),
        (fenced("import triton\n@triton.jit\ndef f(x):\n  pass\n", ""), ["Python", "wrong language"]),
        (fenced("fn main() {}\n", "rust"), ["rust", "wrong language"]),
        (fenced("__global__ void f() {}\n"), ["no launch plan", "@launch"]),
        (fenced("// see the line @launch f(x)\nvoid f();\n"), ["no launch plan"]),
        (fenced(KERNEL + "// " + "x" * MAX_KERNEL_BYTES + "\n"), ["KiB"]),
        (fenced(KERNEL + "// \ud800\n"), ["surrogate"]),
        (fenced(KERNEL + "// \0\n"), ["NUL"]),
    ],
)
def test_what_is_no_kernel_says_what_to_do(text: str, words: list[str]) -> None:
    assert all(word in reason(text) for word in words)


def test_the_plan_asked_for_is_that_of_the_target() -> None:
    assert "<<<" in reason("hm", target="cuda") and "<<<" not in reason("hm", target="cpp")


def test_the_parent_unchanged_is_no_kernel() -> None:
    assert "unchanged" in reason(fenced(KERNEL.replace("\n", "  \n")), KERNEL)
    assert "unchanged" in reason(edit("  int i = 0;", "  int i = 0;"), KERNEL)


# --- edits ---


def edit(old: str, new: str) -> str:
    return f"<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE\n"


def test_edits_are_applied_in_order() -> None:
    text = "Faster:\n" + edit("  int i = 0;", "  int i = 1;") + "then\n" + fenced(edit("  int i = 1;\n}", "  int i = 2;\n}"))
    assert found(text, KERNEL) == KERNEL.replace("int i = 0", "int i = 2")


def test_edits_match_whatever_the_line_ends() -> None:
    assert found(edit("  int i = 0;", "  int i = 1;"), KERNEL.replace("\n", "\r\n")) == KERNEL.replace("int i = 0", "int i = 1")
    assert found(edit("  int i = 0;", "  int i = 1;").replace("\n", "\r\n"), KERNEL) == KERNEL.replace("int i = 0", "int i = 1")


def test_an_edit_may_take_lines_away_and_reach_the_end_of_the_file() -> None:
    assert found("<<<<<<< SEARCH\n  int i = 0;\n=======\n>>>>>>> REPLACE", KERNEL) == KERNEL.replace("  int i = 0;\n", "")
    assert found(edit("}", "} // end"), KERNEL.rstrip("\n")) == KERNEL.replace("}\n", "} // end\n")


def test_an_edit_after_a_draft_of_the_file_is_applied_to_the_parent() -> None:
    assert found(fenced(DRAFT) + edit("  int i = 0;", "  int i = 1;"), KERNEL) == KERNEL.replace("int i = 0", "int i = 1")


def test_an_edit_may_hold_lines_that_look_like_its_middle() -> None:
    assert "=======\nint" in found(edit("  int i = 0;", "/*\n=======\nint */"), KERNEL)


@pytest.mark.parametrize(
    ("text", "parent", "words"),
    [
        (edit("  int j = 0;", "x"), KERNEL, ["edit 1", "0 times", "int j = 0;", "nearest line", '"  int i = 0;"']),
        (edit("  int i = 0;", "x") + edit("nowhere", "x"), KERNEL, ["edit 2", "0 times"]),
        (edit("int i = 0;", "x"), KERNEL, ["edit 1", "0 times", '"  int i = 0;"']),  # a part of a line
        (edit("}\n  int i = 0;", "x"), KERNEL, ["edit 1", "not next to one another"]),
        (edit("a", "b"), "a\na\nb\n", ["edit 1", "2 times"]),
        (edit("  ", "x"), KERNEL, ["edit 1", "nothing"]),
        (edit("a", "b"), None, ["no file to edit", "whole kernel file"]),
        ("<<<<<<< SEARCH\n  int i = 0;\n=======\nint", KERNEL, ["edit 1", "not whole"]),
        ("<<<<<<< SEARCH\n  int i = 0;\n" + edit("  int i = 0;", "x"), KERNEL, ["edit 1", "not whole"]),
        (edit("a", "b") * 3000, "a\n", ["too many"]),
    ],
)
def test_edits_that_cannot_be_applied_name_the_block(text: str, parent: str | None, words: list[str]) -> None:
    assert all(word in reason(text, parent) for word in words), reason(text, parent)


# --- reasoning, size ---


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("a", "a"), ("<think>b</think>a", "a"), ("b</think>a", "a"), ("a<think>b", "a"), ("a<think>b</think>c", "ac"),
        ("<thinking>b</thinking>a", "a"), ("<think>b<think>c</think>d</think>a", "a"), ("vector<think_t> a", "vector<think_t> a"),
    ],
)  # fmt: skip
def test_reasoning_is_taken_out(text: str, left: str) -> None:
    assert without_reasoning(text) == left


@pytest.mark.parametrize(
    "text",
    [
        "word " * 600_000, "x\n" * 1_500_000, "\n" * 3_000_000, " " * 3_000_000, "```\n" * 750_000, "x```" * 750_000, "<think>" * 430_000,
        "</think>" * 370_000, "<<<<<<< SEARCH\n" * 200_000, "SEARCH\n" + "=======\n" * 370_000, "//" * 1_500_000, "@launch " * 370_000,
        "```cuda\n" + "//\n" * 1_000_000, "\ud800" * 3_000_000, "```cuda\n// @launch f(x)\n" + "x" * 3_000_000,
    ],
    ids=lambda t: repr(t[:12]),
)  # fmt: skip
def test_three_megabytes_are_read_in_no_time(text: str) -> None:
    took = []
    for _ in range(3):
        begin = time.thread_time()
        with contextlib.suppress(NoKernel):
            assert found(f"{text}\n{fenced(KERNEL)}", DRAFT) == KERNEL
        took.append(time.thread_time() - begin)
    assert min(took) < 0.3  # under 0.1 s on a quiet machine
