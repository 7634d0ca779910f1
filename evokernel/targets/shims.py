"""The functions that call a kernel's launches: plain C symbols, so that the loader finds them, around typed C++ calls that the compiler checks.

A shim takes one array of 8-byte slots: tensor addresses first, then numbers, each in argument order. Its name tells how to fill them:
`evokernel_<index>_<tensors>_<kinds>`, with one letter a number: i (int64_t), d (double), b (bool).
"""

from __future__ import annotations

from collections.abc import Mapping

from ..kernelfile.steps import Arg, Launch, Plan
from .compiler import KERNEL, PLAN

CTYPES = {
    "float64": "double", "float32": "float", "float16": "_Float16", "bfloat16": "uint16_t", "int64": "int64_t", "int32": "int32_t",
    "int16": "int16_t", "int8": "int8_t", "uint8": "uint8_t", "bool": "bool",
}  # fmt: skip


def shim_names(plan: Plan) -> tuple[str, ...]:
    """The symbol of each launch, in the order of `Plan.launches`."""
    return tuple(_name(index, launch) for index, launch in enumerate(plan.launches))


def translation_unit(plan: Plan, dtypes: Mapping[str, str]) -> str:
    """What the compiler gets: the code under the name KERNEL, then one shim a launch under the name PLAN at its plan line's number."""
    shims = [f'#line {launch.line} "{PLAN}"\n{_shim(name, launch, dtypes)}' for name, launch in zip(shim_names(plan), plan.launches, strict=True)]
    return "\n".join([f'#line 1 "{KERNEL}"', plan.code, "", *shims, ""])


def _kind(arg: Arg) -> str:
    return "b" if isinstance(arg.value, bool) else "d" if isinstance(arg.value, float) else "i"


def _name(index: int, launch: Launch) -> str:
    tensors = sum(a.tensor is not None for a in launch.args)
    return f"evokernel_{index}_{tensors}_{''.join(_kind(a) for a in launch.args if a.tensor is None)}"


def _shim(name: str, launch: Launch, dtypes: Mapping[str, str]) -> str:
    tensor, number = 0, sum(a.tensor is not None for a in launch.args)
    arguments: list[str] = []
    for arg in launch.args:
        if arg.tensor is not None:
            const = "" if arg.writes else "const "
            arguments.append(f"static_cast<{const}{CTYPES[dtypes[arg.tensor]]}*>(slots[{tensor}])")
            tensor += 1
        else:
            arguments.append(_NUMBER[_kind(arg)].format(slot=f"slots[{number}]"))
            number += 1
    return f'extern "C" __attribute__((visibility("default"))) void {name}(void* const* slots) {{ {launch.function}({", ".join(arguments)}); }}'


_NUMBER = {
    "i": "__builtin_bit_cast(int64_t, {slot})",
    "b": "static_cast<bool>(__builtin_bit_cast(int64_t, {slot}))",
    "d": "evokernel::floating_number{{__builtin_bit_cast(double, {slot})}}",
}
