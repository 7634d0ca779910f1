"""Stored verdicts measured again: does the new speedup fall inside the old interval, and if not, which side of the race moved?

    python experiments/remeasure.py [--target cpp|cuda] [TASK ...] [--budget-s 560] [--write]     judge the manifest's files again, here
    python experiments/remeasure.py --entries FILE [--write]     compare with new entries, as experiments/seeds.py --entries writes them
    python experiments/remeasure.py --old FILE ...               another manifest than archive/manifest.jsonl (an earlier commit's, say)

Old and new must be the same text on the same kind of device; what else differs is named: versions, compiler, clock. The interval that is looked
at is the one against the baseline that was the fastest then. A race's interval says how well *that* race knew the ratio; what a new day, new
processes and another machine of the kind add shows here.
"""

from __future__ import annotations

import argparse
import collections
import math
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import report

from evokernel import targets
from evokernel.api import cache_folder, read_kernel
from evokernel.archive.shipped import ManifestEntry, manifest_entry, read_entries
from evokernel.errors import EvokernelError
from evokernel.judge.lane import Lane, LaneSettings
from evokernel.records import Status, Verdict

ROOT = Path(__file__).parent.parent
SEEDS = ROOT / "archive"
STILL = 0.01  # a side whose time changed by less has not moved


def judged_again(old: list[ManifestEntry], target: str, until: float) -> Iterator[tuple[ManifestEntry, ManifestEntry | str]]:
    """Each old entry with a new one, or why there is none; one judge a task."""
    by_task: dict[str, list[ManifestEntry]] = collections.defaultdict(list)
    for entry in old:
        by_task[entry.task.name].append(entry)
    for task, entries in by_task.items():
        if time.monotonic() > until:
            return
        lane = Lane(LaneSettings(str(ROOT / "experiments" / "tasks" / f"{task}.py"), target, cache_folder(), dict(os.environ)))
        waiting = list(entries)
        try:
            admission = lane.admit()
            print(task, {name: round(us, 1) for name, us in admission.baselines_us.items()}, flush=True)
            while waiting:
                entry = waiting.pop(0)
                kernel = read_kernel(SEEDS / entry.file)
                if kernel.id != entry.kernel_id or admission.task.id != entry.task.id:
                    yield entry, "the kernel's text or its task has changed since"
                    continue
                verdict = lane.judge(kernel, patience=4.0)
                if verdict.status is Status.VERIFIED:
                    yield entry, manifest_entry(SEEDS, SEEDS / entry.file, admission.task, verdict, licence=entry.licence)
                else:
                    yield entry, f"{verdict.status.value}: {verdict.message}"
        except EvokernelError as error:
            yield from ((entry, str(error)) for entry in (waiting if len(waiting) == len(entries) else [entry, *waiting]))
        finally:
            lane.close()


def paired(old: list[ManifestEntry], new: list[ManifestEntry]) -> Iterator[tuple[ManifestEntry, ManifestEntry | str]]:
    """Each old entry with the new one of the same text and task, where that is another measurement."""
    found = {(e.kernel_id, e.task.id): e for e in new}
    for entry in old:
        other = found.get((entry.kernel_id, entry.task.id))
        if other and other.verdict != entry.verdict:
            yield entry, other


def compared(old: Verdict, new: Verdict) -> dict[str, Any]:
    """The old interval and the new one against the baseline that was the fastest then; how far each side's time moved; what differs."""
    assert old.timing and new.timing
    then, now = old.timing.scored, new.timing.scored
    rival = then.fastest
    same = next((b for b in now.baselines if b.name == rival.name), now.fastest)
    before, after = rival.speedup, same.speedup
    candidate = now.median_us / then.median_us
    earlier = {b.name: b for b in then.baselines}
    baselines = {b.name: b.median_us / earlier[b.name].median_us for b in now.baselines if b.name in earlier}
    inside = before.low <= after.mid <= before.high
    return {
        "against": same.name, "old": [before.low, before.mid, before.high], "new": [after.low, after.mid, after.high],
        "inside": inside, "overlap": after.low <= before.high and before.low <= after.high, "change_percent": 100 * (after.mid / before.mid - 1),
        "candidate_ratio": candidate, "baseline_ratios": baselines, "moved": "" if inside else moved(candidate, baselines.get(same.name, 1.0)),
        "old_us": {"candidate": then.median_us, **{b.name: b.median_us for b in then.baselines}},
        "not_raced": [what for what, b in (("old", rival), ("new", same)) if not b.live],
        "fastest_now": now.fastest.name, "fastest_new": [now.fastest.speedup.low, now.fastest.speedup.mid, now.fastest.speedup.high],
        "clock_mhz": [old.timing.clock_mhz, new.timing.clock_mhz], "void_blocks": [old.timing.void_blocks, new.timing.void_blocks],
        "calls": [then.calls, now.calls], "differs": differing(old, new),
    }  # fmt: skip


