"""Records to plain JSON values and back, so that processes and the database exchange no pickles.

Dataclasses become objects; where a field may hold one of several dataclasses, the object carries its class name under "is".
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union

T = TypeVar("T")
Json = Any  # a value json.dumps takes


def encode(value: object) -> Json:
    """A record (or a tuple, list, dict or plain value holding records) as JSON values. NaN and Inf stay floats."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        out = {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"is": type(value).__name__, **out}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (list, tuple)):
        return [encode(v) for v in value]
    if isinstance(value, dict):
        return {str(k): encode(v) for k, v in value.items()}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def decode(kind: type[T], value: Json) -> T:
    """The record of type `kind` that `encode` wrote.

    Raises:
        ValueError: a field is missing, unknown, or not of its type.
    """
    return typing.cast(T, _decode(kind, value))


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _decode(kind: Any, value: Json) -> Any:
    if kind in (str, int, float, bool):  # most values by far
        return _plain(kind, value)
    origin = typing.get_origin(kind)
    if origin in (Union, types.UnionType):
        return _decode_union(typing.get_args(kind), value)
    if origin in (tuple, list, dict):
        value = _plain(dict if origin is dict else list, value)
    if origin is tuple:
        args = typing.get_args(kind)
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_decode(args[0], v) for v in value)
        return tuple(_decode(a, v) for a, v in zip(args, value, strict=True))
    if origin is list:
        return [_decode(typing.get_args(kind)[0], v) for v in value]
    if origin is dict:
        return {k: _decode(typing.get_args(kind)[1], v) for k, v in value.items()}
    if dataclasses.is_dataclass(kind):
        return _decode_record(typing.cast(type, kind), value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    return _plain(kind, value)


def _plain(kind: Any, value: Json) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"expected {kind.__name__}, got {value!r:.80}")
    if kind is int and not -(1 << 63) <= value < 1 << 63:
        raise ValueError("an integer does not fit in 64 bits")  # no column would take it
    return value


def _decode_union(kinds: tuple[Any, ...], value: Json) -> Any:
    if isinstance(value, dict) and "is" in value:
        for kind in kinds:
            if getattr(kind, "__name__", "") == value["is"]:
                return _decode(kind, value)
    exact = [k for k in kinds if isinstance(k, type) and type(value) is k]
    for kind in exact or kinds:
        try:
            return _decode(kind, value)
        except (ValueError, TypeError, AttributeError):
            continue
    raise ValueError(f"{value!r:.80} is none of {', '.join(getattr(k, '__name__', str(k)) for k in kinds)}")


def _decode_record(kind: type, value: Json) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"expected a {kind.__name__}, got {value!r:.80}")
    hints = _hints(kind)
    given = {k: v for k, v in value.items() if k != "is"}
    if unknown := sorted(set(given) - set(hints)):
        raise ValueError(f"{kind.__name__} has no field {unknown[0]!r}")
    made = {}
    for name, given_value in given.items():
        try:
            made[name] = _decode(hints[name], given_value)
        except (ValueError, OverflowError) as error:
            raise ValueError(f"{name}: {error}") from error
    try:
        return kind(**made)
    except TypeError:
        lacking = [f.name for f in dataclasses.fields(kind) if f.name not in made and f.default is f.default_factory is dataclasses.MISSING]
        raise ValueError(f"{kind.__name__} lacks the field {', '.join(lacking)}") from None


def dumps(value: object) -> str:
    """One line of JSON for `value`; keys keep their order."""
    return json.dumps(encode(value), ensure_ascii=False, separators=(",", ":"))


def loads(kind: type[T], text: str) -> T:
    """The record that `dumps` wrote.

    Raises:
        ValueError: not JSON, or not such a record.
    """
    try:
        return decode(kind, json.loads(text))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not a {kind.__name__}: {error}") from error


def finite(value: Json) -> Json:
    """The same JSON value with null in place of NaN and Inf, for output that other programs read."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, list):
        return [finite(v) for v in value]
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    return value
