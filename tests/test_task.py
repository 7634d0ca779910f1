"""Task files of every kind people write: what loads, under which names, and what is refused and why."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest
import torch

from evokernel.errors import TaskError, UsageError
from evokernel.records import Precision, Role
from evokernel.task import LoadedTask, load_task

HEAD = "import torch\nimport torch.nn as nn\n"


def write(tmp_path: Path, body: str, name: str = "task.py") -> Path:
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(HEAD + textwrap.dedent(body))
    return file


def load(tmp_path: Path, body: str) -> LoadedTask:
    return load_task(write(tmp_path, body))


def refused(tmp_path: Path, body: str) -> str:
    with pytest.raises(TaskError) as caught:
        load(tmp_path, body)
    assert caught.value.refused
    return str(caught.value)


def simple(forward: str, inputs: str = "[torch.randn(4, 6)]", init: str = "", extra: str = "") -> str:
    setup = textwrap.indent(textwrap.dedent(init), " " * 8) if init else " " * 8 + "pass"
    return (
        f"{extra}\nclass Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n{setup}\n"
        f"{textwrap.indent(textwrap.dedent(forward), ' ' * 4)}\ndef get_inputs():\n    return {inputs}\n"
    )


def test_names_roles_and_paths_of_a_plain_module(tmp_path: Path) -> None:
    loaded = load(tmp_path, simple("def forward(self, x): return self.layers(x)", init="self.layers = nn.Sequential(nn.Linear(6, 3), nn.ReLU())"))
    found = {t.name: (t.role, t.path, t.shape) for t in loaded.task.signature.tensors}
    assert found == {
        "x": (Role.INPUT, "x", (4, 6)),
        "layers_0_weight": (Role.PARAMETER, "layers.0.weight", (3, 6)),
        "layers_0_bias": (Role.PARAMETER, "layers.0.bias", (3,)),
        "out": (Role.OUTPUT, "output", (4, 3)),
    }


NESTED = """
from dataclasses import dataclass
from typing import NamedTuple

class Window(NamedTuple):
    lo: torch.Tensor
    hi: torch.Tensor

@dataclass(frozen=True)
class Extra:
    shift: torch.Tensor
    label: str = "a"

class Model(nn.Module):
    def forward(self, batch, window, extras, more):
        assert list(batch) == ["z", "x", "meta"] and isinstance(window, Window) and isinstance(more, Extra)
        x = torch.minimum(torch.maximum(batch["x"] * batch["meta"]["scale"], window.lo), window.hi)
        return x + extras[0] + more.shift + batch["z"]

def get_inputs():
    batch = {"z": torch.randn(8, 1), "x": torch.randn(8, 32), "meta": {"scale": torch.rand(8, 1), "name": "run"}}
    return [batch, Window(torch.full((32,), -1.0), torch.ones(32)), [torch.randn(32), None], Extra(torch.randn(32))]
