"""The tuning space, new defaults, and names carried to another task."""

import pytest

from evokernel.kernelfile import KernelFileError, make_kernel, parse, rename, space, with_defaults
from evokernel.records import Role, config_key

from .signatures import CPU, ROWS, error_of, plan_of, signature, tensor

TEXT = """// @tune A = 2 in 1 2 4
// @tune B = 0.5 in 0.5 1.0   # a note
//@tune  C=true in true false
// @require A * x.shape[0] <= 16 or B == 1.0
// @launch f<A>(x, out)
"""


def test_the_space_holds_what_the_requirements_admit_default_first() -> None:
    configs = space(parse(make_kernel(TEXT, "cpp")), ROWS, CPU)
    assert configs[0] == {"A": 2, "B": 0.5, "C": True} and len(configs) == len({config_key(c) for c in configs}) == 10
    assert all(c["A"] * 8 <= 16 or c["B"] == 1.0 for c in configs)


def test_a_kernel_without_tunables_has_one_configuration() -> None:
    assert space(parse(make_kernel("// @launch f(x, out)", "cpp")), ROWS, CPU) == [{}]


def test_an_empty_space_is_an_error() -> None:
    with pytest.raises(KernelFileError, match="no configuration meets"):
        space(parse(make_kernel(TEXT.replace("@require A", "@require False and A").replace("or B == 1.0", ""), "cpp")), ROWS, CPU)


def test_a_large_space_is_sampled_the_same_way_each_time() -> None:
    text = "".join(f"// @tune T{i} = 1 in 1 2 3 4 5 6 7 8\n" for i in range(5)) + "// @launch f(x, out)"
    first, second = (space(parse(make_kernel(text, "cpp")), ROWS, CPU) for _ in range(2))
    assert first == second and len(first) == 4096 and first[0] == {f"T{i}": 1 for i in range(5)}


def test_new_defaults_make_a_new_kernel_whose_default_is_that_configuration() -> None:
    text = with_defaults(TEXT, {"A": 4, "B": 1.0, "C": False})
    assert plan_of(text).config == {"A": 4, "B": 1.0, "C": False} and "# a note" in text and text.count("\n") == TEXT.count("\n")
    assert make_kernel(text, "cpp").id != make_kernel(TEXT, "cpp").id and with_defaults(text, {"A": 2, "B": 0.5, "C": True}) == TEXT
    for config in ({"A": 3}, {"Z": 1}):
        with pytest.raises(KernelFileError):
            with_defaults(TEXT, config)


def test_a_configuration_must_be_listed() -> None:
    for config in ({"A": 3}, {"Z": 1}, {"C": 1}):
        with pytest.raises(KernelFileError):
            plan_of(TEXT, config=config)
    assert "is false" in str(error_of(TEXT.replace("A = 2", "A = 4")))


def test_rename_touches_names_of_the_plan_only() -> None:
    text = """// x, w and out in prose stay
// @const x2 = x.shape[1] * w.numel   # x
// @scratch t float32 [x.shape[0]]
// @call y = linear(x, w, bias=b)
// @launch x<x.shape[0]>(x,
// @+     w.numel, out, y) if x.ndim == 2
template <int x> void x(const float* x, float* out) { out[0] = x[0]; }
"""
    expected = """// x, w and out in prose stay
// @const x2 = input.shape[1] * layer_weight.numel   # x
// @scratch t float32 [input.shape[0]]
// @call y = linear(input, layer_weight, bias=b)
// @launch x<input.shape[0]>(input,
// @+     layer_weight.numel, out0, y) if input.ndim == 2
template <int x> void x(const float* x, float* out) { out[0] = x[0]; }
"""
    assert rename(text, {"x": "input", "w": "layer_weight", "out": "out0"}) == expected
    swapped = signature(tensor("a", (4,)), tensor("c", (4,)), tensor("out", (4,), Role.OUTPUT))
    plan = plan_of(rename("// @launch f(c, a, out)", {"a": "c", "c": "a"}), swapped)
    assert [a.tensor for a in plan.steps[0].args] == ["a", "c", "out"]
