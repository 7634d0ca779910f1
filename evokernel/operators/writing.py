"""What the operators with a model share: the parts of a prompt, made from records, and the choice among tables of directions and techniques.

A prompt is: a prefix that depends on the target alone (format, rules, form of the answer), the task, the question. All text that others wrote
(sources, kernels, messages, notes) stands in fences that are longer than any inside it, is cut where it is long, and is called data in the prefix.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence

from .. import prompts
from ..archive.stones import Stone
from ..errors import UsageError
from ..models import Prompt
from ..records import BaselineTime, Device, ErrorRow, Signature, Status, Task, TensorSpec, Verdict
from ..records.profile import profile
from . import OperatorContext, Parent

PROMPT_BYTES = 20_000  # examples fill what is left of it
KERNEL_BYTES, SOURCE_BYTES, MESSAGE_BYTES, TRIED_BYTES = 24_000, 8_000, 2_500, 2_500
LESSONS_BYTES = 4_000
EXAMPLES, ERROR_ROWS = 3, 6
# Words of a module's source that say what it contains: wrong ones cost a direction that fits less well, nothing more.
_PRODUCT = re.compile(r" @ |(?i:\b(?:\w*matmul|b?mm|(?:add|badd)b?mm|\w*linear|einsum|(?:lazy)?conv\w*|\w*attention)\b)")
_REDUCTION = re.compile(
    r"(?i)\b(?:\w*softmax|logsumexp|\w*norm(?!al)\w*|\w*sum|\w*prod|mean|var|std|a?max|a?min|arg(?:max|min)|\w*loss|\w*cross_entropy|\w*attention|\w*pool\w*)\b"
)


def ask(context: OperatorContext, operator: str, **values: str) -> Prompt:
    """The prompt of an operator: its template with `values`, after the prefix of the target and the task.

    Raises:
        UsageError: no template for the operator or the target.
    """
    return Prompt(prefix(context.device.target), f"{_known(context)}\n\n{prompts.render(operator, **values)}\n")


def prefix(target: str) -> str:
    """What stands first in every prompt for a target, byte by byte the same.

    Raises:
        UsageError: no template for the target.
    """
    parts = (prompts.render("plan"), prompts.render(f"format_{target}"), prompts.render("rules"), prompts.render("answer", language=target))
    return "\n\n".join(parts) + "\n\n"


def parents_of(context: OperatorContext, count: int, operator: str) -> Sequence[Parent]:
    """The first `count` parents.

    Raises:
        UsageError: there are fewer.
    """
    if len(context.parents) < count:
        raise UsageError(f"{operator} needs {'a parent' if count == 1 else f'{count} parents'}, and got {len(context.parents)}")
    return context.parents[:count]


def fenced(text: str, limit_bytes: int, language: str = "") -> str:
    """Foreign text as data: in a fence longer than any in it, without its middle where it is over the limit, valid Unicode."""
    clean = text.encode("utf-8", "replace").decode().strip("\n")
    data = clean.encode()
    if len(data) > limit_bytes:
        head, tail = data[: limit_bytes * 2 // 3].decode(errors="ignore"), data[-(limit_bytes // 3) :].decode(errors="ignore")
        clean = f"{head}\n[... {len(data) - limit_bytes} bytes are left out here ...]\n{tail}"
    fence = "`" * max(4, 1 + max(map(len, re.findall("`+", clean)), default=0))
    return f"{fence}{language}\n{clean}\n{fence}"


def kernel(parent: Parent, device: Device, title: str = "The kernel file") -> str:
    """A kernel under all that its verdict says."""
    facts = fenced("\n".join(_facts(parent.verdict, device)), 2 * MESSAGE_BYTES)
    return f"## {title}\n\nIts verdict:\n\n{facts}\n\n{fenced(parent.kernel.text, KERNEL_BYTES, parent.kernel.target)}"


def stone(found: Stone) -> str:
    """A stepping stone with the names of its task."""
    seen = f"; instruction features: {', '.join(found.techniques)}" if found.techniques else ""
    facts = f"task {found.task_name}: {found.speedup_low!r}x there (lower bound), perhaps on another device{seen}\n\n{_names(found.signature)}"
    text = fenced(found.kernel.text, KERNEL_BYTES, found.kernel.target)
    return f"## The other task's names\n\n{fenced(facts, SOURCE_BYTES)}\n\n## Its kernel file\n\n{text}"


def tried(context: OperatorContext, title: str = "Tried in this line, oldest first, what is shown above included; do not repeat what failed") -> str:
    """The notes of the lineage, the newest ones where they are many; nothing where there are none."""
    kept: list[str] = []
    for line in reversed(context.tried):
        if sum(len(k.encode("utf-8", "replace")) for k in kept) > TRIED_BYTES:
            kept.append(f"({len(context.tried) - len(kept)} earlier ones are left out)")
            break
        kept.append(" ".join(line.split())[:400])
    return f"\n{title}:\n\n{fenced(chr(10).join(reversed(kept)), 2 * TRIED_BYTES)}\n" if kept else ""


def examples(context: OperatorContext, used: str = "") -> str:
    """The fastest verified kernels of the task that are no parents, slow to fast, as far as they fit beside the `used` text."""
    parents = {p.kernel.id for p in context.parents}
    fresh = [e for e in context.examples if e.kernel.id not in parents and e.verdict.timing]
    fresh = sorted(fresh, key=lambda e: e.verdict.fitness)[-EXAMPLES:]
    room = PROMPT_BYTES - len(f"{prefix(context.device.target)}{_known(context)}{used}".encode("utf-8", "replace")) - 1_000
    shown: list[str] = []
    for example in reversed(fresh):
        heading = f"{example.verdict.time_us!r} us, speedup {math.exp(example.verdict.fitness)!r}x (lower bound)"
        shown.insert(0, f"{heading}\n\n{fenced(example.kernel.text, KERNEL_BYTES, example.kernel.target)}")
        if len("".join(shown).encode()) > room:
            shown.pop(0)
            break
    return "\n## Verified kernels of this task, slow to fast\n\n" + "\n\n".join(shown) + "\n" if shown else ""


def answer(base: Parent, named: str = "the kernel file above") -> str:
    """Which forms of answer fit: edits only of a text that is shown whole, and in which a marker of edits cannot be mistaken."""
    text = base.kernel.text
    if not text.strip() or len(text.encode("utf-8", "replace")) > KERNEL_BYTES or re.search(r"(?m)^(?:<{7}|={7}|>{7})", text):
        return "Answer with the whole kernel file."
    return f"Answer with the whole kernel file, or with SEARCH/REPLACE edits of {named}."


def bottleneck(parent: Parent, device: Device) -> str:
    """What the profile of a parent says holds it up, and why, in one line."""
    found = profile(parent.verdict, device)
    return f"{found.bottleneck}: {found.why}"


def contents(task: Task, device: Device) -> frozenset[str]:
    """What a task has that directions and techniques ask for: any, product, reduction, parameter, clusters (of blocks: sm_90
    and newer), and the device's architecture."""
    holds = {
        "product": bool(_PRODUCT.search(task.source)), "reduction": bool(_REDUCTION.search(task.source)),
        "parameter": bool(task.signature.weights), "clusters": bool(re.match(r"sm_(?:9|1\d)", device.architecture)),
    }  # fmt: skip
    return frozenset({"any", device.architecture, *(word for word, true in holds.items() if true)})


