"""The shipped kernels as a table: times, the speedup against the fastest baseline, and how much of the bounds each one reaches.

    python experiments/seed_table.py [--write]

Everything is read from the verdicts in archive/manifest.jsonl; nothing is measured.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from evokernel.archive.shipped import ManifestEntry, read_manifest

ROOT = Path(__file__).parent.parent
NOTE = """Times of protocol 2 hold no wait for a launch, those of protocol 1 do (2 to 3 us on a GPU, on both sides); the two are not compared.

Traffic reached: bytes of the inputs whose elements have a gradient and of the outputs, over the peak bandwidth and the time. Not counted:
parameters (weights, the table of an embedding), indices, and what a maximum passes over. Work reached: against the measured rate of a product.
"""
HEAD = """| kernel | protocol | us, cold | against the fastest baseline (99 %) | which | traffic reached | work reached | weights prepared |
|---|---|---|---|---|---|---|---|
"""


def share(fraction: float) -> str:
    return f"{fraction:.0%}" if fraction else "-"


def row(entry: ManifestEntry) -> str:
    verdict = entry.verdict
    assert verdict.timing and verdict.bounds
    scored, speedup = verdict.timing.scored, verdict.timing.scored.fastest.speedup
    gain = f"{speedup.mid:.2f}x [{speedup.low:.2f}, {speedup.high:.2f}]"
    bounds = f"{share(verdict.bounds.traffic_fraction)} | {share(verdict.bounds.work_fraction)}"
    prepares, protocol = "yes" if verdict.timing.prepare_us else "", verdict.environment.protocol
    return f"| {entry.file} | {protocol} | {scored.median_us:.1f} | {gain} | {scored.fastest.name} | {bounds} | {prepares} |\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write experiments/results/seeds.md")
    arguments = parser.parse_args()
    entries = sorted(read_manifest(ROOT / "archive"), key=lambda e: (e.verdict.environment.device, e.file))
    text = ""
    for device in dict.fromkeys(e.verdict.environment.device for e in entries):
        text += f"\n## {device}\n\n{HEAD}" + "".join(row(e) for e in entries if e.verdict.environment.device == device)
    print(text)
    if arguments.write:
        path = ROOT / "experiments" / "results" / "seeds.md"
        path.write_text(f"# Shipped kernels\n\nFrom the verdicts in `archive/manifest.jsonl` (experiments/seed_table.py).\n\n{NOTE}{text}")
        print(path)


if __name__ == "__main__":
    main()
