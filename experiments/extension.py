"""A kernel file as the text that KernelBench takes (as `evokernel export kernelbench` writes it), and the task as its evaluator can run it."""

from __future__ import annotations

from evokernel.exports.kernelbench import INTEGERS, cast, model_new
from evokernel.records import Task

__all__ = ["model_new", "reference"]


def reference(task: Task) -> str:
    """The task as KernelBench's evaluator can run it: it hands all inputs over as floats, so integer ones are turned back."""
    inputs = task.signature.inputs
    if not any(t.dtype in INTEGERS for t in inputs):
        return task.source
    names, given = ", ".join(t.name for t in inputs), ", ".join(map(cast, inputs))
    return f"{task.source}\n\nclass Given(Model):\n    def forward(self, {names}):\n        return super().forward({given})\n\n\nModel = Given\n"
