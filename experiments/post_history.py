"""What came of runs by post (`evokernel ask`, answers of models, `judge --batch`, `tell`): how many answers parse, compile and verify.

    python experiments/post_history.py ARCHIVE.db ... [--write]
    python experiments/post_history.py experiments/results/post/runs.tar.xz [--write]

Counted are answers of models. A first answer is one that repairs nothing; after one repair counts what a first answer or the first repair of it
gave. An answer without a verdict yet is left out. Every candidate is listed with its operator, verdict, time and speedup.
"""

from __future__ import annotations

import argparse
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import report

from evokernel.archive.runs import Answered, Asked, Judged
from evokernel.archive.store import Archive
from evokernel.archive.words import strategy
from evokernel.records import Proposal, Reply, Status


def history(archive: Archive, run_id: str) -> list[dict[str, Any]]:
    """One row a judged proposal, in the order of proposals."""
    asked: dict[int, Proposal] = {}
    replies: dict[int, Reply] = {}
    rows: dict[int, dict[str, Any]] = {}
    for logged in archive.events(run_id):
        match logged.event:
            case Asked(proposal):
                asked[proposal.number] = proposal
            case Answered(number, reply):
                replies[number] = reply
            case Judged(number, placement, verdict):
                proposal, reply, speedup = asked[number], replies.get(number, Reply(None)), verdict.speedup
                rows[number] = {
                    "number": number, "operator": proposal.operator, "by_model": proposal.model is not None, "prompt": proposal.prompt_hash,
                    "parents": list(proposal.parents), "kernel": verdict.kernel_id, "idea": strategy(reply.text or "")[:200],
                    "status": verdict.status.value, "message": verdict.message.partition("\n")[0][:200], "placement": placement.value,
                    "time_us": verdict.time_us, "speedup": [speedup.low, speedup.mid, speedup.high] if speedup else None,
                }  # fmt: skip
    return [rows[n] for n in sorted(rows)]


def counted(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Of the first answers: how many there are, parse, compile, verify, and verify after at most one repair."""
    first = [r for r in rows if r["by_model"] and r["operator"] != "repair"]
    repaired = {r["parents"][0]: r["status"] == Status.VERIFIED for r in reversed(rows) if r["operator"] == "repair" and r["parents"]}
    unparsed = {Status.NO_KERNEL.value, Status.INVALID.value}
    verified = sum(r["status"] == Status.VERIFIED for r in first)
    open_ = [r for r in first if r["status"] != Status.VERIFIED and r["kernel"] not in repaired]
    return {
        "candidates": sum(r["placement"] != "duplicate" for r in rows), "first_answers": len(first),
        "parse": sum(r["status"] not in unparsed for r in first),
        "compile": sum(r["status"] not in {*unparsed, Status.BUILD_FAILED.value} for r in first), "verify": verified,
        "failed_and_not_repaired_yet": len(open_),
        "verify_after_one_repair": verified + sum(repaired.get(r["kernel"], False) for r in first if r["status"] != Status.VERIFIED),
    }  # fmt: skip


def archives(files: list[Path], folder: Path) -> Iterator[Path]:
    """The archive files among `files`, those in tar files unpacked into `folder`."""
    for file in files:
        if tarfile.is_tarfile(file):
            with tarfile.open(file) as tar:
                tar.extractall(folder, filter="data")
            yield from sorted(folder.glob("*.db"))
        else:
            yield file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archives", nargs="+", type=Path, metavar="ARCHIVE")
    parser.add_argument("--write", action="store_true", help="write experiments/results/post_history.json")
    arguments = parser.parse_args()
    runs: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for path in archives(arguments.archives, Path(folder)):
            with Archive(path) as archive:
                for run in archive.runs():
                    rows = history(archive, run.id)
                    fastest = max((r["speedup"][0] for r in rows if r["speedup"]), default=None)
                    name = archive.task(run.task_id).name
                    runs[name] = {"run": run.id, **counted(rows), "best_speedup_low": fastest, "history": rows}
                    print(name, {k: v for k, v in runs[name].items() if k not in ("history", "run")})
    total = {key: sum(r[key] for r in runs.values()) for key in next(iter(runs.values())) if key not in ("run", "history", "best_speedup_low")}
    print("all", total)
    if arguments.write:
        print(report.write("post_history", {"all": total, "runs": runs}))


if __name__ == "__main__":
    main()
