"""How many candidates a search by models needs on a task that is new to the archive, with the shipped stepping stones and without any.

    python experiments/seeding_models.py --step FOLDER                    # one round: judge what was answered, write the next prompts
    python experiments/seeding_models.py --replay experiments/results/post/seeding_runs.tar.xz [--write]

An answer belongs to its prompt, and a prompt shows what the archive knew, so each arm is a run of its own: `empty` begins with an empty archive,
`seeds` with the shipped seeds. Both are asked by file. --step begins the runs that are missing; it writes each prompt as
TASK-ARM.NUMBER.prompt.md, and an answer is expected beside it as TASK-ARM.NUMBER.answer.md from somebody who saw the prompt only.

--replay judges the recorded candidates of all runs again, in their order, both arms of a task in one lane, so that what was measured on different
days or on a busy machine does not count. The figures are those of seeding.py: candidates until the best so far reaches 90 % of the best of both arms
(one more than the budget where it never does), and the final best against the empty archive's; beside them the same count of answers alone, since a
stepping stone that is tried as it is costs a measurement but no answer.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import report
from post_history import archives
from seeding import NEW, REACHED, NewTask, compared, interval, needed, prepared, task_file

from evokernel.api import cache_folder, open_models
from evokernel.archive.runs import Answered, Asked, Judged, RunSettings
from evokernel.archive.store import Archive
from evokernel.judge.lane import Lane, LaneSettings
from evokernel.kernelfile import make_kernel
from evokernel.records import Placement
from evokernel.search.post import Answer, ask, begin, tell
from evokernel.search.run import resume

TASKS: dict[str, NewTask] = {
    name: NEW[name] for name in ("layernorm_gelu of wide rows", "mean_square of many channels", "rmsnorm without its seeds", "softmax of long rows")
} | {
    "linear_relu of a small batch": ("linear_relu", {"256, 1024": "48, 2048", "[1024, 1024]": "[2048, 1536]"}, False),
    "group_norm_silu, a new module": ("group_norm_silu", {}, True),
}
ARMS = ("empty", "seeds")
CANDIDATES, A_ROUND = 8, 2
SETTINGS = RunSettings("cpp", CANDIDATES, models=("file/answers",))


@contextmanager
def lane_of(name: str) -> Iterator[Lane]:
    """A judge for one of the tasks, against eager code only, as in seeding.py."""
    with tempfile.TemporaryDirectory() as folder:
        lane = Lane(LaneSettings(str(task_file(TASKS[name], Path(folder))), "cpp", cache_folder(), dict(os.environ), baselines=("eager",)))
        try:
            yield lane
        finally:
            lane.close()


def stem_of(name: str, arm: str) -> str:
    """What the files of a run are called."""
    return f"{name.replace(',', '').replace(' ', '_')}-{arm}"


def step(name: str, arm: str, lane: Lane, folder: Path) -> None:
    """One round of one run."""
    stem = stem_of(name, arm)
    with Archive(folder / f"{stem}.db") as archive:
        if not archive.runs():
            if arm == "seeds":
                prepared(archive, TASKS[name])
            admission = lane.admit()
            begin(archive, admission.task, admission.device, SETTINGS)
        run = archive.runs()[0]
        if run.ended:
            print(f"{stem}: over ({run.ended})")
            return
        answers = {int(f.name.split(".")[1]): f for f in folder.glob(f"{stem}.*.answer.md")}
        told = tell(archive, run.id, [Answer(number, file.read_text()) for number, file in sorted(answers.items())])
        for reason in told.passed_over:
            print(f"{stem}: passed over: {reason}")
        for file in answers.values():
            file.rename(file.with_name(file.name.replace(".answer.", ".told.")))
        result = resume(archive, lane, run.id, models=open_models(SETTINGS))
        questions = ask(archive, run.id, A_ROUND) if result.resumable else []
        for question in questions:
            (folder / f"{stem}.{question.number}.prompt.md").write_text(question.prefix + question.rest)
        best = f"{result.verdict.speedup.mid:.2f}x" if result.verdict and result.verdict.speedup else "nothing yet"
        asked = ", ".join(f"{q.number} ({q.operator})" for q in questions) or f"none: {result.reason}"
        print(f"{stem}: {told.answers} answers taken, {result.candidates} candidates, best {best}; prompts {asked}", flush=True)


def candidates(archive: Archive) -> list[tuple[str, bool]]:
    """The candidates of an archive's one run, in the order in which they were measured: text, and whether a model wrote it."""
    replies: dict[int, str] = {}
    written: set[int] = set()
    found: dict[int, str] = {}
    for logged in archive.events(archive.runs()[0].id):
        match logged.event:
            case Asked(proposal) if proposal.model:
                written.add(proposal.number)
            case Answered(number, reply):
                replies[number] = reply.text or ""
            case Judged(number, placement, verdict) if verdict.kernel_id and placement is not Placement.DUPLICATE and number not in found:
                found[number] = replies.get(number, "")
    return [(text, number in written) for number, text in found.items()]


