"""Running the command without starting a process, which costs a second each time: for tests that are not about processes."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from evokernel.cli import main

Here = Callable[..., tuple[int, str, str]]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    """`here(folder, *arguments)`: the exit code, stdout and stderr of the command in that folder."""

    def run(folder: Path, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["evokernel", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return run
