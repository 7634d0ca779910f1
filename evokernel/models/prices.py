"""What tokens cost. `prices.json` holds prices that were read on the makers' public pages, each with page and day; users say others with --price.

A price that is not known is None, never a guess. Rows are those of the plain service (no batch, no fast mode).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..errors import UsageError
from . import Completion, ModelSpec


@dataclass(frozen=True)
class Price:
    """USD for a million tokens: of input, of input read from the provider's cache, of output with reasoning, of input written to the cache.
    `up_to_tokens`: the longest prompt for which the page says so. `date`: the day the page was read, ISO."""

    input_usd: float
    cached_usd: float
    output_usd: float
    written_usd: float
    source: str
    date: str = ""
    up_to_tokens: int | None = None


@cache
def table() -> Mapping[str, Price]:
    """The shipped prices by model id."""
    rows = json.loads(Path(__file__).with_name("prices.json").read_text(encoding="utf-8"))
    return {row.pop("model"): Price(**row) for row in rows}


def price_of(spec: ModelSpec, overrides: Mapping[str, Price]) -> Price | None:
    """The user's price for this model, or the shipped one of its maker; None where neither is known."""
    return overrides.get(spec.id) or table().get(spec.id)


def parse_price(text: str) -> tuple[str, Price]:
    """`MODEL=in,out[,cached[,written]]` in USD for a million tokens -> model id and price. What is read from a cache or written to it costs as
    much as other input where it is left out.

    Raises:
        UsageError: not of that form.
    """
    model, _, numbers = text.rpartition("=")
    try:
        values = [float(n) for n in numbers.split(",")]
    except ValueError:
        values = []
    if not (model and 2 <= len(values) <= 4 and all(math.isfinite(v) and v >= 0 for v in values)):
        raise UsageError(f"{text!r} is no price: write MODEL=in,out or MODEL=in,out,cached in USD for a million tokens, as in openai/NAME=2,10,0.5")
    input_usd, output_usd = values[:2]
    cached_usd, written_usd = [*values[2:], input_usd, input_usd][:2]
    return ModelSpec.parse(model).id, Price(input_usd, cached_usd, output_usd, written_usd, "--price")


def cost(completion: Completion, price: Price) -> float:
    """USD of one answer."""
    plain = max(completion.input_tokens - completion.cached_tokens - completion.written_tokens, 0)
    return (
        plain * price.input_usd + completion.cached_tokens * price.cached_usd
        + completion.written_tokens * price.written_usd + completion.output_tokens * price.output_usd
    ) / 1e6  # fmt: skip