"""


def test_nested_arguments_keep_types_and_order(tmp_path: Path) -> None:
    loaded = load(tmp_path, NESTED)
    paths = {t.name: t.path for t in loaded.task.signature.inputs}
    assert paths["batch_meta_scale"] == 'batch["meta"]["scale"]'
    assert paths["window_lo"] == "window.lo" and paths["extras_0"] == "extras[0]" and paths["more_shift"] == "more.shift"
    assert [s.path for s in loaded.task.signature.scalars] == ['batch["meta"]["name"]', "extras[1]", "more.label"]
    draw = loaded.draw(0, 3)
    (batch, window, extras, _), _ = loaded.arguments(draw)
    assert batch["meta"]["scale"] is draw.tensors["batch_meta_scale"] and window.lo is draw.tensors["window_lo"] and extras[1] is None
    doubled = loaded.run(draw.replace({"extras_0": draw.tensors["extras_0"] + 1}))["out"] - loaded.run(draw)["out"]
    assert torch.allclose(doubled, torch.ones(8, 32), atol=1e-5)


def test_integers_keep_dtype_and_value(tmp_path: Path) -> None:
    body = simple("def forward(self, i, keep, big): return (i * keep).float() + (big % 2)",
                  "[torch.randint(0, 9, (4, 5)), torch.rand(4, 5) > 0.3, torch.tensor(2**24 + 1)]")  # fmt: skip
    loaded = load(tmp_path, body)
    draw = loaded.draw(0, 1)
    assert {n: t.dtype for n, t in draw.tensors.items()} == {"i": torch.int64, "keep": torch.bool, "big": torch.int64}
    assert int(draw.tensors["big"]) == 2**24 + 1


def test_strides_survive_on_compact_memory(tmp_path: Path) -> None:
    inputs = "[torch.randn(48, 64).t(), torch.randn(64, 96)[:, ::2], torch.randn(70, 48)[6:], torch.randn(1, 48).expand(64, 48)]"
    loaded = load(tmp_path, simple("def forward(self, a, b, c, d): return a * 2 + b - c + d", inputs))
    assert [t.stride for t in loaded.task.signature.inputs] == [(1, 64), (96, 2), (48, 1), (0, 1)]
    draw = loaded.draw(0, 5)
    assert [t.untyped_storage().nbytes() // 4 for t in draw.tensors.values()] == [t.span for t in loaded.task.signature.inputs]
    a, b, c, d = draw.tensors.values()
    assert torch.equal(loaded.run(draw)["out"], a * 2 + b - c + d)


def test_mixed_outputs_get_names_constants_and_an_expression(tmp_path: Path) -> None:
    forward = """
        def forward(self, x):
            values, indices = torch.topk(x, 2)
            return values, indices, {"positive": x > 0}, 8, None
    """
    signature = load(tmp_path, simple(forward)).task.signature
    assert signature.outputs_expr == '(out0, out1, {"positive": out2}, 8, None)'
    assert [(t.name, t.path, t.dtype) for t in signature.outputs] == [
        ("out0", "output[0]", "float32"), ("out1", "output[1]", "int64"), ("out2", 'output[2]["positive"]', "bool"),
    ]  # fmt: skip


def test_in_place_reference_sees_its_own_copy_and_is_noted(tmp_path: Path) -> None:
    loaded = load(tmp_path, simple("def forward(self, x):\n    x.mul_(3.0).add_(1.0)\n    return x[:, :3]"))
    draw = loaded.draw(0, 1)
    before = draw.tensors["x"].clone()
    first, second = loaded.run(draw)["out"], loaded.run(draw)["out"]
    assert torch.equal(draw.tensors["x"], before) and torch.equal(first, second)
    assert first.data_ptr() != second.data_ptr() and any("in place" in n for n in loaded.notes)


STATEFUL = simple(
    "def forward(self, x):\n    self.calls += 1\n    self.seen = 7\n    return self.bn(x) * self.ramp + self.plain + self.calls",
    "[torch.randn(16, 6)]",
    "self.bn = nn.BatchNorm1d(6)\nself.register_buffer('calls', torch.zeros((), dtype=torch.int64))\n"
    "self.register_buffer('ramp', torch.linspace(0, 1, 6), persistent=False)\nself.plain = torch.full((6,), 0.25)",
)


def test_changed_buffers_are_outputs_and_every_call_starts_afresh(tmp_path: Path) -> None:
    loaded = load(tmp_path, STATEFUL)
    states = [t.name for t in loaded.task.signature.of_role(Role.STATE)]
    assert states == ["out_calls", "out_bn_running_mean", "out_bn_running_var", "out_bn_num_batches_tracked"]
    assert loaded.task.signature.tensor("plain").role is Role.ATTRIBUTE
    draw = loaded.draw(0, 1)
    runs = [loaded.run(draw) for _ in range(3)]
    assert all(int(r["out_calls"]) == 1 and torch.equal(r["out"], runs[0]["out"]) for r in runs)
    assert int(loaded.model.calls) == 0 and not hasattr(loaded.model, "seen")


def test_bound_weights_are_the_modules_own_memory(tmp_path: Path) -> None:
    loaded = load(tmp_path, STATEFUL)
    new = {name: tensor.clone() for name, tensor in loaded.weights().items()}
    loaded.bind(new)
    draw = loaded.draw(0, 1)
    before = loaded.run(draw)["out"]
    new["plain"].add_(1.0)
    new["ramp"].mul_(0.0)
    new["bn_bias"].fill_(5.0)
    assert torch.allclose(loaded.run(draw)["out"], torch.full((16, 6), 2.25))
    assert not torch.allclose(before, loaded.run(draw)["out"])


def test_tied_weights_are_one_tensor(tmp_path: Path) -> None:
    loaded = load(tmp_path, simple("def forward(self, x): return self.b(self.a(x))",
                                   init="self.a = nn.Linear(6, 6, bias=False)\nself.b = nn.Linear(6, 6, bias=False)\nself.b.weight = self.a.weight"))  # fmt: skip  # noqa: E501
    assert [t.name for t in loaded.task.signature.weights] == ["a_weight"]
    loaded.bind({"a_weight": 2 * torch.eye(6)})
    draw = loaded.draw(0, 1)
    assert torch.equal(loaded.run(draw)["out"], 4 * draw.tensors["x"])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (simple("def forward(self, x): return self.drop(x)", init="self.drop = nn.Dropout(0.5)"), "stochastic"),
        (simple("def forward(self, x): return x + torch.rand_like(x)"), "stochastic"),
        (simple("def forward(self, x): return torch.complex(x, x)"), "complex"),
        (simple("def forward(self, x): return x.to_sparse()"), "sparse"),
        (simple("def forward(self, x): return 3"), "empty"),
        (simple("def forward(self, x): return x[:0]"), "empty"),
        (simple("def forward(self, x): return x.numpy()"), "numpy"),
        (
            simple("def forward(self, x):\n    self.w.data.add_(1)\n    return x * self.w", init="self.w = nn.Parameter(torch.ones(6))"),
            "parameter `w`",
        ),
        (simple("def forward(self, x):\n    self.h = self.h + 1\n    return x + self.h", init="self.h = torch.zeros(6)"), "attribute `h`"),
        (simple("def forward(self, x): return x.sum()", "[torch.randn(4).to_sparse()]"), "input `x`"),
        (simple("def forward(self, x, m): return 2 * x", "[torch.randn(4), 1 << 63]"), "input `m` is an integer beyond 64 bits"),
    ],
)
def test_refused_by_name(tmp_path: Path, body: str, words: str) -> None:
    assert words in refused(tmp_path, body)


def test_output_shapes_and_constants_that_depend_on_data_are_refused(tmp_path: Path) -> None:
    shapes = load(tmp_path, simple("def forward(self, x): return x[x > 0]", "[torch.randn(40)]"))
    with pytest.raises(TaskError, match="depend on the data"):
        for seed in range(20):
            shapes.run(shapes.draw(0, seed))
    constants = load(tmp_path, simple("def forward(self, x): return x * 2, float(x.sum())"))
    with pytest.raises(TaskError, match=r"output\[1\]"):
        constants.run(constants.draw(0, 99))


def test_too_large_is_refused_before_anything_is_allocated(tmp_path: Path) -> None:
    body = simple("def forward(self, pred, target): return torch.clamp(1.0 - pred * target, min=0.0)",
                  "[torch.rand(1 << 20, 1 << 20), torch.sign(torch.rand(1 << 20, 1 << 20) - 0.5)]")  # fmt: skip
    text = refused(tmp_path, body)
    assert "too large" in text and "4096.00 GiB" in text and "(1048576, 1048576) float32" in text and "smaller shapes" in text


def test_what_is_free_is_the_limit_but_not_of_a_known_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, simple("def forward(self, x): return x + 1"))
    monkeypatch.setattr("evokernel.task.sizes.available_bytes", lambda: 100)
    with pytest.raises(TaskError, match="too large"):
        load_task(file)
    assert load_task(file, known=True).task.variants


def test_fake_tensors_never_reach_a_cache_of_the_task(tmp_path: Path) -> None:
    extra = "import functools\n@functools.lru_cache\ndef table(n):\n    return torch.arange(n).float()\n"
    loaded = load(tmp_path, simple("def forward(self, x): return x * table(6)", extra=extra))
    draw = loaded.draw(0, 1)
    assert torch.equal(loaded.run(draw)["out"], draw.tensors["x"] * torch.arange(6.0))


def test_inputs_with_history_are_detached(tmp_path: Path) -> None:
    loaded = load(tmp_path, simple("def forward(self, a, b): return a * b * self.w", "[torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True) * 2]",  # noqa: E501
                                   "self.w = nn.Parameter(torch.ones(4))"))  # fmt: skip
    draw = loaded.draw(0, 1)
    assert not any(t.requires_grad for t in draw.tensors.values()) and loaded.run(draw)["out"].grad_fn is None


def test_scalars_pass_unchanged_and_drawn_ones_vary(tmp_path: Path) -> None:
    body = simple("def forward(self, x, alpha, power, bias, square, mode, gain):\n    assert bias is None and square is True and mode == 'sum'\n"
                  "    return alpha * x ** power * gain", "[torch.rand(4), random.uniform(0.1, 2), 3, None, True, 'sum', torch.tensor(1.5)]", extra="import random")  # fmt: skip  # noqa: E501
    scalars = {s.name: (s.value, s.varies) for s in load(tmp_path, body).task.signature.scalars}
    assert scalars["alpha"][1] and [scalars[n] for n in ("power", "bias", "square", "mode")] == [
        (3, False),
        (None, False),
        (True, False),
        ("sum", False),
    ]


@pytest.mark.parametrize(
    ("inputs", "init", "note"),
    [
        ("torch.randn(8, 6)", "6", "bare Tensor"),
        ("(t for t in [torch.randn(8, 6)])", "[6]", "generator"),
        ('{"x": torch.randn(8, 6)}', '{"n": 6}', ""),
    ],
)
def test_bare_values_generators_and_keyword_dicts(tmp_path: Path, inputs: str, init: str, note: str) -> None:
    body = f"""
