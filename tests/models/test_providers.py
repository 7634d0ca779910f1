"""The two providers through their real SDKs, against the loopback test double: what is sent, what comes back, and everything that goes wrong."""

from __future__ import annotations

import socket
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from evokernel.errors import ModelError
from evokernel.models import CallSettings, Completion, Model, ModelSpec, Prompt, Unavailable, open_model
from tests.contracts.model_contract import ANSWER, ModelContract

from .loopback import Answer, Loopback, Request, serving

KEY = "sk-secret-0123456789"
PROMPT = Prompt("the fixed prefix", "the question")
QUICK = CallSettings(timeout_s=20, max_tokens=500)
BOTH = pytest.mark.parametrize("provider", ["anthropic", "openai"])


def opened(provider: str, server: Loopback) -> Model:
    return open_model(ModelSpec.parse(f"{provider}/m@{server.url}"), {f"{provider.upper()}_API_KEY_127_0_0_1": KEY})


def ask(provider: str, *script: Any, settings: CallSettings = QUICK, prompt: Prompt = PROMPT) -> tuple[Completion, list[Request]]:
    with serving(*script) as server:
        return opened(provider, server).complete(prompt, settings), server.requests


def failing(provider: str, expected: type[Exception], *script: Any, settings: CallSettings = QUICK) -> tuple[Any, list[Request]]:
    with serving(*script) as server, pytest.raises(expected) as caught:
        opened(provider, server).complete(PROMPT, settings)
    shown = "".join(traceback.format_exception(caught.value))
    assert KEY not in shown and KEY not in repr(caught.value)
    return caught.value, server.requests


def error(status: int, kind: str, message: str, code: str = "", param: str | None = None, **headers: str) -> Answer:
    return Answer(status=status, error=(kind, code, message, param), headers={k.replace("_", "-"): v for k, v in headers.items()})


@pytest.fixture(params=["anthropic", "openai"])
def provider(request: pytest.FixtureRequest) -> str:
    return request.param


class TestContract(ModelContract):
    @pytest.fixture
    def model(self, provider: str) -> Any:
        with serving(Answer(ANSWER)) as server:
            yield opened(provider, server)


# --- what is sent ---


def test_anthropic_is_asked_with_a_cached_prefix_effort_and_a_stream() -> None:
    answer, (request,) = ask("anthropic", Answer("hello", usage=(100, 60, 30, 10), thinking="hm"))
    assert answer == Completion("hello", "end", 100, 60, 10, 30)
    assert request.path == "/v1/messages" and request.headers["authorization"] == f"Bearer {KEY}"
    assert request.body["system"] == [{"type": "text", "text": "the fixed prefix", "cache_control": {"type": "ephemeral"}}]
    assert request.body["messages"] == [{"role": "user", "content": "the question"}]
    assert request.body["stream"] is True and request.body["max_tokens"] == 500 and request.body["model"] == "m"
    assert request.body["thinking"] == {"type": "adaptive"} and request.body["output_config"] == {"effort": "medium"}


def test_openai_is_asked_with_a_key_for_its_cache_and_effort() -> None:
    answer, (request,) = ask("openai", Answer("hello", usage=(100, 60, 30, 10)))
    assert answer == Completion("hello", "end", 100, 60, 10, 30)
    assert request.path == "/v1/chat/completions" and request.headers["authorization"] == f"Bearer {KEY}"
    assert request.body["messages"] == [{"role": "system", "content": "the fixed prefix"}, {"role": "user", "content": "the question"}]
    assert request.body["reasoning_effort"] == "medium" and request.body["max_tokens"] == 500
    _, (other,) = ask("openai", Answer("hello"), prompt=Prompt("the fixed prefix", "another question"))
    assert other.body["prompt_cache_key"] == request.body["prompt_cache_key"]


