"""Plans: what directives resolve to."""

import pytest

from evokernel.kernelfile import shipped_gpu
from evokernel.kernelfile.steps import Arg, Call, Fill, Keyword, Launch, View
from evokernel.records import Role, ScalarSpec

from .signatures import CPU, ROWS, error_of, plan_of, signature, tensor

H200 = shipped_gpu("H200")


def launch(text: str, **more) -> Launch:
    step = plan_of(text, **more).steps[-1]
    assert isinstance(step, Launch)
    return step


def value(expression: str, **more) -> object:
    return launch(f"// @launch f(out, {expression})", **more).args[1].value


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("x.shape[0] * x.shape[-1]", 128),
        ("x.numel", 128),
        ("x.ndim", 2),
        ("x.itemsize", 4),
        ("x.contiguous", True),
        ("w.stride[0]", 16),
        ("7 // 2 + 7 % 4 - 2**3", -2),
        ("-7 // 2", -4),
        ("7 / 2", 3.5),
        ("cdiv(7, 2)", 4),
        ("next_pow2(9)", 16),
        ("next_pow2(8)", 8),
        ("ilog2(9)", 3),
        ("min(3, 1, 2)", 1),
        ("max(3, 1)", 3),
        ("int(3.9)", 3),
        ("float(2)", 2.0),
        ("1 < 2 < 3", True),
        ("1 < 2 and not 3 > 2", False),
        ("4 if x.numel > 100 else 8", 4),
        ("device.sm_count", 4),
        ("alpha", 0.5),
        ("power", 3),
        ("1e-5", 1e-5),
        ("true_ if False else 1", 1),
    ],
)
def test_expressions(expression: str, expected: object) -> None:
    got = value(expression)
    assert got == expected and type(got) is type(expected)


def test_arguments_say_what_may_be_written() -> None:
    text = "// @scratch t float32 [8]\n// @persist p float32 [8]\n// @prepare launch g(w, p)\n// @launch f(x, w, t, p, out, 2)"
    plan = plan_of(text)
    assert plan.prepare[0].args == (Arg("w"), Arg("p", writes=True))
    assert plan.steps[0].args == (Arg("x"), Arg("w"), Arg("t", writes=True), Arg("p"), Arg("out", writes=True), Arg(value=2))
    assert [(b.name, b.kind, b.shape) for b in plan.buffers] == [("t", "scratch", (8,)), ("p", "persist", (8,))]
    assert [launch.function for launch in plan.launches] == ["g", "f"] and plan.persists


def test_constants_replace_their_own_lines() -> None:
    text = "// title\n// @tune A = 2 in 1 2\n// @const B = A * x.shape[1] #\n// @+ \n// @const C = 2**40\n"
    text += "// @tune D = 0.5 in 0.5 1\n// @launch f<B>(out)\nint z;"
    lines = plan_of(text).code.split("\n")
    assert lines[1] == "constexpr int A = 2;" and lines[2] == "constexpr int B = 32;" and lines[4] == "constexpr long long C = 1099511627776LL;"
    assert lines[5] == "constexpr float D = 0.5f;" and lines[7] == "int z;" and len(lines) == len(text.split("\n"))
    assert plan_of(text, config={"A": 1}).code.split("\n")[2] == "constexpr int B = 16;"


def test_scalars_of_a_call_reach_arguments_and_conditions() -> None:
    text = "// @launch f(out, alpha) if alpha > 1\n// @fill out 0"
    here, there = plan_of(text), plan_of(text, scalars={"alpha": 2.0})
    assert (here.steps[0].enabled, there.steps[0].enabled) == (False, True) and there.steps[0].args[1].value == 2.0
    assert [type(s) for s in here.steps] == [Launch, Fill]


def test_a_step_that_never_runs_for_this_task_is_left_out() -> None:
    assert len(plan_of("// @launch f(out) if x.shape[1] == 16\n// @launch g(x.shape[1] % 0, out) if x.ndim == 3").steps) == 1


@pytest.mark.parametrize(
    "line",
    [
        "@const A = alpha",
        "@scratch t float32 [int(alpha)]",
        "@launch f<int(alpha)>(out)",
        "@require alpha > 0",
        "@prepare launch f(w, alpha)",
        "@fill out alpha",
    ],
)
def test_scalars_that_vary_are_never_baked_in(line: str) -> None:
    assert "drawn anew" in str(error_of(f"// {line}\n// @launch g(out)"))


def test_template_arguments_are_numbers_types_or_text() -> None:
    text = "// @tune T = 4 in 4 8\n// @launch f<T * 2, float, std::array<int, 3>, (T > 4)>(out)"
    assert launch(text).function == "f<8, float, std::array<int, 3>, false>"


