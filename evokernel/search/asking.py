"""What a writing operator is given, and what becomes of a model's answer: the same for a call, for a file of prompts and for one of answers."""

from __future__ import annotations

from .. import operators
from ..archive.store import Archive
from ..kernelfile import KernelFileError, make_kernel
from ..models import Completion, Prompt
from ..models.reply import NoKernel, read
from ..operators import OperatorContext, Parent
from ..records import Device, Kernel, Proposal, Reply, Status, Task, Verdict, unjudged
from .state import State

EXAMPLES = 3
TRIED = 12  # lines of what was tried


def context_of(state: State, archive: Archive, task: Task, device: Device, proposal: Proposal) -> OperatorContext | None:
    """The context of a proposal; None where a stone it needs may no longer seed a search.

    Raises:
        ArchiveError: the archive cannot be read.
    """
    refs = [r for r in state.started.stones if r.kernel_id in proposal.parents and proposal.operator in ("transplant", "transfer")]
    stones = [archive.stone(r.kernel_id, r.task_id) for r in refs]
    if None in stones:
        return None
    pending = state.pending[proposal.number]
    best = [m for m in state.ranked(EXAMPLES + len(proposal.parents)) if m.kernel_id not in proposal.parents][:EXAMPLES]
    return OperatorContext(
        task, device, seed=state.started.settings.seed * 1_000_003 + proposal.number,
        parents=tuple(Parent(archive.find(p.verdict.kernel_id), p.verdict) for p in pending.parents), stones=tuple(s for s in stones if s),
        tried=state.history_of(proposal.parents, TRIED), examples=tuple(Parent(archive.find(m.kernel_id), m.verdict) for m in reversed(best)),
        draft=pending.turn, lessons=state.started.lessons,
    )  # fmt: skip


def prompt_of(context: OperatorContext, proposal: Proposal) -> Prompt:
    """The prompt of a writing operator's proposal."""
    return operators.writer(proposal.operator).prompt(context)


def reply_of(completion: Completion, context: OperatorContext, cost_usd: float = 0.0) -> Reply:
    """The kernel text in a model's answer, or why there is none."""
    parent = context.parents[0].kernel.text if context.parents else None
    text, note = None, ""
    if completion.stop == "refused":
        note = "the model refused to answer"
    else:
        try:
            text = read(completion.text, target=context.device.target, parent=parent, stop=completion.stop)
            note = text.lstrip().partition("\n")[0].lstrip("/ *").strip()[:200]  # the first line of a kernel file says what it does
        except NoKernel as reason:
            cut = "the answer was cut off at the limit of output tokens; " if completion.stop == "length" else ""
            note = f"{cut}{reason}"
    return Reply(text, note, completion.input_tokens, completion.output_tokens, cost_usd)


def kernel_of(reply: Reply, target: str, device: Device) -> Kernel | Verdict:
    """The kernel in a reply, or the verdict on one that holds none or no kernel file, which needs no judge."""
    if reply.text is None:
        return unjudged(device, Status.NO_KERNEL, reply.note)
    try:
        return make_kernel(reply.text, target)
    except KernelFileError as error:
        return unjudged(device, Status.INVALID, str(error))
