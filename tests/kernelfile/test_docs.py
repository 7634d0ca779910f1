"""docs/kernel-file.md says what the code does."""

import re
from pathlib import Path

import pytest

from evokernel.kernelfile import make_kernel, parse, resolve, shipped_gpu
from evokernel.kernelfile.expressions import DEVICE_ATTRIBUTES, FUNCTIONS, TENSOR_ATTRIBUTES
from evokernel.kernelfile.flags import FLAGS
from evokernel.kernelfile.steplines import LAUNCH_KEYS
from evokernel.kernelfile.vendor import OPS
from evokernel.records import ITEMSIZE_BYTES, Role

from .signatures import CPU, error_of, signature, tensor

TEXT = (Path(__file__).parents[2] / "docs" / "kernel-file.md").read_text(encoding="utf-8")
DIRECTIVES = ("@tune", "@const", "@require", "@scratch", "@persist", "@fill", "@flags", "@nondeterministic", "@launch", "@call", "@prepare")


WORDS = [*FUNCTIONS, *TENSOR_ATTRIBUTES, *DEVICE_ATTRIBUTES, *OPS, *ITEMSIZE_BYTES, *LAUNCH_KEYS, *FLAGS["cpp"], *FLAGS["cuda"]]


@pytest.mark.parametrize("word", [*DIRECTIVES, *WORDS])
def test_every_word_of_the_format_is_described(word: str) -> None:
    assert re.search(rf"(?<!\w){word}(?!\w)", TEXT)


def test_the_loader_knows_the_directives_that_the_page_names() -> None:
    known = str(error_of("// @nothing\n")).split("known: ")[1].split(";")[0].split(", ")
    assert {f"@{word}" for word in known} == set(DIRECTIVES)


@pytest.mark.parametrize("target", ["cpp", "cuda"])
def test_the_examples_resolve(target: str) -> None:
    example = re.findall(rf"```{target}\n(.*?)```", TEXT, re.DOTALL)[0]
    sig = signature(tensor("x", (8, 2048)), tensor("out", (8, 2048), Role.OUTPUT))
    assert resolve(parse(make_kernel(example, target)), sig, CPU if target == "cpp" else shipped_gpu("H200")).steps