class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm = nn.LayerNorm(n)
    def forward(self, x):
        return self.norm(x)
def get_inputs():
    return {inputs}
def get_init_inputs():
    return {init}
"""
    loaded = load(tmp_path, body)
    assert loaded.task.signature.tensor("x").shape == (8, 6) and loaded.task.signature.call == "Model(n=6)"
    assert note in " ".join(loaded.notes) and bool(note) == bool(loaded.notes)


def test_names_that_mean_something_else_give_way(tmp_path: Path) -> None:
    loaded = load(tmp_path, simple("def forward(self, device, out, min): return device + out + min", "[torch.randn(3), torch.randn(3), torch.randn(3)]",  # noqa: E501
                                   extra="json = None\ntime = 0.0\ninputs = 'no'\nclass ModelNew(nn.Module): pass"))  # fmt: skip
    assert [t.name for t in loaded.task.signature.tensors] == ["device_", "out_", "min_", "out"]
    assert sum("launch plans" in n for n in loaded.notes) == 3


def test_a_task_is_a_real_module(tmp_path: Path) -> None:
    body = """
from __future__ import annotations
import inspect, os, pickle, sys
from dataclasses import dataclass
import torch, torch.nn as nn
HERE = os.path.dirname(os.path.abspath(__file__))
@dataclass
class Config:
    width: int = 6
