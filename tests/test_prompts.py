from collections.abc import Iterator
from pathlib import Path

import pytest

from evokernel import prompts
from evokernel.errors import UsageError


@pytest.fixture
def templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(prompts, "root", lambda: tmp_path)
    prompts._template.cache_clear()
    yield tmp_path
    prompts._template.cache_clear()


def test_placeholders_are_replaced_once_and_braces_of_code_stay(templates: Path) -> None:
    (templates / "one.md").write_text("{{a}} {{{v}}} {{ a }} {{A}} pack<1>{{1, 2}}\n{{b}}\n")
    assert prompts.render("one", a="{{b}}", b="2", v="{\\1}") == "{{b}} {{\\1}} {{ a }} {{A}} pack<1>{{1, 2}}\n2"


def test_a_value_too_few_or_too_many_is_an_error_that_names_it(templates: Path) -> None:
    (templates / "one.md").write_text("{{a}} {{b}}")
    with pytest.raises(UsageError, match=r"prompts/one.md: no value for b, no placeholder for c"):
        prompts.render("one", a="", c="")
    with pytest.raises(UsageError, match="the templates are one"):
        prompts.render("other")


def test_rows_are_the_cells_below_the_head(templates: Path) -> None:
    (templates / "table.md").write_text("Words.\n\n| a | b |\n|---|---|\n| 1 | two words |\n| 3 | |\n")
    assert prompts.rows("table") == (("1", "two words"), ("3", ""))


def test_the_hash_changes_with_any_template(templates: Path) -> None:
    (templates / "one.md").write_text("a")
    before = prompts.prompt_hash()
    (templates / "two.md").write_text("b")
    assert prompts.prompt_hash() != before


def test_the_shipped_tables_are_whole() -> None:
    for target, known in (("cuda", "sm_90a clusters"), ("cpp", "")):
        words = {"any", "product", "reduction", "parameter", *known.split()}
        directions, techniques = prompts.rows(f"directions_{target}"), prompts.rows(f"techniques_{target}")
        assert directions[0][0] == "algebra first" and all(len(r) == 3 and all(r) and words.issuperset(r[1].split()) for r in directions)
        assert all(len(r) == 5 and all(r) and words.issuperset(r[2].split()) for r in techniques)
        assert all({"memory", "compute", "latency"}.issuperset(r[1].split()) for r in techniques)
        assert len({r[0] for r in techniques}) == len(techniques)
