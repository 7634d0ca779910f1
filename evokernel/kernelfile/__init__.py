"""The kernel file: device code and a launch plan that is data, in one text file.

    kernel = make_kernel(text, "cpp")              # identity
    parsed = parse(kernel)                         # directives and expressions, located errors
    plan = resolve(parsed, signature, device)      # sizes, launches, arguments for one task, device and configuration

See docs/kernel-file.md for the format.
"""

from .identity import make_kernel, normalise
from .parse import KernelFile, KernelFileError, parse
from .plan import resolve
from .tunables import space, with_defaults

__all__ = ["KernelFile", "KernelFileError", "make_kernel", "normalise", "parse", "resolve", "space", "with_defaults"]