class Model(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.cfg = pickle.loads(pickle.dumps(cfg))
        assert "self.cfg" in inspect.getsource(Model)
    def forward(self, x):
        return x * self.cfg.width
def get_inputs():
    return [torch.randn(2, Config().width)]
def get_init_inputs():
    return [Config()]
if __name__ == "__main__":
    sys.exit(3)
"""
    file = tmp_path / "real.py"
    file.write_text(body)
    first, second = load_task(file), load_task(file)
    assert type(first.model) is not type(second.model) and first.task.id == second.task.id
    assert first.task.signature.call == "Model(cfg=Config(width=6))"


def test_a_task_may_import_its_own_package(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    write(tmp_path, "def double(x): return x * 2\n", "mypackage_a/ops.py")
    (tmp_path / "mypackage_a/__init__.py").write_text("")
    (tmp_path / "mypackage_b.py").write_text("K = 3\n")
    body = simple("def forward(self, x): return double(x) * K", extra="from .ops import double\nfrom mypackage_b import K\n")
    loaded = load_task(write(tmp_path, body, "mypackage_a/task.py"))
    draw = loaded.draw(0, 1)
    assert torch.equal(loaded.run(draw)["out"], draw.tensors["x"] * 6)
    assert sys.path[0] != str(tmp_path)


def test_options_are_read_and_checked(tmp_path: Path) -> None:
    options = 'EVOKERNEL = {"name": "mine", "precision": "tf32", "shapes": [{"n": 3}], "domain": {"x": (0, 2)}}\n'
    body = simple("def forward(self, x): return x + 1").replace(
        "get_inputs():\n    return [torch.randn(4, 6)]", "get_inputs(n=4):\n    return [torch.randn(n, 6)]"
    )
    task = load(tmp_path, options + body).task
    assert task.name == "mine" and task.options.precision is Precision.TF32 and task.options.domain["x"].high == 2.0
    assert [v.tensor("x").shape for v in task.variants] == [(4, 6), (3, 6)]
    for wrong, words in [('{"speed": 1}', "known keys: name, precision"), ('{"shapes": [{"m": 3}]}', "get_inputs takes n"),
                         ('{"domain": {"y": "own"}}', "'y'"), ('{"precision": "half"}', "half"), ('{"score": "hot"}', "hot")]:  # fmt: skip
        with pytest.raises(TaskError, match="EVOKERNEL") as caught:
            load(tmp_path, f"EVOKERNEL = {wrong}\n{body}")
        assert words in str(caught.value) and not caught.value.refused


def test_id_depends_on_source_options_and_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "import os\n" + simple("def forward(self, x): return x + 1", "[torch.randn(int(os.environ.get('EVK_TEST_N', '4')))]")
    first = load(tmp_path, body).task.id
    assert load(tmp_path, body).task.id == first != load(tmp_path, body + "# more\n").task.id
    monkeypatch.setenv("EVK_TEST_N", "5")
    assert load(tmp_path, body).task.id != first


def test_kernelbench_layout(tmp_path: Path) -> None:
    body = simple("def forward(self, x): return torch.softmax(x, dim=1)")
    write(tmp_path, body, "KernelBench/level1/23_Softmax.py")
    write(tmp_path, body, "KernelBench/level1/2_Other.py")
    assert load_task(f"{tmp_path}:level1/23").task.name == "23_Softmax" and load_task(f"{tmp_path}:1/2").task.name == "2_Other"
    for wrong, words in [(":1/99", "0 files"), (":7/1", "level7"), (":x", "level/number|does not exist")]:
        with pytest.raises(UsageError, match=words):
            load_task(f"{tmp_path}{wrong}")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("x = = 1", "SyntaxError"),
        ("import no_such_module_anywhere", "no_such_module_anywhere"),
        ("def get_inputs(): return []", "no class `Model`"),
        ("class Model(nn.Module): pass", "no function `get_inputs`"),
        (simple("def forward(self, x, y): return x"), "does not fit forward"),
        (simple("def forward(self, x): return x @ x"), "line 8"),
        ("import sys; sys.exit(3)", "SystemExit"),
    ],
)
def test_a_broken_file_says_where(tmp_path: Path, body: str, words: str) -> None:
    with pytest.raises(TaskError) as caught:
        load(tmp_path, body)
    assert words in str(caught.value) and not caught.value.refused


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        load_task(tmp_path / "none.py")


def test_phases_are_reported_before_the_users_code_runs(tmp_path: Path) -> None:
    phases: list[str] = []
    loaded = load_task(write(tmp_path, simple("def forward(self, x): return x + 1")), on_phase=phases.append)
    assert list(dict.fromkeys(phases)) == ["import", "inputs", "init", "forward"]
    phases.clear()
    loaded.run(loaded.draw(0, 1))
    assert phases == ["inputs", "judging", "forward", "judging"]  # and when it is over


def test_draws_repeat_with_their_seed_and_leave_the_generators_alone(tmp_path: Path) -> None:
    loaded = load(tmp_path, simple("def forward(self, x): return x + 1"))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    a, b, c = (loaded.draw(0, s).tensors["x"] for s in (1, 1, 2))
    assert torch.equal(a, b) and not torch.equal(a, c) and torch.equal(torch.rand(3), expected)