def test_a_cuda_launch_has_its_shape() -> None:
    text = "// @launch ns::f<(1 > 2), half><<<(cdiv(x.numel, 64), 2), (32, 4), smem=64 * 1024, cluster=(2, 1), pdl=True>>>(x, out) if x.ndim == 2"
    step = launch(text, device=H200)
    assert step.grid is not None and step.function == "ns::f<false, half>"
    assert (step.grid.grid, step.grid.block, step.grid.smem_bytes, step.grid.cluster, step.grid.pdl) == (
        (2, 2, 1),
        (32, 4, 1),
        65536,
        (2, 1, 1),
        True,
    )


def test_occupancy_is_for_launch_shapes() -> None:
    assert launch("// @launch f<<<occupancy(f, 256, 0) * device.sm_count, 256>>>(x, out)", device=H200).grid.grid == (8 * 132, 1, 1)
    assert launch("// @launch f<<<occupancy(f, 256, 100 * 1024), 256>>>(x, out)", device=H200).grid.grid == (2, 1, 1)
    assert "occupancy" in str(error_of("// @const A = occupancy(f, 256, 0)", device=H200))


@pytest.mark.parametrize(
    ("shape", "what"),
    [
        ("0, 32", "grid"),
        ("1, 2048", "block"),
        ("1, (64, 32)", "threads"),
        ("1, 32, 1000000", "shared memory"),
        ("1, 32, 0, cluster=16", "cluster"),
        ("(1, 70000), 32", "grid"),
        ("3, 32, cluster=2", "cluster"),
        ("1", "launch shape"),
        ("1, 32, warps=3", "launch key"),
        ("(1,2,3,4), 1", "three"),
    ],
)
def test_launch_shapes_out_of_limits(shape: str, what: str) -> None:
    assert what in str(error_of(f"// @launch f<<<{shape}>>>(x, out)", device=H200))


def test_calls_infer_their_results() -> None:
    plan = plan_of("// @call y = linear(x, w, b)\n// @call out = addmm(b, x, w.T, beta=alpha)\n// @launch f(y, out)")
    y, call = plan.buffers[0], plan.steps[1]
    assert (y.name, y.kind, y.shape, y.dtype) == ("y", "scratch", (8, 32), "float32")
    assert (
        isinstance(call, Call)
        and call.args[2] == View("w", (("T",),))
        and call.kwargs == (Keyword("beta", 0.5),)
        and [s.op for s in (*plan.prepare, *plan.steps) if isinstance(s, Call)] == ["linear", "addmm"]
    )


def test_views_of_a_call() -> None:
    call = plan_of("// @call y = bmm(x.view(2, -1, 16), x.view(2, 4, 16).mT, precision=tf32)\n// @launch f(y, out)").steps[0]
    assert call.args == (View("x", (("view", 2, 4, 16),)), View("x", (("view", 2, 4, 16), ("mT",)))) and call.precision == "tf32"


def test_a_prepared_call_makes_persisted_memory() -> None:
    plan = plan_of("// @prepare call p = mm(w.T, w)\n// @launch f(p, out)")
    assert plan.buffers[0].kind == "persist" and plan.buffers[0].shape == (16, 16) and not plan.steps[0].args[0].writes


@pytest.mark.parametrize(
    ("op", "shapes", "more", "expected"),
    [
        ("conv1d", [(2, 4, 10), (8, 2, 3)], "groups=2, padding=1", (2, 8, 10)),
        ("conv2d", [(2, 3, 9, 9), (5, 3, 3, 3)], "stride=2, padding=(1, 0)", (2, 5, 5, 4)),
        ("conv2d", [(3, 9, 9), (5, 3, 3, 3)], "dilation=2", (5, 5, 5)),
        ("conv3d", [(1, 2, 5, 6, 7), (4, 2, 1, 2, 3)], "", (1, 4, 5, 5, 5)),
        ("conv_transpose2d", [(1, 4, 5, 5), (4, 3, 3, 3)], "stride=2, padding=1, output_padding=1", (1, 3, 10, 10)),
        ("conv_transpose1d", [(2, 4, 7), (4, 3, 4)], "groups=2, dilation=2", (2, 6, 13)),
        ("mm", [(3, 4), (4, 5)], "", (3, 5)),
        ("bmm", [(2, 3, 4), (2, 4, 5)], "", (2, 3, 5)),
        ("linear", [(7, 2, 4), (5, 4)], "", (7, 2, 5)),
    ],
)
def test_result_shapes_are_torchs(op: str, shapes: list[tuple[int, ...]], more: str, expected: tuple[int, ...]) -> None:
    sig = signature(tensor("a", shapes[0]), tensor("k", shapes[1], Role.PARAMETER), tensor("out", (1,), Role.OUTPUT))
    assert plan_of(f"// @call y = {op}(a, k{', ' + more if more else ''})\n// @launch f(y, out)", sig).buffers[0].shape == expected


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("@call y = matmul(x, w)", "unknown operation"),
        ("@call y = mm(x, w)", "differ"),
        ("@call y = mm(x)", "needs mat2"),
        ("@call y = mm(x, 3)", "tensor"),
        ("@call y = mm(x, w, w)", "at most 2"),
        ("@call y = linear(x, w, bias=b, bias=b)", "twice"),
        ("@call y = linear(x, w.T)", "last dimension"),
        ("@call y = mm(x.T.view(16, 8), x)", "contiguous"),
        ("@call y = mm(x.view(5, -1), x)", "cannot be viewed"),
        ("@call y = mm(x.t, x)", "views"),
        ("@call x = linear(x, w)", "while it reads it"),
        ("@call w = linear(x, x)", "cannot be written"),
        ("@call out = mm(x, x.T)", "contiguous float32"),
        ("@call y = linear(x, w, precision=low)", "precision"),
        ("@prepare call y = linear(x, w)", "reads parameters"),
        ("@call out = linear(out, w)", "last dimension"),
        ("@call y = conv2d(x, w, padding='same')", "not a number"),
        ("@call y = conv2d(x, w)", "dimensions"),
    ],
)
def test_calls_that_do_not_fit(line: str, what: str) -> None:
    assert what in str(error_of(f"// {line}\n// @launch f(out)"))