def direction(context: OperatorContext) -> str:
    """The direction of this draft: those that fit the task by turns, algebra first."""
    holds = contents(context.task, context.device)
    fitting = [(name, how) for name, needs, how in prompts.rows(f"directions_{context.device.target}") if holds.issuperset(needs.split())]
    name, how = fitting[context.draft % len(fitting)]
    return f"**{name}**. {how}"


def technique(context: OperatorContext, parent: Parent) -> str:
    """A technique against the parent's bottleneck that neither it nor its lineage shows; where all were tried, any against it, then any at all."""
    holds, against = contents(context.task, context.device), profile(parent.verdict, context.device).bottleneck
    table = prompts.rows(f"techniques_{context.device.target}")
    fitting = [row for row in table if holds.issuperset(row[2].split())]
    # By name: the prompt has the model name its technique in the first comment line, and the notes quote that line.
    seen = " ".join((*context.tried, _heading(parent.kernel.text))).lower()
    fresh = [row for row in fitting if row[3] not in _features(parent) and row[0].lower() not in seen]
    choices = [r for r in fresh if against in r[1].split()] or fresh or [r for r in fitting if against in r[1].split()] or fitting
    name, _, _, _, how = random.Random(f"technique:{context.seed}").choice(choices)
    return f"**{name}**. {how}"


def difference(first: Parent, second: Parent) -> str:
    """What the compiled code of each of two kernels has that the other's has not, and their times."""
    lines = []
    for number, one, other in ((1, first, second), (2, second, first)):
        only = ", ".join(sorted(_features(one) - _features(other))) or "nothing"
        lines.append(f"- kernel {number}: {one.verdict.time_us!r} us; instruction features of its code only: {only}")
    return "\n".join(lines)


def _features(parent: Parent) -> frozenset[str]:
    return frozenset(parent.verdict.resources.features if parent.verdict.resources else ())


def _heading(text: str) -> str:
    return " ".join(line.strip("/ ") for line in text.splitlines()[:8] if line.startswith("//") and "@" not in line[:4])


