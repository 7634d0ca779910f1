"""Models: what turns a prompt into text, one file a provider.

A provider is one file with a function `open_model(spec, environ) -> Model`, one line in `_BUILT_IN` (or an entry point in the group
`evokernel.models`), and passes `tests/contracts/model_contract.py`. Providers use their makers' own SDKs, which retry, time out and stream; what is
left over is sorted here into three kinds: the answer is no kernel (a Completion all the same), nothing came (`Unavailable`: wait and ask again),
or nothing will ever come (ModelError: no key, out of quota, no such model: the run stops, with its results saved).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from ..errors import UsageError
from ..records import digest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

_BUILT_IN = {name: f"evokernel.models.{name}" for name in ("anthropic", "openai", "replay", "file")}
ENTRY_POINT_GROUP = "evokernel.models"
MOST_TOKENS = 2**40  # of one answer; more is a server's mistake
EFFORTS = ("none", "low", "medium", "high", "max")
_SPEC = re.compile(r"(?P<provider>[a-z][\w-]*)/(?P<name>[^*\s](?:[^*\n]*?[^*\s])??)(?:@(?P<url>https?://[^*\s]+))?(?:\*(?P<weight>\d+(?:\.\d+)?))?")


@dataclass(frozen=True)
class Prompt:
    """What a model is asked. `prefix` is the same text in every prompt for a kernel for a target, byte by byte, so that a provider can cache it."""

    prefix: str
    rest: str

    @property
    def hash(self) -> str:
        return digest(self.prefix, self.rest)


@dataclass(frozen=True)
class Completion:
    """A model's answer. `stop`: end, length (cut off), refused, or the provider's own word. Tokens as the provider counts them: `input_tokens` in
    all, `cached_tokens` of those read from its cache, `written_tokens` of those written to it (some charge more for these), `output_tokens` with
    hidden reasoning. Where a provider does not count, they are estimated from bytes, never too low. `text` can hold lone surrogates."""

    text: str
    stop: str = "end"
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    written_tokens: int = 0

    def __post_init__(self) -> None:
        """Raises:
        ValueError: a number of tokens that cannot be stored or would make money come back.
        """
        counts = (self.input_tokens, self.cached_tokens, self.output_tokens, self.written_tokens)
        if not all(0 <= count < MOST_TOKENS for count in counts):
            raise ValueError(f"these are no numbers of tokens: {counts}")


class Unavailable(Exception):
    """No answer: the endpoint is down, overloaded or limits the rate, after the SDK's own retries. `retry_after_s`: when it may be asked again, 0
    if it did not say. `consumed`: the call may have used tokens all the same (it was cut off by our time limit): its reservation is spent."""

    def __init__(self, message: str, retry_after_s: float = 0.0, *, consumed: bool = False) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.consumed = consumed


@dataclass(frozen=True)
class CallSettings:
    """How every call of a run is made. `effort` is one of EFFORTS; `max_tokens` of output, reasoning included; `timeout_s` for a whole call."""

    effort: str = "medium"
    max_tokens: int = 32_000
    timeout_s: float = 900.0

    def __post_init__(self) -> None:
        if self.effort not in EFFORTS:
            raise UsageError(f"there is no effort {self.effort!r}; write {', '.join(EFFORTS)}")


class Model(Protocol):
    """One model at one provider. Thread-safe."""

    def complete(self, prompt: Prompt, settings: CallSettings) -> Completion:
        """Ask, and wait for the whole answer.

        Raises:
            Unavailable: see there.
            ModelError: it cannot be used: no key, no such model, out of quota, a prompt that is too long.
        """


@dataclass(frozen=True)
class ModelSpec:
    """`PROVIDER/NAME`, at another address with `@URL`, with a share in the ensemble by `*WEIGHT`: `openai/llama-70b@http://localhost:8000/v1*2`.
    The name of `replay` is a path, slashes and blanks included."""

    provider: str
    name: str
    url: str | None = None
    weight: float = 1.0

    @property
    def id(self) -> str:
        """What names the model in proposals and prices: provider, name and address, without the weight."""
        return f"{self.provider}/{self.name}" + (f"@{self.url}" if self.url else "")

    @staticmethod
    def parse(text: str) -> ModelSpec:
        """Raises:
        UsageError: not of that form, or an unknown provider.
        """
        match = _SPEC.fullmatch(text)
        if not match or (match["provider"] != "replay" and re.search(r"\s|://", match["name"])):
            form = "PROVIDER/NAME, for instance anthropic/NAME or openai/NAME@http://localhost:8000/v1, and *2 for twice the share"
            raise UsageError(f"{text!r} is no model: write {form}")
        if re.search(r"@(localhost|[\w.-]+:\d+)(/|$)", match["name"]):
            raise UsageError(f"{text!r}: an address begins with http:// or https://, as in openai/NAME@http://localhost:8000/v1")
        if match["provider"] not in providers():
            raise UsageError(f"there is no provider {match['provider']!r}; known providers: {', '.join(providers())}")
        if match["url"] and not re.fullmatch(r"https?://([\w.-]+|\[[\da-fA-F:.]+\])(:\d{1,5})?(/[^@?#]*)?", match["url"]):
            # the address is part of the id, which is stored and shown
            raise UsageError(f"the address of {match['provider']}/{match['name']} is not just host, port and path: keys belong into variables")
        weight = float(match["weight"] or 1.0)
        if weight <= 0:
            raise UsageError(f"{text!r}: a share is more than 0")
        return ModelSpec(match["provider"], match["name"], match["url"], weight)


def providers() -> tuple[str, ...]:
    """All registered provider names, built-in ones first."""
    return (*_BUILT_IN, *(e.name for e in _added()))


@cache  # each look reads the metadata of every installed package
def _added() -> EntryPoints:
    from importlib.metadata import entry_points  # 20 ms, of which most programs need nothing

    return entry_points(group=ENTRY_POINT_GROUP)


def open_model(spec: ModelSpec, environ: Mapping[str, str]) -> Model:
    """The model, ready to be asked. Imports its SDK; makes no call.

    Args:
        environ: where keys are looked up: OPENAI_API_KEY and ANTHROPIC_API_KEY for the makers' own addresses; at another address, which must not
            see those, with the host behind it (OPENAI_API_KEY_GATEWAY_EXAMPLE_COM).

    Raises:
        ModelError: the key is missing, and the address is the provider's own.
    """
    added = next((e.load() for e in _added() if e.name == spec.provider), None)
    model: Model = (added or import_module(_BUILT_IN[spec.provider])).open_model(spec, environ)
    return model
