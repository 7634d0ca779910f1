"""The kernel file: device code and a launch plan that is data, in one text file.

    kernel = make_kernel(text, "cpp")              # identity
    parsed = parse(kernel)                         # directives and expressions, located errors
    plan = resolve(parsed, signature, device)      # sizes, launches, arguments for one task, device and configuration

See docs/kernel-file.md for the format.
"""

from .gpus import shipped_gpu, shipped_gpus
from .identity import make_kernel, normalise
from .parse import KernelFile, KernelFileError, parse
from .plan import resolve
from .renaming import rename
from .tunables import space, with_defaults

__all__ = [
    "KernelFile", "KernelFileError", "make_kernel", "normalise", "parse", "rename", "resolve", "shipped_gpu", "shipped_gpus", "space",
    "with_defaults",
]  # fmt: skip
