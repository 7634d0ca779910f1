"""Every cheating CUDA kernel that the loader can see is refused for the reason it names. Needs no GPU."""

import re
from pathlib import Path

import pytest

from evokernel.kernelfile import KernelFileError
from evokernel.records import Role, Signature, TensorSpec
from evokernel.targets import BuildError

from .cuda_offline import build, needs_compiler

FILES = sorted((Path(__file__).parents[1] / "cheats" / "cu").glob("*.cu"))
SOFTMAX = Signature(
    (TensorSpec("x", Role.INPUT, "x", "float32", (64, 520), (520, 1)), TensorSpec("out", Role.OUTPUT, "output", "float32", (64, 520), (520, 1)))
)
pytestmark = needs_compiler


def test_there_are_cheats() -> None:
    assert len(FILES) >= 25


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_a_cheat_is_refused_for_its_reason(file: Path, build_directory: Path) -> None:
    text = file.read_text()
    expected = re.search(r"^// EXPECT (invalid|build_failed): (.+)$", text, re.MULTILINE)
    assert expected and "// TASK softmax\n" in text, "a cheat names its task and what it expects"
    kind = {"invalid": KernelFileError, "build_failed": BuildError}[expected[1]]
    with pytest.raises(kind) as caught:
        build(text, build_directory, SOFTMAX)
    message = str(caught.value)
    assert re.search(expected[2], message), message
    assert len(message.splitlines()) <= 30 and str(build_directory) not in message
