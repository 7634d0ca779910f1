"""What model calls can cost: a reservation before each call, never below what it comes to; whether a budget allows it; an estimate before a run.

Pure. The caller adds up: reserved when a call begins, replaced by what the answer says when it ends, kept where none came but it may be charged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import UsageError
from . import CallSettings, Completion, ModelSpec, Prompt
from .prices import Price, cost, price_of

_MARGIN_TOKENS = 256  # what a chat template or a provider may add to a prompt
_BYTES_PER_TOKEN = 3.5  # of code and English; only for estimates
# Output of a call in the estimate: a 100-line kernel has about 2,700 tokens (measured); the most is a guess that grows with the effort.
_LEAST_OUTPUT = 3_000
_MOST_OUTPUT = {"none": 5_000, "low": 8_000, "medium": 16_000, "high": 32_000}


@dataclass(frozen=True)
class Reservation:
    """Tokens of input and output together, and USD (0 where no price is known); also sums of such."""

    tokens: int = 0
    usd: float = 0.0

    def __add__(self, other: Reservation) -> Reservation:
        return Reservation(self.tokens + other.tokens, self.usd + other.usd)


def most_tokens(*texts: str) -> int:
    """An upper bound for the tokens of texts that nobody counted."""
    return sum(len(t.encode("utf-8", "surrogatepass")) for t in texts) + _MARGIN_TOKENS


def reserve(prompt: Prompt, settings: CallSettings, price: Price | None) -> Reservation:
    """The most that one answer can use: a token of text is at least one byte, and the output has a limit.

    Raises:
        UsageError: the prompt may be longer than the price is known for.
    """
    size = most_tokens(prompt.prefix, prompt.rest)
    if price and price.up_to_tokens and size > price.up_to_tokens:
        raise UsageError(f"a prompt of {size} bytes may be over {price.up_to_tokens} tokens, for which the price table does not hold; give --price")
    dearest = max(price.input_usd, price.cached_usd, price.written_usd) if price else 0.0
    return Reservation(size + settings.max_tokens, (size * dearest + settings.max_tokens * price.output_usd) / 1e6 if price else 0.0)


def settle(completion: Completion, price: Price | None) -> Reservation:
    """What an answer has used."""
    return Reservation(completion.input_tokens + completion.output_tokens, cost(completion, price) if price else 0.0)


def limit_reached(spent: Reservation, following: Reservation, budget_usd: float | None, budget_tokens: int | None) -> str | None:
    """Why the following call must not begin: it could go over a budget, with what is spent (or can be, by calls under way). None: it may."""
    total = spent + following
    if budget_usd is not None and total.usd > budget_usd:
        return f"the budget of {budget_usd:g} USD: {spent.usd:.4f} spent, {following.usd:.4f} more could be needed"
    if budget_tokens is not None and total.tokens > budget_tokens:
        return f"the budget of {budget_tokens} tokens: {spent.tokens} spent, {following.tokens} more could be needed"
    return None


def prices_for(specs: Sequence[ModelSpec], overrides: Mapping[str, Price], budget_usd: float | None) -> dict[str, Price | None]:
    """The price of each model by id, before a run. Recorded answers are free.

    Raises:
        UsageError: there is a budget in USD and a model without a known price, or a price for a model that is not asked.
    """
    if strange := sorted(set(overrides) - {s.id for s in specs}):
        raise UsageError(f"--price for {', '.join(strange)}, which is none of the models: {', '.join(s.id for s in specs)}")
    free = Price(0.0, 0.0, 0.0, 0.0, "recorded")
    found = {s.id: price_of(s, overrides) or (free if s.provider == "replay" else None) for s in specs}
    unknown = [i for i, price in found.items() if price is None]
    if budget_usd is not None and unknown:
        ask = " ".join(f"--price {i}=IN,OUT" for i in unknown)
        raise UsageError(f"a budget in USD needs the price of {', '.join(unknown)}: add {ask} (USD for a million tokens; 0,0 for your own server)")
    return found


def estimate(specs: Sequence[ModelSpec], prices: Mapping[str, Price | None], calls: int, prompt_bytes: int, settings: CallSettings) -> str:
    """One line before a run: what `calls` answers to prompts of `prompt_bytes` will come to, with the models asked by their shares."""
    asked = int(prompt_bytes / _BYTES_PER_TOKEN)
    most = min(_MOST_OUTPUT.get(settings.effort, settings.max_tokens), settings.max_tokens)
    outputs = (min(_LEAST_OUTPUT, most), most)
    tokens = [calls * (asked + output) for output in outputs]
    line = f"{calls} calls: about {tokens[0] / 1e3:.0f} to {tokens[1] / 1e3:.0f} thousand tokens"
    known = [(s.weight, p) for s in specs if (p := prices.get(s.id))]
    if len(known) < len(specs):
        return f"{line}; the price of {', '.join(s.id for s in specs if not prices.get(s.id))} is not known"
    shares = sum(w for w, _ in known)
    usd = [sum(w / shares * calls * cost(Completion("", input_tokens=asked, output_tokens=o), p) for w, p in known) for o in outputs]
    return f"{line}, about {usd[0]:.2f} to {usd[1]:.2f} USD"
