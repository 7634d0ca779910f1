"""Transplant: an archived kernel as it is, with the names of its task replaced by those of this one, role by role."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import UsageError
from ..kernelfile import KernelFileError, make_kernel, parse, rename, resolve, space, with_defaults
from ..records import Reply, Role, ScalarSpec, Signature, TensorSpec
from . import Answering, OperatorContext

# A role's tensors may only stand in for tensors of the same group.
_GROUPS = ((Role.INPUT,), (Role.PARAMETER, Role.BUFFER, Role.ATTRIBUTE), (Role.OUTPUT, Role.STATE))


class Transplant:
    """Tries the context's first stone. One that cannot be resolved here costs nothing: its located reason is the note."""

    def run(self, context: OperatorContext) -> Answering:
        if not context.stones:
            raise UsageError("transplant needs a stepping stone")
        stone = context.stones[0]
        yield from ()
        try:
            text = _fitting(rename(stone.kernel.text, name_mapping(stone.signature, context.task.signature)), stone.kernel.target, context)
        except KernelFileError as error:
            return Reply(None, f"{stone.kernel.id} of {stone.task_name} does not fit: {error}")
        return Reply(text, f"{stone.kernel.id} of {stone.task_name}, {stone.speedup_low!r}x there")


def _fitting(text: str, target: str, context: OperatorContext) -> str:
    """The text, with other defaults where its own do not meet its @require lines here.

    Raises:
        KernelFileError: it cannot be resolved for this task.
    """
    parsed = parse(make_kernel(text, target))
    config = space(parsed, context.task.signature, context.device)[0]
    resolve(parsed, context.task.signature, context.device, config)
    return text if config == {t.name: t.default for t in parsed.tunables} else with_defaults(text, config)


def name_mapping(theirs: Signature, ours: Signature) -> dict[str, str]:
    """For each name of their task, the name of its counterpart in ours, where it has one and the names differ.

    Within a group of roles a tensor takes the same name and kind (dtype, number of dimensions) first, then the next of its kind in order.
    """
    mapping: dict[str, str] = {}
    for roles in _GROUPS:
        mapping |= _paired(theirs.of_role(*roles), ours.of_role(*roles))
    mapping |= _paired(theirs.scalars, ours.scalars)
    return {theirs_name: our_name for theirs_name, our_name in mapping.items() if theirs_name != our_name}


def _paired(theirs: Sequence[TensorSpec | ScalarSpec], ours: Sequence[TensorSpec | ScalarSpec]) -> dict[str, str]:
    free = {(spec.name, _kind(spec)): spec for spec in ours}
    pairs = {spec.name: spec.name for spec in theirs if free.pop((spec.name, _kind(spec)), None)}
    for spec in theirs:
        key = next((k for k in free if k[1] == _kind(spec)), None)
        if spec.name not in pairs and key:
            pairs[spec.name] = free.pop(key).name
    return pairs


def _kind(spec: TensorSpec | ScalarSpec) -> tuple[str, int]:
    return (spec.dtype, len(spec.shape)) if isinstance(spec, TensorSpec) else (type(spec.value).__name__, 0)
