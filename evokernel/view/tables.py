"""Tables of tasks, kernels and machines as plain text: what commands print and, for signatures, what prompts show."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..archive.lessons import Lesson
from ..archive.runs import RunRow
from ..archive.search import Entry, Hit
from ..archive.stats import Contribution, Stats
from ..codec import encode
from ..records import Admission, Kernel, Task, TensorSpec, Verdict

if TYPE_CHECKING:
    import networkx as nx


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns of text, each as wide as its widest cell."""
    cells = [[str(c) for c in row] for row in (head, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells)


def signature_text(task: Task, variant: int = 0) -> str:
    """What a launch plan can name for one shape variant of a task."""
    signature = task.variants[variant]
    rows: list[tuple[object, ...]] = [(t.name, t.role.value, t.dtype, list(t.shape), _layout(t), t.path) for t in signature.tensors]
    rows += [
        (s.name, "scalar", type(s.value).__name__, repr(s.value), "drawn anew on each call" if s.varies else "fixed", s.path)
        for s in signature.scalars
    ]
    which = f", variant {variant}" if len(task.variants) > 1 else ""
    head = f"task {task.name} ({task.id}{which})\nconstructed as {signature.call}, returns {signature.outputs_expr}"
    return f"{head}\n\n{table(('name', 'role', 'dtype', 'shape', 'layout', 'where'), rows)}"


def _layout(tensor: TensorSpec) -> str:
    return "contiguous" if tensor.contiguous else f"stride {list(tensor.stride)}"


def admission_text(admission: Admission) -> str:
    """What the judge says of a task before any search."""
    lines = [signature_text(admission.task), "", f"can be judged on {admission.device.name}" + (" (forced)" if admission.forced else "")]
    lines += [f"  {name}: {us:.1f} us" for name, us in sorted(admission.baselines_us.items(), key=lambda item: item[1])]
    lines.append(f"checked in the regimes {', '.join(admission.regimes)}")
    if admission.trivial:
        lines.append(f"trivial candidates that were tried, and fail: {', '.join(admission.trivial)}")
    if admission.survived:
        lines.append(f"trivial candidates that do not fail: {', '.join(admission.survived)}")
    lines += [f"note: {note}" for note in admission.notes]
    return "\n".join(lines)


def entries_text(entries: Sequence[Entry]) -> str:
    """Archived kernels in a table, one row a verdict."""
    if not entries:
        return "no kernels; loosen the filters, or run `evokernel evolve TASK`"
    return table(("kernel", "target", "task", "speedup", "device", "origin", "strategy"), [_entry_row(e) for e in entries])


def hits_text(hits: Sequence[Hit]) -> str:
    """Search hits in a table, with the reason for each below it."""
    if not hits:
        return "nothing found; try other words, or `evokernel archive list`"
    found = [h.entry for h in hits]
    rows = [(e.kernel.id[:8], e.kernel.target, e.task_name or "-", _speedup(e.verdict), _first(e.strategy)) for e in found]
    head, *lines = table(("kernel", "target", "task", "speedup", "strategy"), rows).split("\n")
    return "\n".join([head, *(f"{line}\n          {hit.why}" for line, hit in zip(lines, hits, strict=True))])


def kernel_text(kernel: Kernel, entries: Sequence[Entry]) -> str:
    """A kernel file under the verdicts it has."""
    rows = [(e.task_name or "-", e.verdict.status.value if e.verdict else "-", _speedup(e.verdict), _device(e), e.origin.kind) for e in entries]
    return f"kernel {kernel.id} ({kernel.target})\n\n{table(('task', 'status', 'speedup', 'device', 'origin'), rows)}\n\n{kernel.text}"


def runs_text(rows: Sequence[RunRow]) -> str:
    """Runs in a table."""
    if not rows:
        return "no runs yet; start one with `evokernel evolve TASK`"
    when = [time.strftime("%Y-%m-%d %H:%M", time.localtime(r.created)) for r in rows]
    state = ["running" if r.running else r.ended or "can be resumed" for r in rows]
    cells = [(r.id, r.task_name, r.target, w, s) for r, w, s in zip(rows, when, state, strict=True)]
    return table(("run", "task", "target", "started", "state"), cells)


def stats_text(counted: Stats) -> str:
    """What is in the archive, one line a count, then what each operator did."""
    lines = []
    for name, value in encode(counted).items():
        if isinstance(value, dict):
            lines.append(f"{name.replace('_', ' ')}: " + (", ".join(f"{key} {n}" for key, n in value.items()) or "none"))
        elif name not in ("is", "operators"):
            lines.append(f"{name.replace('_', ' ')}: {value}")
    return "\n".join(lines) + (f"\n\n{contributions_text(counted.operators, 'operator')}" if counted.operators else "")


def contributions_text(rows: Sequence[Contribution], what: str) -> str:
    """Who raised the best kernels of runs, and by how much."""
    if not rows:
        return "no attempts yet"
    cells = [(_short(c.name), c.attempts, c.verified, c.raised, f"{c.gain:.3f}x", c.tokens, f"{c.cost_usd:.4f}") for c in rows]
    return table((what, "attempts", "verified", "new bests", "raised a run's best by", "tokens", "USD"), cells)


def lessons_text(lessons: Sequence[Lesson], names: Mapping[str, str]) -> str:
    """Lessons in a table. `names`: of tasks by id."""
    if not lessons:
        return "no lessons yet: they come from kernels that got faster than their parents, and from those that failed"
    gains = [f"{x.gain:.3f}x" if x.gain else x.kind for x in lessons]
    rows = [(names.get(x.task_id, x.task_id), x.target, g, x.evidence, x.text.partition("\n")[0]) for x, g in zip(lessons, gains, strict=True)]
    return table(("task", "target", "gain", "seen", "lesson"), rows)


def _short(name: str) -> str:
    """A kernel's id as it is shown; other names whole."""
    return name[:8] if len(name) == 16 and all(c in "0123456789abcdef" for c in name) else name


def _entry_row(e: Entry) -> tuple[object, ...]:
    return (e.kernel.id[:8], e.kernel.target, e.task_name or "-", _speedup(e.verdict), _device(e), e.origin.kind, _first(e.strategy))


def _device(e: Entry) -> str:
    return e.verdict.environment.device + (" (not measured here)" if e.imported else "") if e.verdict else "-"


def _speedup(verdict: Verdict | None) -> str:
    if verdict is None or (speedup := verdict.speedup) is None:
        return verdict.status.value if verdict else "-"
    return f"{speedup.mid:.3f}x [{speedup.low:.3f}, {speedup.high:.3f}]{' by force' * verdict.environment.forced}"


def _first(text: str) -> str:
    line = text.strip().splitlines()[0] if text.strip() else ""
    return line if len(line) <= 80 else line[:77] + "..."


def lineage_text(dag: nx.DiGraph, kernel_id: str) -> str:
    """The main line from the first draft to a kernel, with what each step gained."""
    from ..archive.lineage import path

    steps = [(step, None if step.gain is None else math.exp(step.gain)) for step in path(dag, kernel_id)]
    rows = [(s.kernel_id[:8], s.operator, _times(s.speedup_low) + " by force" * s.forced, _times(gain)) for s, gain in steps]
    return table(("kernel", "made by", "speedup (lower bound)", "gain"), rows)


def _times(factor: float | None) -> str:
    return "-" if factor is None else f"{factor:.3f}x"