@BOTH
def test_effort_none_asks_for_as_little_thinking_as_there_is(provider: str) -> None:
    _, (request,) = ask(provider, Answer("x"), settings=CallSettings("none", timeout_s=20))
    wanted = {"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}} if provider == "anthropic" else {"reasoning_effort": "none"}
    assert request.body.items() >= wanted.items()


@BOTH
def test_a_missing_key_names_its_variable_and_other_addresses_never_see_it(provider: str) -> None:
    variable = f"{provider.upper()}_API_KEY"
    with pytest.raises(ModelError, match=f"set the environment variable {variable}"):
        open_model(ModelSpec.parse(f"{provider}/m"), {variable: " "})
    with serving(Answer("x")) as server:
        model = open_model(ModelSpec.parse(f"{provider}/m@{server.url}"), {variable: KEY})
        assert model.complete(PROMPT, QUICK).text == "x" and KEY not in str(server.requests)


def test_keys_are_not_shown_by_the_model_itself(provider: str) -> None:
    with serving(Answer("x")) as server:
        assert KEY not in repr(opened(provider, server))


# --- parameters that a server does not know ---


@pytest.mark.parametrize(
    ("provider", "message", "left_out"),
    [
        ("anthropic", "adaptive thinking is not supported on this model", "thinking"),
        ("anthropic", "This model does not support the effort parameter.", "output_config"),
        ("anthropic", "output_config: Extra inputs are not permitted", "output_config"),
        ("anthropic", "system.0.cache_control: Extra inputs are not permitted", "cache_control"),
        ("openai", "Unsupported value: 'reasoning_effort' does not support 'none' with this model.", "reasoning_effort"),
        ("openai", "Unrecognized request argument supplied: prompt_cache_key", "prompt_cache_key"),
    ],
)
def test_a_parameter_refused_by_name_is_left_out_from_then_on(provider: str, message: str, left_out: str) -> None:
    def server_that_refuses(request: Request) -> Answer:
        return error(400, "invalid_request_error", message) if left_out in str(request.body) else Answer("x")

    with serving(server_that_refuses) as server:
        model = opened(provider, server)
        assert [model.complete(PROMPT, QUICK).text for _ in range(2)] == ["x", "x"]
    assert [left_out in str(r.body) for r in server.requests] == [True, False, False]


def test_the_limit_of_output_takes_its_other_name_and_is_never_left_out() -> None:
    message = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    answer, (_, second) = ask("openai", error(400, "invalid_request_error", message, "unsupported_parameter", "max_tokens"), Answer("x"))
    assert answer.text == "x" and second.body["max_completion_tokens"] == 500 and "max_tokens" not in second.body
    failure, requests = failing("openai", ModelError, error(400, "invalid_request_error", "max_tokens or max_completion_tokens is too large"))
    assert len(requests) == 2 and "too large" in str(failure)


def test_threads_that_meet_the_same_refusal_all_get_their_answer() -> None:
    meeting = threading.Barrier(4)

    def refuse_together(request: Request) -> Answer:
        if "max_tokens" not in request.body:
            return Answer("x")
        meeting.wait(timeout=20)
        return error(422, "invalid", "max_tokens: extra inputs are not permitted")

    with serving(refuse_together) as server, ThreadPoolExecutor(4) as pool:
        model = opened("openai", server)
        assert [a.text for a in pool.map(lambda _: model.complete(PROMPT, QUICK), range(4))] == ["x"] * 4


# --- answers that are odd ---


@pytest.mark.parametrize(
    ("provider", "stop", "meaning"),
    [
        ("anthropic", "max_tokens", "length"), ("anthropic", "model_context_window_exceeded", "length"), ("anthropic", "refusal", "refused"),
        ("anthropic", "pause_turn", "pause_turn"), ("openai", "length", "length"), ("openai", "content_filter", "refused"),
        ("openai", "tool_calls", "tool_calls"),
    ],
)  # fmt: skip
def test_why_an_answer_ended(provider: str, stop: str, meaning: str) -> None:
    assert ask(provider, Answer("half a ker", stop=stop))[0].stop == meaning


def test_refusals_come_in_several_forms() -> None:
    assert ask("openai", Answer("", extra={"refusal": "I cannot", "content": None}))[0].stop == "refused"
    flagged = error(400, "invalid_request_error", "Invalid prompt: flagged", "invalid_prompt")
    assert ask("openai", flagged)[0] == Completion("", "refused")
    assert ask("anthropic", error(400, "invalid_request_error", "Output blocked by content filtering policy"))[0].stop == "refused"


@BOTH
def test_an_answer_without_text_is_an_empty_completion(provider: str) -> None:
    answer, _ = ask(provider, Answer("", extra={"content": None}))
    assert (answer.text, answer.stop) == ("", "end")


@BOTH
def test_without_usage_tokens_are_estimated_never_too_low(provider: str) -> None:
    answer, _ = ask(provider, Answer("漢字" * 50, usage=None, thinking="a" * 100, extra={"reasoning_content": "a" * 100}))
    assert answer.input_tokens >= len("the fixed prefix" "the question") and answer.output_tokens >= 6 * 50 + 100


def test_reasoning_is_no_part_of_the_text() -> None:
    assert ask("anthropic", Answer("hello", thinking="a draft"))[0].text == "hello"
    assert ask("openai", Answer("<think>a draft</think>hello", extra={"reasoning_content": "more"}))[0].text == "hello"


@BOTH
def test_lone_surrogates_arrive_as_they_are(provider: str) -> None:
    assert ask(provider, Answer("a\ud800b"))[0].text == "a\ud800b"


@BOTH
def test_an_answer_of_three_megabytes(provider: str) -> None:
    text = "// é line of a kernel\n" * 140_000
    answer, _ = ask(provider, Answer(text))
    assert len(text) > 3_000_000 and answer.text == text


# --- no answer ---


@BOTH
def test_the_sdk_tries_again_after_a_rate_limit(provider: str) -> None:
    limit = error(429, "rate_limit_error", "slow down", retry_after="0.1")
    answer, requests = ask(provider, limit, Answer("x"))
    assert answer.text == "x" and len(requests) == 2


@BOTH
@pytest.mark.parametrize(("status", "kind"), [(429, "rate_limit_error"), (529, "overloaded_error"), (503, "api_error")])
def test_a_long_pause_is_left_to_the_caller(provider: str, status: int, kind: str) -> None:
    failure, requests = failing(provider, Unavailable, error(status, kind, "later", retry_after="45"))
    assert failure.retry_after_s == 45 and not failure.consumed and len(requests) == 1 and "later" in str(failure)


@BOTH
def test_overload_that_lasts_is_unavailable_after_the_retries(provider: str) -> None:
    failure, requests = failing(provider, Unavailable, error(529, "overloaded_error", "Overloaded", retry_after="0.05"))
    assert len(requests) == 3 and not failure.consumed


@pytest.mark.parametrize(
    ("provider", "answer"),
    [
        ("openai", error(429, "insufficient_quota", "You exceeded your current quota", "insufficient_quota")),
        ("openai", error(429, "insufficient_quota", "no credits", "credit_balance_exhausted")),
        ("openai", error(402, "payment", "Insufficient credits")),
        ("anthropic", error(400, "invalid_request_error", "Your credit balance is too low to access the Anthropic API.")),
        ("anthropic", error(402, "billing_error", "There is an issue with your payment information.")),
        ("anthropic", error(429, "rate_limit_error", "Spend limit reached", "enforced_spend_limit_reached")),
    ],
)
def test_out_of_quota_stops_at_once(provider: str, answer: Answer) -> None:
    begin = time.monotonic()
    failure, requests = failing(provider, ModelError, answer)
    assert "out of quota" in str(failure) and len(requests) == 1 and time.monotonic() - begin < 5


@BOTH
@pytest.mark.parametrize(
    ("status", "kind", "message", "advice"),
    [
        (401, "authentication_error", f"Incorrect API key provided: {KEY}", "API_KEY_127_0_0_1"),
        (404, "not_found_error", "model: m", "check the model's name"),
        (400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum", "too long"),
        (413, "request_too_large", "Request exceeds the maximum size", "exceeds"),
    ],
)
def test_what_can_never_work_is_a_model_error(provider: str, status: int, kind: str, message: str, advice: str) -> None:
    failure, requests = failing(provider, ModelError, error(status, kind, message))
    assert advice in str(failure) and len(requests) == 1 and f"{provider}/m@" in str(failure)


@BOTH
def test_an_endpoint_that_is_down(provider: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        model = open_model(ModelSpec.parse(f"{provider}/m@http://127.0.0.1:{taken.getsockname()[1]}/v1"), {})
        with pytest.raises(Unavailable, match="no connection") as caught:
            model.complete(PROMPT, QUICK)
    assert not caught.value.consumed


@BOTH
def test_a_connection_that_breaks_inside_the_answer_may_be_charged(provider: str) -> None:
    failure, _ = failing(provider, Unavailable, Answer("x" * 50_000, break_after=1200))
    assert failure.consumed and "broke off" in str(failure)


@pytest.mark.parametrize(("kind", "expected"), [("overloaded_error", Unavailable), ("api_error", Unavailable), ("billing_error", ModelError)])
def test_an_error_inside_a_stream(kind: str, expected: type[Exception]) -> None:
    failure, _ = failing("anthropic", expected, Answer("half", stream_error=kind))
    assert isinstance(failure, ModelError) or failure.consumed


@BOTH
def test_a_server_that_speaks_something_else(provider: str) -> None:
    failing(provider, Unavailable if provider == "anthropic" else ModelError, Answer(raw=("text/html", b"<html>hello</html>")))
    failing(provider, Unavailable, Answer(raw=("application/json" if provider == "openai" else "text/event-stream", b'data: {"type": ')))


def test_a_gateway_that_answers_200_with_an_error_inside() -> None:
    body = b'{"error": {"message": "upstream is down", "code": 502}}'
    failure, _ = failing("openai", Unavailable, Answer(raw=("application/json", body)))
    assert "upstream is down" in str(failure)


# --- the time limit of a whole call ---


@BOTH
@pytest.mark.parametrize(
    "answer",
    [
        Answer("x" * 4000, pause_s=0.05, step=1),  # bytes trickle in, each soon enough
        Answer("x", pause_s=30.0),  # silence after the first byte
        error(503, "api_error", "again", retry_after="0.4"),  # pauses between retries
    ],
    ids=["trickle", "silence", "retries"],
)
def test_the_limit_holds_for_the_whole_call_and_ends_it(provider: str, answer: Answer) -> None:
    begin = time.monotonic()
    with serving(answer) as server:
        with pytest.raises(Unavailable, match=r"within 0\.6 s") as caught:
            opened(provider, server).complete(PROMPT, CallSettings(timeout_s=0.6))
        assert 0.5 < time.monotonic() - begin < 2.5 and caught.value.consumed
        if answer.pause_s == 0.05:
            time.sleep(0.3)
            assert server.broken == 1  # the connection is closed, not left to trickle on


def test_a_busy_server_does_not_hold_up_another_call(provider: str) -> None:
    asked, other_is_done = threading.Event(), threading.Event()

    def slow_for_some(request: Request) -> Answer:
        if "slow" in str(request.body["messages"]):
            asked.set()
            assert other_is_done.wait(timeout=15)
        return Answer("x")

    with serving(slow_for_some) as server, ThreadPoolExecutor(1) as pool:
        model = opened(provider, server)
        waiting = pool.submit(model.complete, Prompt("", "slow"), QUICK)
        assert asked.wait(timeout=15) and model.complete(PROMPT, CallSettings(timeout_s=10)).text == "x"
        other_is_done.set()
        assert waiting.result().text == "x"
