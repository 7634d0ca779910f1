"""The mark of tests that need a language model on this machine."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "local_model: needs a llama.cpp server or llama-cpp-python with a small model; skipped with a reason without")
