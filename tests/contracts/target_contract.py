"""What every target must do. A target's own test module subclasses `TargetContract`, fills in its kernel files, and brings its memory.

All kernel files are for the task of `SIGNATURE`: `out = x * alpha`, 64 float32 elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import pytest

from evokernel import targets
from evokernel.kernelfile import KernelFileError, make_kernel, parse, resolve
from evokernel.kernelfile.steps import Plan
from evokernel.records import Role, ScalarSpec, Signature, TensorSpec

COUNT = 64
SIGNATURE = Signature(
    (TensorSpec("x", Role.INPUT, "x", "float32", (COUNT,), (1,)), TensorSpec("out", Role.OUTPUT, "output", "float32", (COUNT,), (1,))),
    (ScalarSpec("alpha", "alpha", 0.5, varies=True),),
)


class Memory(Protocol):
    """A float32 array that the target's programs can reach."""

    address: int

    def read(self) -> list[float]:
        """The values now; waits for the device."""


class TargetContract:
    """Subclass as `TestX(TargetContract)` with the class attributes below."""

    name: str
    scale: str  # a correct kernel file with the function `scale` and the launch arguments (x, out, x.numel, alpha)
    two_launches: str  # a correct kernel file whose second launch reads what the first wrote, with a @scratch `t` of COUNT float32
    broken: str  # does not compile, because of its line 3
    refused: str  # compiles, but keeps state from launch to launch, because of its line 3

    def memory(self, values: Sequence[float]) -> Memory:
        raise AssertionError("a target's tests bring its memory")

    @pytest.fixture
    def target(self) -> targets.Target:
        target = targets.get(self.name)
        if (reason := target.available()) is not None:
            pytest.skip(reason)
        return target

    def plan(self, target: targets.Target, text: str) -> Plan:
        return resolve(parse(make_kernel(text, self.name)), SIGNATURE, target.device())

    def build(self, target: targets.Target, text: str, directory: Path) -> targets.Artifact:
        plan = self.plan(target, text)
        dtypes = plan.dtypes(SIGNATURE)
        return target.build(plan, dtypes, directory, target.device())

    def test_it_is_registered_and_describes_its_device(self, target: targets.Target) -> None:
        device = target.device()
        assert self.name in targets.names() and target.name == device.target == self.name and target.suffix.startswith(".")
        assert device.name and device.architecture and device.sm_count >= 1 and target.compiler()
        assert target.device() == device

    def test_the_same_plan_is_built_once(self, target: targets.Target, build_directory: Path) -> None:
        first = self.build(target, self.scale, build_directory)
        made = Path(first.path).stat()
        assert self.build(target, self.scale, build_directory) == first
        again = Path(first.path).stat()
        assert (made.st_ino, made.st_mtime_ns) == (again.st_ino, again.st_mtime_ns), "it was built anew"
        assert Path(first.path).is_relative_to(build_directory) and first.resources.code_bytes > 0

    def test_a_launch_computes_with_the_numbers_of_each_call(self, target: targets.Target, build_directory: Path) -> None:
        program = target.load(self.build(target, self.scale, build_directory))
        x, out = self.memory([float(i) for i in range(COUNT)]), self.memory([-1.0] * COUNT)
        for alpha in (0.5, 3.0):
            program.launch(0, (x.address, out.address), (COUNT, alpha))
            assert out.read() == [i * alpha for i in range(COUNT)]
        program.launch(0, (x.address, out.address), (2, 100.0))
        assert out.read()[:4] == [0.0, 100.0, 6.0, 9.0]

    def test_launches_are_numbered_as_in_the_plan(self, target: targets.Target, build_directory: Path) -> None:
        artifact = self.build(target, self.two_launches, build_directory)
        assert len(artifact.functions) == 2
        program = target.load(artifact)
        x, t, out = self.memory([float(i) for i in range(COUNT)]), self.memory([0.0] * COUNT), self.memory([0.0] * COUNT)
        program.launch(0, (x.address, t.address), (COUNT, 2.0))
        program.launch(1, (t.address, out.address), (COUNT, 10.0))
        assert out.read() == [i * 20.0 for i in range(COUNT)]

    def test_names_and_lines_do_not_change_the_code_hash_but_code_does(self, target: targets.Target, build_directory: Path) -> None:
        first = self.build(target, self.scale, build_directory)
        renamed = self.build(target, "// one more line\n\n" + self.scale.replace("scale", "another_and_much_longer_name"), build_directory)
        changed = self.build(target, self.scale.replace(" * ", " * 2.0f * "), build_directory)
        assert first.code_hash == renamed.code_hash != changed.code_hash and renamed.path != first.path

    def test_what_does_not_compile_is_a_build_error_with_its_line(self, target: targets.Target, build_directory: Path) -> None:
        with pytest.raises(targets.BuildError, match="line 3") as caught:
            self.build(target, self.broken, build_directory)
        assert str(build_directory) not in str(caught.value) and len(str(caught.value).splitlines()) <= 30

    @pytest.mark.parametrize("arguments", ["(x, out)", "(out, x, x.numel, alpha)", "(x, out, alpha, x.numel, 1)"])
    def test_arguments_that_do_not_fit_point_at_the_launch(self, target: targets.Target, build_directory: Path, arguments: str) -> None:
        with pytest.raises((targets.BuildError, KernelFileError), match="line 1"):
            self.build(target, self.scale.replace("(x, out, x.numel, alpha)", arguments, 1), build_directory)

    def test_state_that_survives_a_launch_is_refused_with_its_line(self, target: targets.Target, build_directory: Path) -> None:
        with pytest.raises(KernelFileError, match="line 3, column"):
            self.build(target, self.refused, build_directory)

    def test_a_missing_artifact_is_an_os_error(self, target: targets.Target, build_directory: Path) -> None:
        artifact = self.build(target, self.scale, build_directory)
        with pytest.raises(OSError):
            target.load(targets.Artifact(f"{artifact.path}.gone", artifact.code_hash, artifact.resources, artifact.functions))