def test_fills() -> None:
    plan = plan_of("// @scratch t int32 [4]\n// @fill out -inf\n// @fill t -1\n// @launch f(t, out)")
    assert [(s.buffer, s.value) for s in plan.steps[:2]] == [("out", float("-inf")), ("t", -1.0)]
    assert "integer" in str(error_of("// @scratch t int32 [4]\n// @fill t 0.5\n// @fill out 0"))
    assert "@fill takes an output" in str(error_of("// @fill x 0\n// @fill out 0"))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("// @launch f(x)", "writes out"),
        ("int a;", "no @launch line"),
        ("// @launch f(x, out)\n// @persist p float32 [4]", "writes p"),
        ("// @scratch x float32 [4]\n// @launch f(out)", "name of the task"),
        ("// @const out = 3\n// @launch f(x)", "name of the task"),
        ("// @const y = 1\n// @call y = linear(x, w)\n// @launch f(out)", "cannot be written"),
        ("// @persist p float32 [4]\n// @launch f(p, out)\n", "writes p"),
        ("// @persist p float32 [4]\n// @fill p 0\n// @launch f(out)", "@fill takes"),
        ("// @prepare launch f(x, out)", "reads parameters"),
        ("// @scratch t float32 [4]\n// @prepare launch f(w, t)\n// @launch f(out)", "reads parameters"),
        ("// @require x.shape[0] == 9\n// @launch f(out)", "is false"),
        ("// @scratch t float64 [2**40]\n// @launch f(out)", "64 GiB"),
        ("// @scratch t float32 [3 - 4]\n// @launch f(out)", "cannot be -1"),
        ("// @launch f(mode, out)", "'sum'"),
        ("// @launch f(out, later)\n// @const later = 1", "unknown name"),
        ("// @launch f(out)\n" * 65, "64 steps"),
        ("// @const A = 1e39\n// @launch f(out)", "fit in a float"),
    ],
)
def test_plans_that_do_not_hold_together(text: str, what: str) -> None:
    assert what in str(error_of(text))


def test_a_buffer_that_forward_changes_cannot_be_prepared_from() -> None:
    sig = signature(
        tensor("x", (4,)),
        tensor("mean", (4,), Role.BUFFER),
        tensor("out", (4,), Role.OUTPUT),
        tensor("out1", (4,), Role.STATE).__class__("out1", Role.STATE, "mean", "float32", (4,), (1,)),
    )
    assert "forward changes mean" in str(error_of("// @persist p float32 [4]\n// @prepare launch f(mean, p)\n// @launch g(p, out, out1)", sig))


def test_every_output_and_state_must_be_written_but_not_empty_ones() -> None:
    sig = signature(tensor("x", (4,)), tensor("out0", (4,), Role.OUTPUT), tensor("out1", (0, 3), Role.OUTPUT), tensor("out2", (), Role.STATE))
    assert "out2" in str(error_of("// @launch f(x, out0)", sig))
    assert plan_of("// @launch f(x, out0, out2)", sig).steps


def test_none_and_strings_are_explained() -> None:
    sig = signature(tensor("x", (4,)), tensor("out", (4,), Role.OUTPUT), scalars=(ScalarSpec("bias", "bias", None), ScalarSpec("k", "k", True)))
    assert "None" in str(error_of("// @launch f(x, out, bias)", sig))
    assert launch("// @launch f(x, out, k)", sig=sig).args[2].value is True


def test_flags_and_notes_reach_the_plan() -> None:
    plan = plan_of("// @flags fast_math prefer_vector_width=256\n// @nondeterministic\n// @launch f(out)")
    assert plan.flags == ("fast_math", "prefer_vector_width=256") and plan.nondeterministic
    assert CPU.target == plan.target and ROWS.outputs[0].name == "out"
