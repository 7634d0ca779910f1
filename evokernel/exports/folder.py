"""`evokernel export folder`: verified kernels as plain files with a manifest, in the form of the shipped seeds, which `archive import` reads."""

from __future__ import annotations

import math
from pathlib import Path

from ..archive.shipped import SUFFIXES, ManifestEntry, manifest_entry, write_manifest
from ..archive.store import Archive
from ..errors import UsageError
from .columns import Source
from .selection import Selection, left_out, new_folder, sources


def write_folder(archive: Archive, folder: Path, selection: Selection) -> tuple[int, dict[str, int]]:
    """Write one file a kernel, with the verdict in which it gains most (those measured here before imported ones). Parents are named where they are
    in the folder too. How many kernels there are, and how many were left out, by the reason.

    Raises:
        UsageError: the folder holds something already, or nothing verified is selected.
    """
    best: dict[str, Source] = {}
    for source in sources(archive.database, selection):
        known = best.get(source.kernel["id"])
        if source.verdict and source.verdict.timing and source.kernel["target"] in SUFFIXES and (known is None or _worth(source) > _worth(known)):
            best[source.kernel["id"]] = source
    out = left_out(archive.database, selection)
    if not best:
        why = "; ".join(f"{n} left out: {reason}" for reason, n in out.items())
        raise UsageError(f"no verified kernel to export; loosen --target and --device, or see --all ({why or 'the archive has none'})")
    with new_folder(folder) as new:
        write_manifest(new, [_entry(new, source, set(best)) for source in best.values()])
    return len(best), out


def _entry(root: Path, source: Source, ids: set[str]) -> ManifestEntry:
    kernel, task, verdict = source.kernel, source.task, source.verdict
    assert task and verdict
    group = "".join(c if c.isalnum() or c in "-_" else "_" for c in task.name[:60])  # a folder's name has at most 255 bytes
    file = root / group / f"{kernel['id']}{SUFFIXES[kernel['target']]}"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(kernel["text"], encoding="utf-8")
    return manifest_entry(root, file, task, verdict, parents=[p for p in source.parents if p in ids], licence=source.licence)


def _worth(source: Source) -> tuple[bool, float]:
    return not source.imported, source.verdict.fitness if source.verdict else -math.inf
