"""Judge shipped kernel files on their tasks and write archive/manifest.jsonl from the verdicts.

    python experiments/seeds.py [--target cpp] [TASK ...]          judge, and put the entries into the manifest
    python experiments/seeds.py --tune 24 [TASK ...]               look at so many configurations first; a better one becomes the file's default
    python experiments/seeds.py --target cuda --entries FILE       judge on another machine, write the entries to FILE
    python experiments/seeds.py --merge FILE                       put such entries into the manifest
    python experiments/seeds.py --bounds                           set stored times against the tasks' bytes again, where the judge counts them anew

One judge a task. A kernel that is not verified is named, gets no entry, and makes the exit code 1. Entries of kernels that were not judged
now stay as they are, those of files that are gone go.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from dataclasses import replace
from pathlib import Path

from evokernel import codec, targets
from evokernel.api import cache_folder, read_kernel
from evokernel.archive.shipped import ManifestEntry, manifest_entry, read_entries, read_manifest, write_manifest
from evokernel.errors import EvokernelError
from evokernel.judge.bounds import Costs, bounds, costs
from evokernel.judge.cases import Cases
from evokernel.judge.lane import Lane, LaneSettings
from evokernel.kernelfile import make_kernel, parse, shipped_gpu
from evokernel.kernelfile.tunables import space, with_defaults
from evokernel.records import Admission, Status, Verdict
from evokernel.task import load_task
from evokernel.view.terminal import outcome

ROOT = Path(__file__).parent.parent
SEEDS = ROOT / "archive"
LICENCE = "Apache-2.0"


def tuned(lane: Lane, admission: Admission, file: Path, verdict: Verdict, most: int) -> Verdict:
    """Make the fastest of the first `most` configurations the file's default, if the full verdict says that it is better."""
    kernel = read_kernel(file)
    configs = space(parse(kernel), admission.task.signature, admission.device)[:most]
    if len(configs) < 2:
        return verdict
    best = min(lane.screen(kernel, configs), key=lambda s: s.time_us or math.inf)
    if best.time_us is None or best.config == verdict.config:
        return verdict
    text = with_defaults(kernel.text, best.config)
    again = lane.judge(make_kernel(text, kernel.target), patience=4.0)
    print(f"    {best.config}: {outcome(again)}", flush=True)
    if again.fitness <= verdict.fitness:
        return verdict
    file.write_text(text, encoding="utf-8")
    return again


def judged(task: str, target: str, tune: int) -> tuple[list[ManifestEntry], list[str]]:
    """Entries for the kernel files of one task and target, and the names of those that are not verified."""
    files = sorted((SEEDS / task).glob(f"*{targets.get(target).suffix}"))
    file = ROOT / "experiments" / "tasks" / f"{task}.py"
    lane = Lane(LaneSettings(str(file), target, cache_folder(), dict(os.environ)))
    entries, failed = [], []
    try:
        admission = lane.admit()
        print(task, {name: round(us, 1) for name, us in admission.baselines_us.items()}, *admission.notes, flush=True)
        for kernel_file in files:
            verdict = lane.judge(read_kernel(kernel_file), patience=4.0)
            print(f"  {kernel_file.name}: {outcome(verdict)}", flush=True)
            if verdict.status is Status.VERIFIED:
                verdict = tuned(lane, admission, kernel_file, verdict, tune)
                entries.append(manifest_entry(SEEDS, kernel_file, admission.task, verdict, licence=LICENCE))
            else:
                failed.append(kernel_file.name)
                print("    " + verdict.message.replace("\n", "\n    "), flush=True)
    except EvokernelError as error:
        failed.append(task)
        print(f"{task}: {error}", flush=True)
    finally:
        lane.close()
    return entries, failed


def merge(new: list[ManifestEntry]) -> Path:
    """Put entries into the manifest in place of older ones of the same files."""
    files = {e.file for e in new}
    kept = [e for e in read_manifest(SEEDS) if e.file not in files and (SEEDS / e.file).exists()]
    current = [e for e in [*kept, *new] if read_kernel(SEEDS / e.file).id == e.kernel_id]
    return write_manifest(SEEDS, current)


def bounded(entries: list[ManifestEntry]) -> list[ManifestEntry]:
    """The entries with shares of the traffic bound that are computed from their stored times, on devices whose peak bandwidth some entry tells."""
    peaks: dict[str, float] = {}
    for entry in entries:
        found, device = entry.verdict.bounds, entry.verdict.environment.device
        if found and found.traffic_fraction:
            peaks[device] = found.traffic_bytes / found.traffic_fraction / 1e3 / cold_us(entry.verdict)
    counted: dict[str, Costs] = {}
    new = []
    for entry in entries:
        peak, verdict, task = peaks.get(entry.verdict.environment.device), entry.verdict, entry.task.name
        if not peak:
            new.append(entry)
            continue
        if task not in counted:
            counted[task] = costs(Cases(load_task(ROOT / "experiments" / "tasks" / f"{task}.py")))
        assert verdict.timing
        there = replace(shipped_gpu(verdict.environment.device), bandwidth_gbs=peak)
        found = bounds(counted[task], there, None, entry.task.options.precision, verdict.timing)
        # The rates of products are not in the entries: that share stays as it was measured.
        found = replace(found, work_fraction=verdict.bounds.work_fraction if verdict.bounds else 0.0)
        new.append(replace(entry, verdict=replace(verdict, bounds=found)))
    return new


def cold_us(verdict: Verdict) -> float:
    assert verdict.timing
    return next(m.median_us for m in verdict.timing.modes if m.mode == "cold")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK")
    parser.add_argument("--target", default="cpp")
    parser.add_argument("--tune", type=int, default=0, metavar="N")
    parser.add_argument("--entries", type=Path, metavar="FILE")
    parser.add_argument("--merge", type=Path, metavar="FILE")
    parser.add_argument("--bounds", action="store_true")
    arguments = parser.parse_args()
    if arguments.bounds:
        print(write_manifest(SEEDS, bounded(read_manifest(SEEDS))))
        return
    if arguments.merge:
        print(merge(read_entries(arguments.merge)))
        return
    suffix = targets.get(arguments.target).suffix
    tasks = arguments.tasks or sorted({f.parent.name for f in SEEDS.glob(f"*/*{suffix}")})
    failures: list[str] = []
    for task in tasks:
        entries, failed = judged(task, arguments.target, arguments.tune)
        failures += failed
        if arguments.entries:
            with arguments.entries.open("a") as out:
                out.writelines(codec.dumps(e) + "\n" for e in entries)
        else:
            merge(entries)
    if failures:
        sys.exit(f"not verified: {', '.join(failures)}")


if __name__ == "__main__":
    main()