def moved(candidate: float, baseline: float) -> str:
    """Which side's time changed, of a kernel that fell outside."""
    sides = [name for name, ratio in (("candidate", candidate), ("baseline", baseline)) if abs(math.log(ratio)) > math.log1p(STILL)]
    return " and ".join(sides) or f"neither by more than {100 * STILL:.0f} %"


def differing(old: Verdict, new: Verdict) -> dict[str, list[str]]:
    """Versions and the like that are not the same: name -> [old, new]."""

    def facts(verdict: Verdict) -> dict[str, str]:
        e = verdict.environment
        named = {"device": e.device, "architecture": e.architecture, "compiler": e.compiler, "protocol": str(e.protocol), "code": verdict.code_hash}
        return {**named, "config": str(verdict.config), **e.versions}

    before, after = facts(old), facts(new)
    return {k: [before.get(k, "-"), after.get(k, "-")] for k in sorted(before | after) if before.get(k) != after.get(k)}


def told(file: str, row: dict[str, Any]) -> str:
    if "why" in row:
        return f"{file}: not measured again: {row['why']}"
    show = [f"{mid:.3f} [{low:.3f}, {high:.3f}]" for low, mid, high in (row["old"], row["new"])]
    where = "inside" if row["inside"] else f"{'overlaps' if row['overlap'] else 'apart'} ({row['change_percent']:+.1f} %), moved: {row['moved']}"
    sides = ", ".join(f"{name} {ratio:.3f}" for name, ratio in (("candidate", row["candidate_ratio"]), *row["baseline_ratios"].items()))
    cached = f"; cached times: {', '.join(row['not_raced'])}" if row["not_raced"] else ""
    faster = "" if row["fastest_now"] == row["against"] else f"; now the fastest is {row['fastest_now']}"
    return f"{file}: {show[0]} -> {show[1]} against {row['against']}: {where}; times new/old: {sides}{cached}{faster}"


def summary(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Counts, and how far speedups and times moved: of all, and of those that the same protocol measured both times."""
    same = {file: r for file, r in rows.items() if "differs" in r and "protocol" not in r["differs"]}
    return {**counted(rows), "with_the_same_protocol": counted(same)}


def counted(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The counts of `summary` for some rows."""
    found = [r for r in rows.values() if "old" in r]
    outside = [r for r in found if not r["inside"]]
    changes = sorted(abs(r["change_percent"]) for r in found)
    return {
        "remeasured": len(found), "inside": len(found) - len(outside), "overlapping": sum(r["overlap"] for r in found),
        "lower_bound_holds": sum(r["new"][1] >= r["old"][0] for r in found), "another_fastest": sum(r["fastest_now"] != r["against"] for r in found),
        "moved": dict(collections.Counter(r["moved"] for r in outside)),
        "change_percent": {"median": statistics.median(changes), "most": changes[-1]} if changes else {},
        "not_measured_again": {file: r["why"] for file, r in rows.items() if "why" in r},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK")
    parser.add_argument("--target", choices=("cpp", "cuda"), default="cpp")
    parser.add_argument("--old", type=Path, default=SEEDS / "manifest.jsonl", metavar="FILE")
    parser.add_argument("--entries", type=Path, metavar="FILE", help="new entries instead of judging")
    parser.add_argument("--budget-s", type=float, default=math.inf, help="begin no other task after so many seconds")
    parser.add_argument("--write", action="store_true", help="write experiments/results/remeasure_TARGET.json")
    arguments = parser.parse_args()
    start, target = time.monotonic(), arguments.target
    old = [e for e in read_entries(arguments.old) if e.target == target and (not arguments.tasks or e.task.name in arguments.tasks)]
    if arguments.entries:
        pairs = paired(old, read_entries(arguments.entries))
    else:
        device = targets.get(target).device().name
        if others := {e.verdict.environment.device for e in old} - {device}:
            print(f"left out, measured on another kind of device: {', '.join(sorted(others))}")
        pairs = judged_again([e for e in old if e.verdict.environment.device == device], target, start + arguments.budget_s)
    rows: dict[str, dict[str, Any]] = {}
    for entry, new in pairs:
        rows[entry.file] = {"why": new} if isinstance(new, str) else compared(entry.verdict, new.verdict)
        print(f"{time.monotonic() - start:5.0f} s  {told(entry.file, rows[entry.file])}", flush=True)
        if arguments.write:
            report.write(f"remeasure_{target}", {"summary": summary(rows), "kernels": rows}, target)
    for key, value in summary(rows).items():
        print(f"{key}: {value}")


if __name__ == "__main__":
    main()
