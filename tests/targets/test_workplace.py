"""Folders for work in progress: whole, private, and gone when their owner is."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from evokernel.targets.workplace import sweep, workplace

HOLD = "import sys, time\nfrom pathlib import Path\nfrom evokernel.targets.workplace import workplace\n"
HOLD += "with workplace(Path(sys.argv[1])) as work:\n    print(work, flush=True)\n    time.sleep(600)\n"


def test_it_is_gone_at_the_end_of_the_work_also_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mid-way"), workplace(tmp_path / "new") as work:
        (work / "file").write_text("x")
        raise ValueError("mid-way")
    assert list((tmp_path / "new").iterdir()) == []


def test_what_is_renamed_into_place_stays(tmp_path: Path) -> None:
    with workplace(tmp_path) as work:
        (work / "file").write_text("x")
        work.rename(tmp_path / "finished")
    assert [p.name for p in tmp_path.rglob("*")] == ["finished", "file"]


def test_a_killed_owners_folder_is_swept_and_a_live_ones_is_not(tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-P", "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout
    theirs = Path(owner.stdout.readline().strip())
    with workplace(tmp_path) as mine:
        sweep(tmp_path)
        assert theirs.is_dir() and mine.is_dir()
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
        owner.stdout.close()
        sweep(tmp_path)
        assert mine.is_dir() and not theirs.exists()
    sweep(tmp_path / "no such folder")
