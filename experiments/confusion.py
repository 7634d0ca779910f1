"""Judge every cheating and every honest fixture of tests/cheats many times over, and print the confusion matrix.

    python experiments/confusion.py [--target cpp] [--repeat 20] [--task NAME ...] [--write]

Each repetition starts a fresh judge for each task, with seeds and weights of its own. Anything odd is listed: a cheat that is accepted or
rejected for another reason than the file names, an honest kernel that is refused, a judge that fails. Exit code 1 where there was any.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from report import write

from evokernel.api import cache_folder
from evokernel.errors import EvokernelError
from evokernel.judge.lane import Lane, LaneSettings
from evokernel.records import Verdict

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.cheats.fixtures import Fixture, fixtures

CELLS = ("cheat accepted", "cheat rejected for its reason", "cheat rejected for another reason", "honest verified", "honest refused", "judge failed")
ACCEPTED, ITS_REASON, OTHER_REASON, VERIFIED, REFUSED, FAILED = CELLS
SOUND = (ITS_REASON, VERIFIED)


def outcome(fixture: Fixture, verdict: Verdict) -> str:
    """The cell of the matrix that a verdict belongs to."""
    if not fixture.kind:
        return VERIFIED if fixture.as_expected(verdict) else REFUSED
    if verdict.status.value == "verified":
        return ACCEPTED
    return ITS_REASON if fixture.as_expected(verdict) else OTHER_REASON


def repetition(chosen: list[Fixture], target: str) -> Iterator[tuple[Fixture, str, str]]:
    """Each fixture with its outcome and what was said, from one fresh judge a task."""
    by_task = sorted(chosen, key=lambda f: f.task)
    for task, group in itertools.groupby(by_task, key=lambda f: f.task):
        lane = Lane(LaneSettings(str(task), target, cache_folder(), dict(os.environ), baselines=("eager",)))
        try:
            for fixture in group:
                try:
                    verdict = lane.judge(fixture.kernel)
                    yield fixture, outcome(fixture, verdict), f"{verdict.status.value}: {verdict.message}"
                except EvokernelError as error:
                    yield fixture, FAILED, str(error)
        finally:
            lane.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="cpp", choices=("cpp", "cuda"))
    parser.add_argument("--repeat", type=int, help="repetitions (default: 20 on cpp, 3 on cuda)")
    parser.add_argument("--task", nargs="*", default=(), help="only fixtures of these tasks")
    parser.add_argument("--write", action="store_true", help="write experiments/results/confusion_TARGET.json")
    arguments = parser.parse_args()
    repeat = arguments.repeat or {"cpp": 20, "cuda": 3}[arguments.target]
    chosen = [f for f in fixtures(arguments.target) if not arguments.task or f.task.stem in arguments.task]
    seen: dict[Fixture, collections.Counter[str]] = {f: collections.Counter() for f in chosen}
    odd: list[dict[str, Any]] = []
    start = time.monotonic()
    for number in range(1, repeat + 1):
        for fixture, cell, said in repetition(chosen, arguments.target):
            seen[fixture][cell] += 1
            if cell not in SOUND:
                odd.append({"repetition": number, "file": f"{fixture.file.parent.name}/{fixture.file.name}", "outcome": cell, "said": said[:600]})
                print(f"{cell}: {odd[-1]['file']} (task {fixture.task.stem}, repetition {number})\n    " + said[:600].replace("\n", "\n    "))
        print(f"repetition {number} of {repeat}: {time.monotonic() - start:.0f} s, {len(odd)} odd so far", flush=True)
        if arguments.write:
            print(write(f"confusion_{arguments.target}", result(seen, odd, number, time.monotonic() - start), arguments.target))
    print_matrix(result(seen, odd, repeat, time.monotonic() - start))
    sys.exit(1 if odd else 0)


def result(seen: dict[Fixture, collections.Counter[str]], odd: list[dict[str, Any]], repetitions: int, seconds: float) -> dict[str, Any]:
    """What the result file holds, beside where it was measured."""
    cheats = [f for f in seen if f.kind]
    return {
        "repetitions": repetitions, "cheating_files": len(cheats), "honest_files": len(seen) - len(cheats), "kinds": sorted({f.kind for f in cheats}),
        "matrix": {cell: sum(counts[cell] for counts in seen.values()) for cell in CELLS}, "odd": odd, "seconds": round(seconds),
        "files": {f"{f.file.parent.name}/{f.file.name}": {"kind": f.kind, **counts} for f, counts in seen.items()},
    }  # fmt: skip


def print_matrix(found: dict[str, Any]) -> None:
    """The matrix, in judgings."""
    cells, cheats, honest = found["matrix"], found["cheating_files"], found["honest_files"]
    rows = (
        (f"cheating ({cheats} files)", cells[ACCEPTED], cells[ITS_REASON], cells[OTHER_REASON]),
        (f"honest ({honest} files)", cells[VERIFIED], "", cells[REFUSED]),
    )
    print(f"\n{'':26}{'accepted':>10}{'rejected for its reason':>26}{'rejected otherwise':>20}")
    for name, *numbers in rows:
        print(f"{name:26}{numbers[0]:>10}{numbers[1]:>26}{numbers[2]:>20}")
    print(f"judge failed: {cells[FAILED]}")


if __name__ == "__main__":
    main()
