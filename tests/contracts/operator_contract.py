"""What every operator must keep to. For your own: subclass OperatorContract, set `operator` and `context`, and run pytest on it.

    class TestMine(OperatorContract):
        operator = Mine()
        context = OperatorContext(...)

For one that has a model write, the same with WriterContract and `writer`.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from evokernel.errors import UsageError
from evokernel.kernelfile import make_kernel, parse
from evokernel.operators import Batch, Operator, OperatorContext, Writer
from evokernel.records import Reply, Screen, Status, config_key


def answer(operator: Operator, context: OperatorContext, *, works: bool = True) -> tuple[list[Batch], Reply]:
    """The batches and the reply of an operator, with times that depend on the configuration alone (or nothing correct)."""
    answering, batches = operator.run(context), []
    try:
        batch = next(answering)
        while True:
            batches.append(batch)
            batch = answering.send([_screen(c, works) for c in batch.configs])
    except StopIteration as done:
        return batches, done.value


def _screen(config: dict, works: bool) -> Screen:
    if not works:
        return Screen(config, Status.TIMEOUT, "too slow")
    return Screen(config, Status.VERIFIED, "", 100.0 + sum(float(v) for v in config.values()), config_key(config))


class OperatorContract:
    operator: Operator
    context: OperatorContext

    def test_the_same_context_and_screens_give_the_same_answer(self) -> None:
        assert answer(self.operator, self.context) == answer(self.operator, self.context)

    def test_the_reply_is_a_kernel_file_or_says_why_not(self) -> None:
        _, reply = answer(self.operator, self.context)
        if reply.text is None:
            assert reply.note
        else:
            parse(make_kernel(reply.text, self.context.device.target))

    def test_screened_configurations_stay_within_the_builds_and_are_declared(self) -> None:
        batches, _ = answer(self.operator, self.context)
        screened = {(b.kernel.id, config_key(c)) for b in batches for c in b.configs}
        assert len(screened) <= self.context.builds
        for batch in batches:
            values = {t.name: t.values for t in parse(batch.kernel).tunables}
            assert batch.configs
            assert all(c.keys() == values.keys() and all(c[n] in values[n] for n in c) for c in batch.configs)

    def test_it_survives_screens_of_which_none_is_correct(self) -> None:
        _, reply = answer(self.operator, self.context, works=False)
        assert reply.text is None or reply.text

    def test_the_note_is_short(self) -> None:
        _, reply = answer(self.operator, self.context)
        assert len(reply.note.splitlines()) <= 10


class WriterContract:
    """What every operator with a model must keep to. `context` has all that the operator needs."""

    writer: Writer
    context: OperatorContext

    def test_the_same_context_gives_the_same_prompt(self) -> None:
        assert self.writer.prompt(self.context) == self.writer.prompt(self.context)

    def test_the_prefix_depends_on_the_target_alone(self) -> None:
        other = replace(self.context.task, name="another", source="def forward(self, x): return x", id="0" * 16)
        prompts = [self.writer.prompt(c) for c in (self.context, replace(self.context, task=other), replace(self.context, seed=99, draft=3))]
        assert len({p.prefix for p in prompts}) == 1 and prompts[0].prefix.endswith("\n")

    def test_the_task_stands_before_the_question_and_the_names_are_those_of_the_task(self) -> None:
        rest, task = self.writer.prompt(self.context).rest, self.context.task
        assert task.source.strip() in rest and rest.index("# The task") < rest.index("# Your question")
        assert all(f"\n{t.name} " in rest and str(list(t.shape)) in rest for t in task.signature.tensors)

    def test_it_refuses_a_context_without_its_parents_or_stones(self) -> None:
        if self.writer.parents:
            with pytest.raises(UsageError, match="needs"):
                self.writer.prompt(replace(self.context, parents=self.context.parents[: self.writer.parents - 1]))
        if self.writer.stones:
            with pytest.raises(UsageError, match="needs"):
                self.writer.prompt(replace(self.context, stones=()))

    def test_the_prompt_is_valid_unicode_and_has_no_placeholder_left(self) -> None:
        prompt = self.writer.prompt(self.context)
        (prompt.prefix + prompt.rest).encode()
        assert not re.search(r"\{\{[a-z_]+\}\}", prompt.prefix + prompt.rest)
