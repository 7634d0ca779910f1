"""What the makers' SDKs have in common: the time limit of a whole call, parameters that a server does not know, and what an error means.

The limit is the reason for asyncio in this one file: retries, pauses between them and bytes that trickle in all count, and a call that is over its
time must end, connection included, not just be left behind; only the asynchronous clients of the SDKs can be cancelled. Every call has its own
event loop and client, so calls may come from any thread (one that runs no event loop itself).

A key is given to the SDK alone. What a server says is shown with the key cut out; errors are raised without the SDK's own, which hold the request.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import math
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any, ClassVar
from urllib.parse import urlsplit

import httpx2

from ..errors import ModelError
from . import MOST_TOKENS, CallSettings, Completion, ModelSpec, Prompt, Unavailable

_RETRIES = 2
_CONNECT_S = 10.0
_LONGEST_PAUSE_S = 20.0  # a longer retry-after is the loop's business: it can ask another model meanwhile
_QUOTA = re.compile(
    r"insufficient_quota|credit_balance_exhausted|billing_hard_limit|billing_error|spend_limit|usage_limit_reached|credit balance is too low"
    r"|reached your specified api usage limits",
    re.IGNORECASE,
)
_REFUSED = re.compile(r"content_policy_violation|invalid_prompt|content_filter|blocked by content filtering", re.IGNORECASE)
# Kinds of errors that no waiting mends, as the status that they have outside a stream. Source: the table of errors in Anthropic's API reference.
_STATUS_OF = {"invalid_request_error": 400, "authentication_error": 401, "billing_error": 402, "permission_error": 403, "not_found_error": 404}


class SdkModel(ABC):
    """One model behind one SDK. A parameter that the server refuses by name is left out from then on."""

    sdk: ModuleType
    variable: str  # of the key
    optional: ClassVar[Mapping[str, tuple[str, ...]]]  # parameters that may be left out -> the words by which a server can name them
    twins: ClassVar[frozenset[str]] = frozenset()  # two names of the limit of output, which is always sent: what a call can cost depends on it

    def __init__(self, spec: ModelSpec, environ: Mapping[str, str]) -> None:
        """Raises:
        ModelError: no key, and the address is the maker's own.
        """
        if spec.url:
            self.variable += "_" + re.sub(r"\W+", "_", urlsplit(spec.url).hostname or "").upper()
        self._key = environ.get(self.variable, "").strip()
        if not (self._key or spec.url):
            raise ModelError(f"{spec.id} needs a key: set the environment variable {self.variable}")
        self.spec = spec
        self._unknown: set[str] = set()

    @abstractmethod
    def client(self, key: str, **common: Any) -> Any:
        """The SDK's asynchronous client."""

    @abstractmethod
    def parameters(self, prompt: Prompt, settings: CallSettings) -> dict[str, Any]:
        """What to send beside model and messages."""

    @abstractmethod
    async def ask(self, client: Any, prompt: Prompt, parameters: dict[str, Any]) -> Completion:
        """One call."""

    def complete(self, prompt: Prompt, settings: CallSettings) -> Completion:
        """See the protocol `Model`."""
        try:
            found = asyncio.run(self._within_limit(Prompt(_valid(prompt.prefix), _valid(prompt.rest)), settings))
            return replace(found, text=self._without_key(found.text))  # a server may echo what it was sent; answers are stored
        except TimeoutError:
            raise Unavailable(f"{self.spec.id}: no whole answer within {settings.timeout_s:g} s", consumed=True) from None

    async def _within_limit(self, prompt: Prompt, settings: CallSettings) -> Completion:
        lost = _Lost()
        http = self.sdk.DefaultAsyncHttpxClient(event_hooks={"request": [lost.before], "response": [lost.after, _no_vain_retries]})
        common = {"timeout": httpx2.Timeout(settings.timeout_s, connect=_CONNECT_S), "max_retries": _RETRIES, "http_client": http}
        async with asyncio.timeout(settings.timeout_s), self.client(self._key or "none", **common) as client:
            while True:
                parameters = {n: v for n, v in self.parameters(prompt, settings).items() if n not in self._unknown}
                try:
                    return await self.ask(client, prompt, parameters)
                except self.sdk.APIStatusError as error:
                    name = self._refused(error, parameters)
                    if name is None:
                        return self._sorted(error)
                    self._unknown.add(name)
                except (self.sdk.APIError, httpx2.HTTPError, ValueError) as error:
                    came = lost.sent or not isinstance(error.__cause__, httpx2.ConnectError | httpx2.ConnectTimeout)
                    said = self._shown(error.__cause__ or error)
                    raise Unavailable(f"{self.spec.id}: {'the answer broke off' if came else 'no connection'}: {said}", consumed=came) from None

    def _refused(self, error: Any, parameters: Mapping[str, Any]) -> str | None:
        """Which of the parameters the server does not know: the first that it names."""
        if error.status_code not in (400, 422) or _QUOTA.search(body := _text(error)):
            return None
        places = {n: m.start() for n in parameters if n in self.optional and (m := re.search(rf"\b({'|'.join(self.optional[n])})\b", body))}
        name = min(places, key=places.__getitem__, default=None)
        return None if name in self.twins and self._unknown & self.twins - {name} else name

    def _sorted(self, error: Any) -> Completion:
        """What an answer of the server means that is none.

        Raises:
            Unavailable: it may be asked again.
            ModelError: it cannot be used.
        """
        body, inside_stream = _text(error), error.status_code < 400
        kind = re.search("|".join(_STATUS_OF), body)
        status = _STATUS_OF[kind.group()] if inside_stream and kind else 500 if inside_stream else error.status_code
        said = f"{self.spec.id}: {self._shown(_message(error.body) or error)} (HTTP {status})"
        if status in (400, 402, 403, 429) and (status == 402 or _QUOTA.search(body)):
            raise ModelError(f"{said}: out of quota; add credit or raise the limit at the provider, or choose another model") from None
        if status in (400, 403) and _REFUSED.search(body):
            return Completion("", "refused")
        if status in (408, 409, 425, 429) or status >= 500:
            raise Unavailable(said, _retry_after_s(error.response.headers), consumed=inside_stream) from None
        key = f"check the key in the environment variable {self.variable}"
        hint = {401: key, 403: key, 404: "check the model's name and address"}.get(status, "the provider does not take such a request")
        raise ModelError(f"{said}; {hint}") from None

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text

    def _shown(self, said: object) -> str:
        """One short printable line, without the key."""
        line = " ".join("".join(c if c.isprintable() else " " for c in self._without_key(str(said))[:4000]).split())
        return line[:300] or type(said).__name__


