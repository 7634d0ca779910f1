"""The compiler flags a kernel file may ask for with `@flags`, by target."""

from __future__ import annotations

from .located import Span, suggest

# A flag without a value has none listed; a range is the integers it may take.
FLAGS: dict[str, dict[str, tuple[str, ...] | range | None]] = {
    "cuda": {
        "use_fast_math": None, "ftz": ("true", "false"), "fmad": ("true", "false"), "prec_div": ("true", "false"),
        "prec_sqrt": ("true", "false"), "extra_device_vectorization": None, "maxrregcount": range(16, 256),
    },
    "cpp": {"fast_math": None, "unroll_loops": None, "O2": None, "prefer_vector_width": ("128", "256", "512")},
}  # fmt: skip


def check_flag(flag: Span, target: str) -> None:
    """Raises: KernelFileError: not a flag of this target, or not a value it takes."""
    name, equals, value = flag.text.partition("=")
    if name not in FLAGS[target]:
        raise flag.error(f"unknown flag {name!r} for the {target} target; {suggest(name, FLAGS[target])}")
    allowed = FLAGS[target][name]
    if allowed is None and equals:
        raise flag.error(f"{name} takes no value")
    if isinstance(allowed, range) and not (value.isascii() and value.isdigit() and int(value[:9]) in allowed):
        raise flag.error(f"{name} takes an integer from {allowed.start} to {allowed.stop - 1}: {name}={allowed.start}")
    if isinstance(allowed, tuple) and value not in allowed:
        raise flag.error(f"{name} takes one of {', '.join(allowed)}: {name}={allowed[0]}")
