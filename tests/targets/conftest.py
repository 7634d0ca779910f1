"""One build folder for all tests of targets, so that the prelude is precompiled once; its name is an awkward one on purpose."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def build_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("builds") / "a b$c:é"
