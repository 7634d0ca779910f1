"""Who is to blame when a process ends: the kernel in it, or nobody because the zygote was killed."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from evokernel.errors import JudgeError
from evokernel.judge.contestant import Contestant, Failure
from evokernel.judge.zygotes import Zygote, zygote_environment
from evokernel.records import Status

ENTRY = """
def main(channel):
    while True:
        message = channel.receive()
        if "answer" in message:
            channel.send(message)
"""


@pytest.fixture
def zygote(tmp_path: Path) -> Iterator[Zygote]:
    (tmp_path / "waits.py").write_text(ENTRY)
    environment = zygote_environment(1, os.environ)
    opened = Zygote({**environment, "PYTHONPATH": f"{tmp_path}:{environment.get('PYTHONPATH', '')}"}, ())
    yield opened
    opened.close()


def test_a_process_that_ends_alone_failed_itself(zygote: Zygote) -> None:
    one, other = Contestant(zygote, "waits"), Contestant(zygote, "waits")
    assert one.request({"answer": 1}, 10.0) == {"answer": 1}
    os.kill(one._pid, signal.SIGKILL)
    with pytest.raises(Failure) as caught:
        one.request({}, 10.0)
    assert caught.value.status is Status.CRASHED
    assert other.request({"answer": 2}, 10.0) == {"answer": 2}
    other.kill()


def test_no_kernel_is_blamed_for_the_end_of_the_zygote(zygote: Zygote) -> None:
    working, idle = Contestant(zygote, "waits"), Contestant(zygote, "waits")
    working.post({})
    zygote._process.kill()
    with pytest.raises(JudgeError, match="was killed"):
        working.collect(10.0)
    with pytest.raises(JudgeError, match="was killed"):
        idle.request({}, 10.0)
    with pytest.raises(JudgeError):
        Contestant(zygote, "waits")
