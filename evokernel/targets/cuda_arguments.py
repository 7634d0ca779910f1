"""The parameters of a compiled kernel, from its mangled name, and whether a launch's arguments fit them."""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from ..kernelfile.steps import Arg, Launch
from ..records import ITEMSIZE_BYTES

_INTEGERS = {
    "char": "b", "signed char": "b", "unsigned char": "B", "short": "h", "unsigned short": "H", "int": "i", "unsigned int": "I",
    "long": "q", "unsigned long": "Q", "long long": "q", "unsigned long long": "Q",
}  # fmt: skip
_NUMBERS = {"bool": "?", **_INTEGERS, "float": "f", "double": "d"}
_VECTORS = {t: [f"{t.replace('unsigned ', 'u').replace(' ', '')}{n}" for n in (1, 2, 3, 4)] for t in (*_INTEGERS, "float", "double")}
_VECTORS |= {"__half": ["__half2"], "__nv_bfloat16": ["__nv_bfloat162"]}
_ELEMENTS = {  # a dtype's own types, then raw types of its width
    "float64": ("double", "long long", "unsigned long long", "long", "unsigned long"), "float32": ("float", "int", "unsigned int"),
    "float16": ("__half", "unsigned short", "short"), "bfloat16": ("__nv_bfloat16", "unsigned short", "short"),
    "int64": ("long long", "long", "unsigned long long", "unsigned long"), "int32": ("int", "unsigned int"), "int16": ("short", "unsigned short"),
    "int8": ("signed char", "char", "unsigned char"), "uint8": ("unsigned char", "char", "signed char"), "bool": ("bool", "unsigned char", "char"),
}  # fmt: skip
_WIDE = ("int2", "int4", "uint2", "uint4", "unsigned int", "float4")  # what 16-bit and smaller elements are loaded through
_WRITTEN = {"__half": "half", "__nv_bfloat16": "__nv_bfloat16"}


@dataclass(frozen=True)
class Parameter:
    """One parameter: the C++ type as written in messages; `element` and `const` for a pointer, `code` (see `struct`) for a number."""

    text: str
    element: str = ""
    const: bool = False
    code: str = ""


@cache
def _demangler() -> ctypes.CDLL:
    library = ctypes.CDLL("libstdc++.so.6")
    library.__cxa_demangle.restype = ctypes.c_void_p
    library.__cxa_demangle.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    library.free.argtypes = [ctypes.c_void_p]
    return library


def demangled(symbol: str) -> str:
    """The C++ name of a mangled one; other names as they are."""
    if not symbol.startswith("_Z"):
        return symbol
    pointer = _demangler().__cxa_demangle(symbol.encode(), None, None, None)
    if not pointer:
        return symbol
    text = ctypes.string_at(pointer).decode("utf-8", "replace")
    _demangler().free(pointer)
    return text


def parameters(symbol: str) -> tuple[Parameter, ...] | None:
    """The parameters of a kernel; None when the name is not a mangled one and tells nothing."""
    name = demangled(symbol)
    if name == symbol or not name.endswith(")"):
        return None
    depth, pieces, end = 0, [], len(name) - 1
    for at in range(len(name) - 1, -1, -1):
        depth += (name[at] in ")>]") - (name[at] in "(<[")
        if (depth == 1 and name[at] == ",") or depth == 0:
            pieces.append(name[at + 1 : end].strip())
            end = at
        if depth == 0:
            break
    return tuple(_parameter(p) for p in reversed(pieces) if p not in ("", "void"))


def _parameter(text: str) -> Parameter:
    if match := re.fullmatch(r"(.+?)( const)?( volatile)?\*", text):
        return Parameter(f"{'const ' if match[2] else ''}{_WRITTEN.get(match[1], match[1])}*", match[1], bool(match[2]))
    return Parameter(_WRITTEN.get(text, text), code=_NUMBERS.get(text, ""))


def misfit(launch: Launch, wanted: tuple[Parameter, ...], dtypes: Mapping[str, str]) -> str | None:
    """What is wrong with a launch's arguments, None when they fit."""
    name = launch.function.split("<")[0]
    if len(launch.args) != len(wanted):
        listed = ", ".join(p.text for p in wanted)
        return f"{name} takes {len(wanted)} arguments ({listed}), and {len(launch.args)} are passed"
    for number, (arg, parameter) in enumerate(zip(launch.args, wanted, strict=True), start=1):
        problem = _tensor_misfit(arg, parameter, dtypes) if arg.tensor is not None else _number_misfit(arg, parameter)
        if problem:
            return f"argument {number} of {name}: {problem}"
    return None


def _tensor_misfit(arg: Arg, parameter: Parameter, dtypes: Mapping[str, str]) -> str | None:
    assert arg.tensor is not None
    dtype = dtypes[arg.tensor]
    own = _ELEMENTS[dtype]
    written = f"{'' if arg.writes else 'const '}{_WRITTEN.get(own[0], own[0])}*"
    if not parameter.element:
        return f"{arg.tensor} is a tensor ({dtype}) and the parameter is {parameter.text}; a tensor is passed to {written}"
    wide = _WIDE if ITEMSIZE_BYTES[dtype] <= 2 else ()
    fits = {"void", *own, *(v for o in own for v in _VECTORS.get(o, ())), *wide}
    if re.sub(r"_(?:16|32)a$", "", parameter.element) not in fits:
        return f"{arg.tensor} is {dtype} and the parameter is {parameter.text}; declare it {written} (or a vector type of it)"
    if not arg.writes and not parameter.const:
        return f"{arg.tensor} may only be read here, and the parameter is {parameter.text}; declare it const: const {parameter.text}"
    return None


def _number_misfit(arg: Arg, parameter: Parameter) -> str | None:
    value = arg.value
    if not parameter.code:
        return f"{value!r} is a number and the parameter is {parameter.text}; numbers are passed to integer types, bool, float or double"
    if isinstance(value, float) and parameter.code not in "fd":
        return f"{value!r} is a float and the parameter is {parameter.text}; floats are passed to float or double"
    if parameter.code == "?" and value not in (0, 1):
        return f"{value!r} is passed to a bool; pass True or False, or declare an integer"
    try:
        struct.pack(parameter.code, value)
    except (struct.error, OverflowError):
        return f"{value!r} does not fit in {parameter.text}; declare a wider type such as long long or double"
    return None
