"""Models behind OpenAI's chat completions, which its own models and every compatible server speak (vLLM, llama.cpp, gateways ...).

Servers differ in what they know: a parameter refused by name is left out or swapped for its older twin from then on. Without usage, tokens are
estimated. Reasoning that a server leaves in the text is taken out.
"""

from __future__ import annotations

from typing import Any, ClassVar

import openai as sdk
from openai.types.chat import ChatCompletion

from ..errors import ModelError
from ..records import digest
from . import CallSettings, Completion, Prompt, Unavailable
from .money import most_tokens
from .reply import without_reasoning
from .sdk import SdkModel, counted

_HOME = "https://api.openai.com/v1"
_STOPS = {"stop": "end", "length": "length", "content_filter": "refused"}


class OpenaiModel(SdkModel):
    """See the module."""

    sdk = sdk
    variable = "OPENAI_API_KEY"

    twins = frozenset({"max_tokens", "max_completion_tokens"})
    optional: ClassVar = {"reasoning_effort": ("reasoning_effort", r"reasoning\.effort"), "prompt_cache_key": ("prompt_cache_key",)} | {
        name: (name,) for name in ("max_tokens", "max_completion_tokens")
    }

    def client(self, key: str, **common: Any) -> sdk.AsyncOpenAI:
        return sdk.AsyncOpenAI(api_key=key, base_url=self.spec.url or _HOME, **common)

    def parameters(self, prompt: Prompt, settings: CallSettings) -> dict[str, Any]:
        """The limit of output under its new name at the maker's address, first under the one that all compatible servers know elsewhere."""
        first, second = ("max_tokens", "max_completion_tokens") if self.spec.url else ("max_completion_tokens", "max_tokens")
        limit = second if first in self._unknown else first
        return {limit: settings.max_tokens, "reasoning_effort": settings.effort, "prompt_cache_key": digest(prompt.prefix)}

    async def ask(self, client: sdk.AsyncOpenAI, prompt: Prompt, parameters: dict[str, Any]) -> Completion:
        """One answer in one piece."""
        messages: list[Any] = [{"role": "system", "content": prompt.prefix}] if prompt.prefix else []
        messages.append({"role": "user", "content": prompt.rest})
        answer = await client.chat.completions.create(model=self.spec.name, messages=messages, **parameters)
        if not isinstance(answer, ChatCompletion):
            raise ModelError(f"{self.spec.id}: the address does not speak chat completions; most servers have them at http://HOST:PORT/v1")
        if not answer.choices or not answer.choices[0].message:  # some gateways answer 200 with an error inside
            error = self._shown((answer.model_extra or {}).get("error") or "no choices")
            raise Unavailable(f"{self.spec.id}: an answer without content: {error}", consumed=True)
        choice, usage = answer.choices[0], answer.usage
        said = choice.message.content if isinstance(choice.message.content, str) else ""
        hidden = [v for v in (choice.message.model_extra or {}).values() if isinstance(v, str)]  # reasoning, under names that differ
        input_tokens, output_tokens = counted(usage, "prompt_tokens"), counted(usage, "completion_tokens")
        return Completion(
            without_reasoning(said),
            "refused" if choice.message.refusal else _STOPS.get(choice.finish_reason, choice.finish_reason or "end"),
            most_tokens(prompt.prefix, prompt.rest) if input_tokens is None else input_tokens,
            counted(usage, "prompt_tokens_details", "cached_tokens") or 0,
            most_tokens(said, *hidden) if output_tokens is None else output_tokens,
            counted(usage, "prompt_tokens_details", "cache_write_tokens") or 0,
        )


open_model = OpenaiModel
