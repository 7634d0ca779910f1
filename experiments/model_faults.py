"""A provider that fails half of its calls, and a search that is killed (-9) and resumed many times: what is lost, judged twice, or not counted?

    python experiments/model_faults.py [--kills 40] [--candidates 400] [--seed N] [--write]

The judge is the double of tests/search (a verdict is arithmetic), the provider that of tests/models: an HTTP server on loopback that the real SDK
talks to, which answers after 20 to 300 ms, and in half of the calls with 429, 500, 503, 529 or a body that breaks off. It keeps the account:
every answer whose text it began to send is billed. The session is a real process, killed at a random moment, also in the middle of calls and of
transactions; pauses after failed calls are shortened. Exit code 1 where something is wrong.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import report

sys.path.insert(0, str(Path(__file__).parent.parent))
from evokernel.api import open_models
from evokernel.archive.runs import Judged, RunSettings
from evokernel.archive.store import Archive
from evokernel.search import run as search
from evokernel.search.state import fold
from tests.models.loopback import Answer, Request, serving
from tests.search.fake_judge import FakeJudge, kernel_text

USAGE = (1000, 0, 0, 100)  # tokens in, cached, written, out
ERRORS = ((429, "rate_limit_error"), (500, "server_error"), (503, "server_error"), (529, "overloaded_error"))


class Provider:
    """Decides what the server sends, and counts what it bills."""

    def __init__(self, seed: int) -> None:
        self._rng, self._lock = random.Random(seed), threading.Lock()
        self.calls = self.failed = self.tokens = 0

    def __call__(self, _: Request) -> Answer:
        with self._lock:
            self.calls += 1
            number, wait_s, fails, broken = self.calls, self._rng.uniform(0.02, 0.3), self._rng.random() < 0.5, self._rng.random() < 0.2
            status, kind = self._rng.choice(ERRORS)
            self.failed += fails
            if not fails or broken:
                self.tokens += USAGE[0] + USAGE[3]
        time.sleep(wait_s)
        if fails and not broken:
            return Answer(status=status, error=(kind, kind, "fails by intention", None), headers={"retry-after": "0.05"})
        wrong = "  // WRONG" if number % 8 == 7 else ""
        text = kernel_text(300 + number * 37 % 400, extra=f"int n{number};{wrong}", strategy=f"Draft {number}.")
        return Answer(f"```cpp\n{text}```\n", "stop", USAGE, break_after=60 if broken and fails else None)


def session(path: Path, url: str, candidates: int) -> None:
    """The process that is killed: begins the run, or goes on with it."""
    search._BACK_OFF_S, search._LOOK_S = (0.05, 0.1), 0.02  # type: ignore[attr-defined,misc]
    judge = FakeJudge(journal=path.with_suffix(".journal"))
    settings = RunSettings("cpp", candidates=candidates, models=(f"openai/double@{url}",))
    with Archive(path) as archive:
        runs = archive.runs()
        if runs:
            search.resume(archive, judge, runs[0].id, models=open_models(settings))
        else:
            search.run_search(archive, judge, settings, models=open_models(settings))


class History:
    """What the archive held when it was last looked at."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.problems: list[str] = []
        self.spent = 0

    def look(self, path: Path, moment: str, provider: Provider) -> bool:
        """Compare with what was there before; whether the run is over."""
        billed = provider.tokens  # before the archive is read: later answers may not have come in yet
        with Archive(path) as archive:
            runs = archive.runs()
            if not runs:
                self.problems += [f"{moment}: the run is gone"] * bool(self.events)
                return False
            self.problems += [f"{moment}: {p}" for p in archive.check()]
            events = archive.events(runs[0].id)
            said = [repr(e) for e in events]
            if said[: len(self.events)] != self.events:
                self.problems.append(f"{moment}: stored events are lost or changed")
            self.events = said
            twice = [n for n, times in Counter(e.event.number for e in events if isinstance(e.event, Judged)).items() if times > 1]
            self.problems += [f"{moment}: proposal {n} was judged twice" for n in twice]
            self.spent = fold(events).written.spending.total[0]
            if self.spent < billed:
                self.problems.append(f"{moment}: {self.spent} tokens are counted, {billed} were billed")
            return runs[0].ended is not None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--candidates", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0, help="of the provider and the killer; moments are never the same twice")
    parser.add_argument("--write", action="store_true", help="write experiments/results/model_faults.json")
    parser.add_argument("--session", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.session:
        session(Path(arguments.session[0]), arguments.session[1], arguments.candidates)
        return
    start, rng, provider, history, kills = time.monotonic(), random.Random(arguments.seed), Provider(arguments.seed), History(), 0
    with tempfile.TemporaryDirectory() as folder, serving(provider) as server:
        path = Path(folder) / "archive.db"
        command = [sys.executable, __file__, "--candidates", str(arguments.candidates), "--session", str(path), server.url]
        over = False
        while not over:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            asked = len(server.requests)
            if kills < arguments.kills:
                while len(server.requests) == asked and process.poll() is None:
                    time.sleep(0.01)  # a kill before anything was begun says nothing
                time.sleep(rng.uniform(0.0, 1.5))
                kills += process.poll() is None
                process.send_signal(signal.SIGKILL)
            said = process.communicate()[1]
            if process.returncode not in (0, -signal.SIGKILL):
                history.problems.append(f"the session ended with {process.returncode}: {said[-500:]}")
            over = history.look(path, f"after kill {kills}", provider) or len(history.problems) > 5
        with Archive(path) as archive:
            state = fold(archive.events(archive.runs()[0].id))
        journal = Counter(path.with_suffix(".journal").read_text().split()) if path.with_suffix(".journal").exists() else Counter()
    if state.candidates != arguments.candidates:
        history.problems.append(f"{state.candidates} candidates were judged, not {arguments.candidates}")
    again = sum(times - 1 for times in journal.values())
    result: dict[str, Any] = {
        "kills": kills, "candidates": state.candidates, "calls": provider.calls, "calls_failed": provider.failed, "tokens_billed": provider.tokens,
        "tokens_counted": history.spent, "judged_again_because_cut_off": again, "problems": history.problems,
        "seconds": round(time.monotonic() - start),
    }  # fmt: skip
    for key, value in result.items():
        print(f"{key}: {value}")
    if arguments.write:
        print(report.write("model_faults", result))
    sys.exit(bool(history.problems) or kills < arguments.kills)


if __name__ == "__main__":
    main()
