"""What all tests share: folders of their own for archive and cache, and judges that live for the whole session."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evokernel import targets
from evokernel.judge.lane import Lane, LaneSettings

os.environ.pop("OPENAI_API_KEY", None)
os.environ.pop("ANTHROPIC_API_KEY", None)
os.environ["EVOKERNEL_TEXT_MODEL"] = "none"  # no command leaves a process behind that makes vectors while others are timed
os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "1"  # the compiled baseline asks the CPU alone what it has, not g++ too, which takes it 7 s once a cache
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts the tests in the background has it ignored


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two workers, as tests wait for processes much of the time; one where there is a GPU, which has one tenant."""
    return 2 if targets.get("cuda").available() else 1


@pytest.fixture(scope="session", autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Nothing a test does touches the user's archive or cache. Workers share a cache: what one has built, the other need not build."""
    base = tmp_path_factory.getbasetemp()
    home = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "home"
    home.mkdir(exist_ok=True)
    before = {n: os.environ.get(n) for n in ("XDG_DATA_HOME", "XDG_CACHE_HOME")}
    os.environ["XDG_DATA_HOME"], os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("data")), str(home / "cache")
    yield home
    for name, value in before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


@pytest.fixture(scope="session")
def lane_for(own_folders: Path) -> Iterator[Callable[[Path], Lane]]:
    """A judge for a task file, started on first use and shared by all tests; eager is its only baseline, to start quickly."""
    lanes: dict[Path, Lane] = {}

    def get(task: Path) -> Lane:
        if task not in lanes:
            settings = LaneSettings(str(task), "cpp", own_folders / "cache" / "evokernel", dict(os.environ), baselines=("eager",))
            lanes[task] = Lane(settings)
        return lanes[task]

    yield get
    for lane in lanes.values():
        lane.close()


@pytest.fixture(scope="session")
def build_directory(own_folders: Path) -> Path:
    """One folder for all builds, so that headers are precompiled once; its name breaks careless tools."""
    return own_folders / "a b$c:é"
