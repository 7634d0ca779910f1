"""(slow, fast, diff) pairs from lineage: two kernels of one task, one made from the other, told apart by measurement."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from ..archive.database import Database
from ..archive.verdicts import PROVEN, load, load_task
from ..records import Status
from .columns import Row, split_of
from .selection import LICENCE, Selection

# Of several configurations of a kernel its best counts: SQLite takes the other columns from the row with the largest speedup.
_BEST = (
    "SELECT b.kernel_id, v.task_id, v.device, v.protocol, v.versions, v.imported, v.record, max(v.speedup_low) FROM verdicts v "
    f"JOIN builds b ON b.id = v.build_id WHERE v.status = '{Status.VERIFIED}' AND {PROVEN.format('v')} GROUP BY 1, 2, 3, 4, 5, 6"
)
_PAIRS = (
    f"WITH best AS MATERIALIZED ({_BEST}) SELECT e.child, e.parent, c.record AS made, p.record AS from_, c.task_id, c.device, k.target, "
    f"k.text AS child_text, {LICENCE} AS child_licence, k.provenance, o.text AS parent_text, {LICENCE.replace('k.', 'o.')} AS parent_licence, "
    "a.operator, a.model FROM edges e JOIN best c ON c.kernel_id = e.child JOIN best p ON p.kernel_id = e.parent AND p.task_id = c.task_id "
    "AND p.device = c.device AND p.protocol = c.protocol AND p.versions = c.versions AND p.imported = c.imported "
    "JOIN kernels k ON k.id = e.child JOIN kernels o ON o.id = e.parent LEFT JOIN attempts a ON a.seq = e.attempt WHERE k.target = o.target "
)


def pairs(database: Database, selection: Selection) -> Iterator[tuple[str, Row]]:
    """Rows with their split: both kernels verified for the task on the device under the same protocol and versions, intervals apart."""
    condition, values = "", list[object]([selection.licence, selection.licence])
    for column, value in (("k.target = ?", selection.target), ("c.device = ?", selection.device)):
        if value is not None:
            condition += f" AND {column}"
            values.append(value)
    if not selection.everything:
        condition += " AND k.quarantined IS NULL AND o.quarantined IS NULL AND child_licence != '' AND parent_licence != ''"
    for found in database.rows(f"{_PAIRS}{condition} ORDER BY k.seq, o.seq, c.task_id, c.device", *values):
        child, parent = load(found["made"]), load(found["from_"])
        (record,) = database.rows("SELECT record FROM tasks WHERE id = ?", found["task_id"])
        task = load_task(record["record"])
        if not child.speedup or not parent.speedup:
            continue
        forward = child.speedup.mid > parent.speedup.mid
        ends = [(child, found["child_text"], child.speedup), (parent, found["parent_text"], parent.speedup)]
        (fast, fast_text, best), (slow, slow_text, worst) = ends if forward else ends[::-1]
        if best.low <= worst.high or worst.high <= 0:
            continue
        diff = difflib.unified_diff(slow_text.splitlines(), fast_text.splitlines(), slow.kernel_id, fast.kernel_id, lineterm="")
        yield split_of(task), {
            "task_id": task.id, "Op_Name": task.name, "PyTorch_Code_Module": task.source, "target": found["target"], "device": found["device"],
            "slow_id": slow.kernel_id, "fast_id": fast.kernel_id, "slow": slow_text, "fast": fast_text,
            "diff": "\n".join(diff), "slow_time_us": slow.time_us, "fast_time_us": fast.time_us, "gain_low": best.low / worst.high,
            "made_from_slow": forward, "operator": found["operator"], "model": found["model"], "provenance": found["provenance"] or None,
            "licence": " AND ".join(sorted({found["child_licence"], found["parent_licence"]} - {""})) or None,
        }  # fmt: skip
