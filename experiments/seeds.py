"""Judge every shipped kernel file on its task and write archive/manifest.jsonl from the verdicts.

    python experiments/seeds.py [TASK ...]

One judge a task; a kernel that is not verified ends the script, and the manifest stays as it was. With task names only those are judged
again, the others keep their entries.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from evokernel.api import cache_folder, read_kernel
from evokernel.archive.shipped import ManifestEntry, manifest_entry, read_manifest, write_manifest
from evokernel.judge.lane import Lane, LaneSettings
from evokernel.records import Status

ROOT = Path(__file__).parent.parent
SEEDS = ROOT / "archive"
LICENCE = "Apache-2.0"


def judged(task: str) -> list[ManifestEntry]:
    """Entries for all kernel files of one task."""
    file = ROOT / "experiments" / "tasks" / f"{task}.py"
    lane = Lane(LaneSettings(str(file), "cpp", cache_folder(), dict(os.environ)))
    entries = []
    try:
        admission = lane.admit()
        print(task, {name: round(us, 1) for name, us in admission.baselines_us.items()}, flush=True)
        for kernel_file in sorted((SEEDS / task).glob("*.cpp")):
            verdict = lane.judge(read_kernel(kernel_file), patience=4.0)
            print(f"  {kernel_file.name}: {verdict.message.splitlines()[0]}", flush=True)
            if verdict.status is not Status.VERIFIED:
                sys.exit(f"{kernel_file} is not verified: {verdict.status}\n{verdict.message}")
            entries.append(manifest_entry(SEEDS, kernel_file, admission.task, verdict, licence=LICENCE))
    finally:
        lane.close()
    return entries


def main() -> None:
    """Judge what was asked for and write the manifest."""
    everything = sorted(d.name for d in SEEDS.iterdir() if d.is_dir())
    asked = sys.argv[1:] or everything
    kept = [e for e in read_manifest(SEEDS) if e.task.name not in asked and e.task.name in everything]
    made = [entry for task in asked for entry in judged(task)]
    print(write_manifest(SEEDS, [*kept, *made]))


if __name__ == "__main__":
    main()