def _known(context: OperatorContext) -> str:
    """What a run knows from its start: the task, then what earlier runs taught. The same in all its prompts, so that a provider can cache it."""
    if not context.lessons:
        return _task(context.task, context.device)
    lessons = fenced("\n".join(f"- {line}" for line in context.lessons), LESSONS_BYTES)
    return f"{_task(context.task, context.device)}\n\n## What earlier runs saw on this task and similar ones\n\n{lessons}"


def _task(task: Task, device: Device) -> str:
    options = task.options
    domains = [f"{name} is {d.kind}" + (f" {d.low!r} to {d.high!r}" if d.kind == "range" else "") for name, d in options.domain.items()]
    facts = [
        f"task {' '.join(task.name.split())}, made as {task.signature.call}, returns {task.signature.outputs_expr}",
        f"precision {options.precision.value}; times with {options.score} caches",
        *([f"values: {'; '.join(domains)}"] if domains else []),
        *([f"largest error allowed: {options.tolerance_units!r} units, in place of the budget above"] if options.tolerance_units is not None else []),
        _device(device),
    ]
    others = [f"variant {n}:\n{_names(v)}" for n, v in enumerate(task.variants[1:], 1)]
    more = fenced("\n".join(others), MESSAGE_BYTES) if others else ""
    return prompts.render(
        "task", facts=fenced("\n".join(facts), MESSAGE_BYTES), names=fenced(_names(task.signature), SOURCE_BYTES),
        variants=more and f"It must be right, from the same file, with these shapes as well:\n\n{more}\n\n",
        source=fenced(task.source, SOURCE_BYTES, "python"),
    )  # fmt: skip


def _device(device: Device) -> str:
    gpu = (
        f"{device.sm_count} multiprocessors, {device.max_threads_per_sm} threads and {device.regs_per_sm} registers each, "
        f"{device.smem_per_block} bytes of shared memory a block at most"
    )
    rates = f", {device.bandwidth_gbs!r} GB/s of memory bandwidth" if device.bandwidth_gbs else ""
    return (
        f"device {device.name} ({device.architecture}): {gpu if device.smem_per_block else f'{device.sm_count} cores'}"
        + (f", {device.l2_bytes} bytes of L2" if device.l2_bytes else "")
        + rates
    )


def _names(signature: Signature) -> str:
    rows = [(t.name, t.role.value, t.dtype, str(list(t.shape)), _layout(t), t.path) for t in signature.tensors]
    rows += [
        (s.name, "scalar", type(s.value).__name__, repr(s.value), "drawn anew on each call" if s.varies else "fixed", s.path)
        for s in signature.scalars
    ]
    rows.insert(0, ("name", "role", "dtype", "shape", "layout", "where"))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def _layout(tensor: TensorSpec) -> str:
    return "contiguous" if tensor.contiguous else f"stride {list(tensor.stride)}"


def _facts(verdict: Verdict, device: Device) -> list[str]:
    """A verdict line by line, numbers as they are."""
    head = [f"status: {verdict.status.value}, last stage: {verdict.stage}"]
    if verdict.config:
        head.append("tunables: " + ", ".join(f"{name}={value!r}" for name, value in verdict.config.items()))
    worst = sorted(verdict.errors, key=lambda e: (e.passed, -_share(e)))
    if verdict.status is not Status.VERIFIED:
        message = verdict.message if len(verdict.message) <= MESSAGE_BYTES else verdict.message[:MESSAGE_BYTES] + " [... cut ...]"
        return [*head, f"message: {message}", *(_error(e) for e in worst[:ERROR_ROWS] if not e.passed)]
    baselines = verdict.timing.scored.baselines if verdict.timing else ()
    found = profile(verdict, device)
    figures = [f"{f.name}: {f'{f.value!r}' if isinstance(f.value, float) else f.value} {f.unit}".rstrip() for f in found.figures]
    return [*head, f"bottleneck: {found.bottleneck}", *figures, *(_baseline(b) for b in baselines), *(_error(e) for e in worst[:1])]


def _share(row: ErrorRow) -> float:
    """Of its budget; what is no number comes first."""
    share = row.max_units / row.budget_units if row.budget_units else math.inf
    return math.inf if math.isnan(share) else share


def _error(row: ErrorRow) -> str:
    where = f"{row.output}, {row.regime} inputs, variant {row.variant}"
    return f"error of {where}: {row.max_units!r} units of {row.budget_units!r}, rms {row.rms_units!r}, absolute {row.max_abs!r}"


def _baseline(baseline: BaselineTime) -> str:
    speedup = baseline.speedup
    return f"against {baseline.name}: {baseline.median_us!r} us, speedup {speedup.mid!r} [{speedup.low!r}, {speedup.high!r}]"