def replayed(recorded: dict[str, list[tuple[str, bool]]], lane: Lane) -> dict[str, list[float]]:
    """By arm, the speedup (median, against eager; 0 for none) of the best kernel after each candidate; the arms by turns."""
    times: dict[str, list[float]] = {arm: [] for arm in recorded}
    for number in range(max(map(len, recorded.values()))):
        for arm in random.Random(number).sample(ARMS, len(ARMS)):
            if number < len(recorded[arm]):
                text, _ = recorded[arm][number]
                speedup = lane.judge(make_kernel(text, "cpp")).speedup if text else None
                times[arm].append(max([*times[arm][-1:], speedup.mid if speedup else 0.0]))
    return times


def row(name: str, curves: dict[str, list[float]], by_model: dict[str, list[bool]]) -> dict[str, Any]:
    """One task of the result."""
    level = REACHED * max(c[-1] for c in curves.values())
    count = {arm: needed(curves[arm], level, CANDIDATES) for arm in ARMS}
    answers = {arm: sum(by_model[arm][: count[arm]]) + (count[arm] > len(by_model[arm])) for arm in ARMS}
    return {
        "task": name, "kind": "own seeds left out" if TASKS[name][2] else "other sizes", "curves": curves, "by_model": by_model,
        "needed": count, "answers": answers, "best": {arm: curves[arm][-1] for arm in ARMS},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--step", type=Path, metavar="FOLDER")
    what.add_argument("--replay", type=Path, metavar="RUNS")
    parser.add_argument("--write", action="store_true", help="write experiments/results/seeding_models.json")
    arguments = parser.parse_args()
    if arguments.step:
        arguments.step.mkdir(exist_ok=True)
        for name in TASKS:
            with lane_of(name) as lane:
                for arm in ARMS:
                    step(name, arm, lane, arguments.step)
        return
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as unpacked:
        files = {f.stem: f for f in archives([arguments.replay], Path(unpacked))}
        for name in TASKS:
            recorded = {}
            for arm in ARMS:
                with Archive(files[stem_of(name, arm)]) as archive:
                    recorded[arm] = candidates(archive)
            with lane_of(name) as lane:
                curves = replayed(recorded, lane)
            rows.append(row(name, curves, {arm: [by_model for _, by_model in recorded[arm]] for arm in ARMS}))
            print(f"{name}: needed {rows[-1]['needed']}, best {({a: round(b, 2) for a, b in rows[-1]['best'].items()})}", flush=True)
    summary = compared(rows, CANDIDATES, ARMS)
    summary["answers_saved"] = interval([r["answers"]["empty"] - r["answers"]["seeds"] for r in rows])
    for kind, arms in summary.items():
        print(kind, arms)
    if arguments.write:
        report.write("seeding_models", {"candidates": CANDIDATES, "summary": summary, "rows": rows})


if __name__ == "__main__":
    main()
