"""Models behind Anthropic's messages, at the maker's address or at one that speaks the same protocol.

Answers are streamed: long ones are refused otherwise. The prefix of a prompt is the system text with a cache mark. How much a model thinks is told by
effort, with adaptive thinking; models that know neither say so once and are asked without.
"""

from __future__ import annotations

from typing import Any, ClassVar

import anthropic as sdk

from . import CallSettings, Completion, Prompt, Unavailable
from .money import most_tokens
from .sdk import SdkModel, counted

_HOME = "https://api.anthropic.com"
_STOPS = {"end_turn": "end", "stop_sequence": "end", "max_tokens": "length", "model_context_window_exceeded": "length", "refusal": "refused"}


class AnthropicModel(SdkModel):
    """See the module."""

    sdk = sdk
    variable = "ANTHROPIC_API_KEY"
    optional: ClassVar = {"thinking": ("thinking",), "output_config": ("output_config", "effort"), "cache_control": ("cache_control",)}

    def client(self, key: str, **common: Any) -> sdk.AsyncAnthropic:
        """At `.../v1` or without it: the SDK adds that part itself."""
        return sdk.AsyncAnthropic(api_key=key, base_url=(self.spec.url or _HOME).rstrip("/").removesuffix("/v1"), **common)

    def parameters(self, prompt: Prompt, settings: CallSettings) -> dict[str, Any]:
        """Effort `none` is the least thinking there is: off, or low where it cannot be off."""
        off = settings.effort == "none"
        return {
            "max_tokens": settings.max_tokens,
            "thinking": {"type": "disabled" if off else "adaptive"},
            "output_config": {"effort": "low" if off else settings.effort},
            "cache_control": {"type": "ephemeral"},
        }

    async def ask(self, client: sdk.AsyncAnthropic, prompt: Prompt, parameters: dict[str, Any]) -> Completion:
        """One streamed answer. Text is joined once, at the end: the SDK's own collector is quadratic in its length."""
        mark = {n: v for n, v in parameters.items() if n == "cache_control"}
        common = {n: v for n, v in parameters.items() if n not in mark}
        if prompt.prefix:
            common["system"] = [{"type": "text", "text": prompt.prefix, **mark}]
        text: list[str] = []
        hidden: list[str] = []
        usage: dict[str, int] = {}
        stop, ended = None, False
        question: Any = {"role": "user", "content": prompt.rest}
        stream = await client.messages.create(model=self.spec.name, messages=[question], stream=True, **common)
        async for event in stream:
            if event.type == "message_start":
                usage |= _counts(getattr(event.message, "usage", None))
            elif event.type == "content_block_start":
                text.append(getattr(event.content_block, "text", "") or "")
            elif event.type == "content_block_delta":
                text.append(getattr(event.delta, "text", "") or "")
                hidden.append(getattr(event.delta, "thinking", "") or "")
            elif event.type == "message_delta":
                usage |= _counts(getattr(event, "usage", None))
                stop = event.delta.stop_reason or stop
            ended = ended or event.type == "message_stop"
        if not ended:
            raise Unavailable(f"{self.spec.id}: the answer broke off before its end", consumed=True)
        said = "".join(text)
        cached, written = usage.get("cache_read_input_tokens", 0), usage.get("cache_creation_input_tokens", 0)
        plain = usage.get("input_tokens", most_tokens(prompt.prefix, prompt.rest))
        output = usage.get("output_tokens", most_tokens(said, *hidden))
        return Completion(said, _STOPS.get(stop or "", stop or "end"), plain + cached + written, cached, output, written)


open_model = AnthropicModel



def _counts(usage: object) -> dict[str, int]:
    """Those of the four counts that are there; later ones of a stream replace earlier ones, since each counts from the beginning."""
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
    return {n: c for n in names if (c := counted(usage, n)) is not None}
