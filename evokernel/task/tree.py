"""Nested arguments and results: walking them to named leaves, putting them together again, and plan names."""

from __future__ import annotations

import copy
import dataclasses
import json
import keyword
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ..records import ITEMSIZE_BYTES

# Words that mean something in a launch plan or in C++; a leaf with such a name gets a trailing "_".
_PLAN_WORDS = """
    device min max cdiv next_pow2 ilog2 int float bool half double occupancy out zero if and or not inf nan true false
    precision launch call tune const require scratch fill persist prepare
"""
_CPP_WORDS = """
    alignas alignof asm auto break case catch char class constexpr const_cast continue decltype default delete do dynamic_cast else
    enum explicit export extern for friend goto inline long mutable namespace new noexcept nullptr operator private protected public
    register reinterpret_cast return short signed sizeof static static_assert static_cast struct switch template this thread_local
    throw try typedef typeid typename union unsigned using virtual void volatile wchar_t while
"""
RESERVED = frozenset(_PLAN_WORDS.split()) | frozenset(_CPP_WORDS.split()) | frozenset(keyword.kwlist) | frozenset(ITEMSIZE_BYTES)


@dataclass(frozen=True)
class Leaf:
    """One value that is no container. `name` is not yet unique; `path` is a Python expression."""

    name: str
    path: str
    value: object


def _children(value: object) -> list[tuple[str, str, object]] | None:
    """(key, how to reach it, child) of a container in order; None for a leaf."""
    if isinstance(value, Mapping):
        return [(str(k), f"[{json.dumps(k) if isinstance(k, str) else repr(k)}]", v) for k, v in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f, f".{f}", v) for f, v in zip(value._fields, value, strict=True)]
    if isinstance(value, list | tuple):
        return [(str(i), f"[{i}]", v) for i, v in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f.name, f".{f.name}", getattr(value, f.name)) for f in dataclasses.fields(value)]
    return None


def leaves(value: object, name: str, path: str) -> Iterator[Leaf]:
    """All leaves below `value`, depth first, in the container's own order (None is a leaf)."""
    children = _children(value)
    if children is None:
        yield Leaf(name, path, value)
        return
    for key, access, child in children:
        yield from leaves(child, f"{name}_{key}", path + access)


def rebuild(value: object, new: Iterator[object]) -> object:
    """A container like `value` (types, keys and their order kept) around new leaves, taken in the order of `leaves`."""
    children = _children(value)
    if children is None:
        return next(new)
    built = [rebuild(child, new) for _, _, child in children]
    if isinstance(value, Mapping):
        twin: dict[object, object] = copy.copy(value)  # type: ignore[arg-type]
        for key, child in zip(list(value), built, strict=True):
            twin[key] = child
        return twin
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*built)  # type: ignore[arg-type]
    if isinstance(value, list | tuple):
        return type(value)(built)
    other = copy.copy(value)
    for (key, _, _), child in zip(children, built, strict=True):
        object.__setattr__(other, key, child)
    return other


def expression(value: object, write: Callable[[object], str]) -> str:
    """`value` as a Python expression; `write` gives the text of a leaf."""
    children = _children(value)
    if children is None:
        return write(value)
    parts = [expression(child, write) for _, _, child in children]
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{access[1:-1]}: {part}" for (_, access, _), part in zip(children, parts, strict=True)) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(parts) + "]"
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return "(" + ", ".join(parts) + ("," if len(parts) == 1 else "") + ")"
    named = (f"{key}={part}" for (key, _, _), part in zip(children, parts, strict=True))
    return f"{type(value).__name__}({', '.join(named)})"


class Names:
    """Hands out plan names: identifiers in Python and C++, none twice. `renamed` tells what had to give way."""

    def __init__(self, taken: frozenset[str] = RESERVED) -> None:
        self._taken = set(taken)
        self.renamed: list[str] = []

    def give(self, wanted: str, path: str) -> str:
        """A free name for `wanted` (dots and other signs become "_", a clash gets trailing "_")."""
        plain = re.sub(r"_{2,}", "_", re.sub(r"\W", "_", wanted, flags=re.ASCII)) or "_"
        if plain[0].isdigit():
            plain = f"_{plain}"
        name = plain
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        if name != plain:
            self.renamed.append(f"`{path}` is called `{name}` in launch plans, because `{plain}` is taken")
        return name

    def reserve(self, name: str) -> str:
        """Take exactly this name."""
        self._taken.add(name)
        return name
