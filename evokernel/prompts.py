"""Prompt templates: text files of the top-level `prompts/` folder, with `{{name}}` where a value goes in.

Two braces and a lower-case word, nothing else: C++ and CUDA text passes untouched. Values are put in once and never read again, so a kernel that
holds `{{name}}` itself changes nothing.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from .errors import UsageError
from .records import digest

_PLACEHOLDER = re.compile(r"\{\{([a-z][a-z_]*)\}\}")


def root() -> Path:
    """The folder of the templates: the installed package's, otherwise the checkout's.

    Raises:
        UsageError: neither is there.
    """
    package = Path(__file__).parent
    found = next((p for p in (package / "_data" / "prompts", package.parent / "prompts") if p.is_dir()), None)
    if found is None:
        raise UsageError(f"the prompt templates are missing beside {package}: install evokernel-search again")
    return found


def names() -> tuple[str, ...]:
    """All templates, sorted."""
    return tuple(sorted(p.stem for p in root().glob("*.md") if p.stem != "README"))


def render(name: str, **values: str) -> str:
    """The template `name` with each `{{placeholder}}` replaced by its value, without blank lines at both ends.

    Raises:
        UsageError: no such template, a placeholder without a value, or a value without a placeholder.
    """
    text = _template(name)
    wanted = set(_PLACEHOLDER.findall(text))
    if wanted != values.keys():
        missing, unused = sorted(wanted - values.keys()), sorted(values.keys() - wanted)
        raise UsageError(f"prompts/{name}.md: no value for {', '.join(missing) or 'none'}, no placeholder for {', '.join(unused) or 'none'}")
    return _PLACEHOLDER.sub(lambda match: values[match[1]], text).strip("\n")


def rows(name: str) -> tuple[tuple[str, ...], ...]:
    """The cells of the one table in template `name`, row by row, without its head.

    Raises:
        UsageError: no such template.
    """
    lines = [line.strip() for line in _template(name).splitlines() if line.startswith("|")]
    return tuple(tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines[2:])


def prompt_hash() -> str:
    """Hash of all templates: prompts with the same one were worded alike."""
    return digest(*(part for name in names() for part in (name, _template(name))))


@cache
def _template(name: str) -> str:
    path = root() / f"{name}.md"
    if not path.is_file():
        raise UsageError(f"there is no prompt template {path}; the templates are {', '.join(names())}")
    return path.read_text("utf-8")
