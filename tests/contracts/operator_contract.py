"""What every operator must keep to. For your own: subclass OperatorContract, set `operator` and `context`, and run pytest on it.

    class TestMine(OperatorContract):
        operator = Mine()
        context = OperatorContext(...)
"""

from __future__ import annotations

from evokernel.kernelfile import make_kernel, parse
from evokernel.operators import Batch, Operator, OperatorContext
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
