"""The public API as the README shows it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import evokernel
from evokernel.errors import UsageError

FIXTURES = Path(__file__).parent / "cheats"


def test_importing_loads_neither_torch_nor_a_provider() -> None:
    code = "import sys, evokernel; print(sorted(m for m in sys.modules if m.split('.')[0] in ('torch', 'openai', 'anthropic', 'faiss', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_the_loop_loads_no_torch() -> None:
    code = "import sys, evokernel.api, evokernel.cli, evokernel.search.run; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "False"


@pytest.mark.parametrize("before", ["", "import evokernel.judge.lane", "import evokernel.api"])
def test_judge_is_a_function_whatever_was_imported_before(before: str) -> None:
    code = f"import evokernel\n{before}\ntry: evokernel.judge('nothing.cpp', 'nothing.py')\nexcept Exception as error: print(type(error).__name__)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "UsageError"


def test_names() -> None:
    assert callable(evokernel.evolve) and callable(evokernel.load_task) and callable(evokernel.Archive)
    with pytest.raises(AttributeError, match="no attribute"):
        evokernel.nonsense  # noqa: B018


@pytest.mark.parametrize(("name", "text"), [("k.txt", "x"), ("k.cpp", None), ("k.cpp", "\0")])
def test_a_file_that_is_no_kernel_file(tmp_path: Path, name: str, text: str | None) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match="k\\."):
        evokernel.judge(tmp_path / name, tmp_path / "task.py")


def test_load_task(lane_for: Callable[..., object]) -> None:
    assert evokernel.load_task(FIXTURES / "tasks" / "softmax.py").task.signature.call == "Model()"
