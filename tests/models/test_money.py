"""Specs, prices, reservations and recorded answers."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

from evokernel.errors import ModelError, UsageError
from evokernel.models import CallSettings, Completion, Model, ModelSpec, Prompt, open_model
from evokernel.models.money import Reservation, estimate, limit_reached, prices_for, reserve, settle
from evokernel.models.prices import Price, cost, parse_price, price_of, table
from evokernel.models.replay import recorded
from tests.contracts.model_contract import ANSWER, ModelContract

PRICE = Price(2.0, 0.1, 10.0, 2.5, "a test")
PROMPT = Prompt("prefix", "rest é")


# --- specs ---


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("anthropic/claude-x", ModelSpec("anthropic", "claude-x")),
        ("openai/org/llama-70b@http://localhost:8000/v1*2.5", ModelSpec("openai", "org/llama-70b", "http://localhost:8000/v1", 2.5)),
        ("openai/name@20260101", ModelSpec("openai", "name@20260101")),
        ("openai/m@http://[::1]:8000", ModelSpec("openai", "m", "http://[::1]:8000")),
        ("replay//home/a b/answers@1.jsonl", ModelSpec("replay", "/home/a b/answers@1.jsonl")),
        ("replay/x.jsonl*3", ModelSpec("replay", "x.jsonl", None, 3.0)),
    ],
)
def test_specs(text: str, spec: ModelSpec) -> None:
    assert ModelSpec.parse(text) == spec and ModelSpec.parse(spec.id).id == spec.id


@pytest.mark.parametrize(
    "text",
    ["", "openai", "openai/", "openai/a b", "openai/m*0", "openai/m@ftp://h", "nobody/m", "openai/m@http://user:secret@h/v1", "openai/m@http://h?key=1"],
)  # fmt: skip
def test_what_is_no_spec(text: str) -> None:
    with pytest.raises(UsageError):
        ModelSpec.parse(text)


def test_importing_models_loads_no_sdk() -> None:
    imports = "import evokernel.models, evokernel.models.money, evokernel.models.reply, sys"
    code = f"{imports}; print(sorted({{'openai', 'anthropic', 'httpx2'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


# --- prices ---


def test_every_shipped_price_names_the_makers_page_and_a_day() -> None:
    for model, price in table().items():
        assert ModelSpec.parse(model).id == model
        host = "https://platform.claude.com/" if model.startswith("anthropic/") else "https://developers.openai.com/"
        assert price.source.startswith(host) and date(2026, 1, 1) <= date.fromisoformat(price.date)
        assert 0 < price.cached_usd <= price.input_usd <= price.written_usd < price.output_usd


def test_a_price_is_never_guessed() -> None:
    known = next(iter(table()))
    assert price_of(ModelSpec.parse(known), {}) == table()[known]
    assert price_of(ModelSpec.parse(f"{known}-20260101"), {}) is None and price_of(ModelSpec.parse(f"{known}@http://localhost/v1"), {}) is None
    assert price_of(ModelSpec.parse(known), {known: PRICE}) == PRICE


@pytest.mark.parametrize(
    ("text", "model", "price"),
    [
        ("openai/m=2,10", "openai/m", (2, 2, 10, 2)),
        ("openai/m=2,10,0.5", "openai/m", (2, 0.5, 10, 2)),
        ("openai/m@http://h:1/v1*2=2,10,0.5,3", "openai/m@http://h:1/v1", (2, 0.5, 10, 3)),
        ("openai/m=0,0", "openai/m", (0, 0, 0, 0)),
    ],
)
def test_a_price_from_the_user(text: str, model: str, price: tuple[float, ...]) -> None:
    assert parse_price(text) == (model, Price(*price, "--price"))


@pytest.mark.parametrize("text", ["", "openai/m", "=1,2", *[f"openai/m={n}" for n in ("2", "a,b", "-1,2", "nan,1", "inf,1", "1,2,3,4,5")]])
def test_a_wrong_price_shows_the_form(text: str) -> None:
    with pytest.raises(UsageError, match="MODEL=in,out"):
        parse_price(text)


def test_the_cost_of_an_answer() -> None:
    assert cost(Completion("", "end", 1_000_000, 600_000, 100_000, 300_000), PRICE) == pytest.approx(0.1 * 2 + 0.6 * 0.1 + 0.3 * 2.5 + 0.1 * 10)


# --- budgets ---


@pytest.mark.parametrize("answer", [Completion("", "end", 13, 0, 500), Completion("", "end", 13, 13, 500), Completion("", "length", 13, 0, 500, 13)])
def test_a_reservation_is_never_below_what_an_answer_costs(answer: Completion) -> None:
    reserved, settings = reserve(PROMPT, CallSettings(max_tokens=500), PRICE), CallSettings(max_tokens=500)
    used = settle(answer, PRICE)
    assert used.tokens <= reserved.tokens and used.usd <= reserved.usd
    assert reserve(PROMPT, settings, None) == Reservation(reserved.tokens, 0.0)
    assert reserved.tokens >= len("prefix rest é".encode()) - 1 + 500


def test_a_prompt_longer_than_its_price_is_known_for_is_not_asked() -> None:
    price = Price(2.0, 0.1, 10.0, 2.5, "a test", up_to_tokens=1000)
    assert reserve(PROMPT, CallSettings(), price).usd > 0
    with pytest.raises(UsageError, match="--price"):
        reserve(Prompt("", "x" * 1000), CallSettings(), price)


def test_calls_under_way_count_against_the_budget() -> None:
    call = Reservation(1000, 0.4)
    assert limit_reached(Reservation(), call, None, None) is None
    assert limit_reached(call, call, 1.0, 10_000) is None
    assert "1 USD" in (limit_reached(call + call, call, 1.0, None) or "")
    assert "2500 tokens" in (limit_reached(call + call, call, None, 2500) or "")
    assert limit_reached(Reservation(), call, 0.0, None) and limit_reached(Reservation(), call, None, 0)


def test_a_budget_in_usd_asks_for_unknown_prices_before_the_run() -> None:
    specs = [ModelSpec.parse("openai/m@http://localhost/v1"), ModelSpec.parse("replay/x.jsonl")]
    assert prices_for(specs, {}, None)[specs[0].id] is None
    with pytest.raises(UsageError, match=r"--price openai/m@http://localhost/v1=IN,OUT"):
        prices_for(specs, {}, 5.0)
    found = prices_for(specs, {specs[0].id: PRICE}, 5.0)
    assert found[specs[0].id] == PRICE and cost(Completion("", "end", 1000, 0, 1000), found[specs[1].id]) == 0
    with pytest.raises(UsageError, match="openai/typo"):
        prices_for(specs, {"openai/typo": PRICE}, None)


def test_the_estimate_names_tokens_and_money() -> None:
    specs = [ModelSpec("openai", "a", weight=3.0), ModelSpec("openai", "b")]
    free = Price(0, 0, 0, 0, "a test")
    line = estimate(specs, {"openai/a": PRICE, "openai/b": free}, 40, 35_000, CallSettings())
    low, high = (0.75 * 40 * (10_000 * 2 + output * 10) / 1e6 for output in (3000, 16_000))
    assert line == f"40 calls: about 520 to 1040 thousand tokens, about {low:.2f} to {high:.2f} USD"
    assert "price of openai/b is not known" in estimate(specs, {"openai/a": PRICE, "openai/b": None}, 40, 35_000, CallSettings())


# --- recorded answers ---


def replay(path: Path, *rows: object) -> Model:
    path.write_text("".join(f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in rows), encoding="utf-8")
    return open_model(ModelSpec.parse(f"replay/{path}"), {})


class TestContract(ModelContract):
    @pytest.fixture
    def model(self, tmp_path: Path) -> Model:
        return replay(tmp_path / "a b.jsonl", *[{"text": ANSWER}] * 10)


def test_recorded_answers_come_by_prompt_or_in_order(tmp_path: Path) -> None:
    mine = Completion("mine \ud800", "length", 10, 5, 3, 2)
    model = replay(tmp_path / "x.jsonl", {"text": "first"}, recorded(PROMPT, mine), {"text": "second", "note": "ignored"}, "")
    other = Prompt("", "another")
    assert [model.complete(p, CallSettings()) for p in (other, PROMPT)] == [Completion("first"), mine]
    assert model.complete(PROMPT, CallSettings()).text == "second"
    with pytest.raises(ModelError, match="no more recorded answers"):
        model.complete(PROMPT, CallSettings())


@pytest.mark.parametrize("row", ["{", "[]", "7", '{"stop": "end"}', '{"text": 7}', '{"text": "", "stop": 7}', '{"text": "", "prompt_hash": 7}'])
def test_a_broken_record_names_its_line(tmp_path: Path, row: str) -> None:
    with pytest.raises(ModelError, match=r"x\.jsonl, line 2"):
        replay(tmp_path / "x.jsonl", {"text": "fine"}, row)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        open_model(ModelSpec.parse(f"replay/{tmp_path}/none.jsonl"), {})
