"""What a run is made of: kernels, proposals, replies, attempts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .verdict import Verdict


class Placement(StrEnum):
    """What adding an attempt did to the run."""

    NEW_BEST = "new_best"
    KEPT = "kept"
    DUPLICATE = "duplicate"
    REJECTED = "rejected"


@dataclass(frozen=True)
class Kernel:
    """One kernel file. `id` is the hash of the target and the normalised text: make it with `kernelfile.make_kernel`."""

    id: str
    target: str
    text: str


@dataclass(frozen=True)
class Proposal:
    """A decision of the policy: which operator is applied to which parents. `number` counts within the run and seeds its randomness."""

    number: int
    operator: str
    parents: tuple[str, ...] = ()
    model: str | None = None
    prompt_hash: str = ""


@dataclass(frozen=True)
class Reply:
    """What an operator made of a proposal: one kernel text, or none with the reason, and what it cost."""

    text: str | None
    note: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0


@dataclass(frozen=True)
class Attempt:
    """A proposal that has been answered and judged."""

    proposal: Proposal
    reply: Reply
    kernel: Kernel | None
    verdict: Verdict
