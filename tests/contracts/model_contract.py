"""What every model provider must keep to. For your own: subclass ModelContract and give it a model that answers ANSWER to every prompt.

    class TestMine(ModelContract):
        @pytest.fixture
        def model(self) -> Model:
            return open_model(ModelSpec.parse("mine/NAME"), environ)
"""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

from evokernel.models import EFFORTS, CallSettings, Completion, Model, Prompt

ANSWER = "An idea.\n\n```cuda\n// @launch f(x, out)\nvoid f() {} // é, 漢字, \U0001f600\n```\n"
PROMPT = Prompt("What never changes.\n", "What is asked now: é, 漢字.\n")
CALLS = 8  # a provider must have ANSWER ready this often


class ModelContract:
    """Subclass as `TestX(ModelContract)` with the fixture `model`."""

    settings = CallSettings(timeout_s=30)

    @pytest.fixture
    def model(self) -> Model:
        raise AssertionError("a provider's tests bring its model")

    def test_an_answer_comes_whole_with_its_tokens(self, model: Model) -> None:
        answer = model.complete(PROMPT, self.settings)
        assert isinstance(answer, Completion) and answer.text == ANSWER and answer.stop == "end"
        assert answer.input_tokens >= answer.cached_tokens + answer.written_tokens and min(answer.cached_tokens, answer.written_tokens) >= 0
        assert answer.output_tokens >= 0

    def test_it_answers_from_several_threads_at_once(self, model: Model) -> None:
        with ThreadPoolExecutor(CALLS) as pool:
            answers = list(pool.map(lambda _: model.complete(PROMPT, self.settings), range(CALLS)))
        assert {a.text for a in answers} == {ANSWER}

    def test_every_effort_is_understood(self, model: Model) -> None:
        for effort in EFFORTS:
            assert model.complete(PROMPT, CallSettings(effort, timeout_s=30)).text == ANSWER

    def test_a_prompt_that_is_not_valid_unicode_is_asked_all_the_same(self, model: Model) -> None:
        assert model.complete(Prompt(PROMPT.prefix, "half a pair: \ud800"), self.settings).text == ANSWER

    def test_the_answer_is_plain_data(self, model: Model) -> None:
        answer = model.complete(PROMPT, self.settings)
        assert pickle.loads(pickle.dumps(answer)) == answer