def counted(usage: object, *names: str) -> int | None:
    """A number of tokens in an SDK's record, by the path of its names; None where the server did not say."""
    for name in names:
        usage = getattr(usage, name, None)
    return usage if isinstance(usage, int) and 0 <= usage < MOST_TOKENS else None


class _Lost:
    """Keeps an SDK from asking again once a whole request went out and no error came back for it: what was lost may be charged, and only one
    call is reserved."""

    def __init__(self) -> None:
        self.sent = False

    async def before(self, request: httpx2.Request) -> None:
        if self.sent:
            raise httpx2.ReadError("the connection broke after the request was sent")
        request.extensions["trace"] = self._trace

    async def _trace(self, event: str, _: object) -> None:
        self.sent = self.sent or event.endswith("send_request_body.complete")

    async def after(self, response: httpx2.Response) -> None:
        self.sent = response.status_code < 400


async def _no_vain_retries(response: httpx2.Response) -> None:
    """Tells the SDK not to try again where that cannot help: money has run out, or the pause asked for is long."""
    if response.status_code >= 400:
        await response.aread()
        if _QUOTA.search(response.text[:4000]) or _retry_after_s(response.headers) > _LONGEST_PAUSE_S:
            response.headers["x-should-retry"] = "false"


def _retry_after_s(headers: Mapping[str, str]) -> float:
    """Seconds, from a number or a date; 0 where there is none."""
    text = headers.get("retry-after", "")
    try:
        seconds = float(text)
    except ValueError:
        date = email.utils.parsedate_tz(text)
        seconds = email.utils.mktime_tz(date) - time.time() if date else 0.0
    return min(max(seconds, 0.0), 86_400.0) if math.isfinite(seconds) else 0.0


def _text(error: Any) -> str:
    return error.body[:4000] if isinstance(error.body, str) else json.dumps(error.body)[:4000]


def _message(body: object) -> str:
    """What the server says in words."""
    inner = body.get("error", body) if isinstance(body, dict) else body
    said = inner.get("message") if isinstance(inner, dict) else inner
    return str(said) if said else ""


def _valid(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
