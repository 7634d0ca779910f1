"""evokernel: give it a PyTorch module, get back a faster kernel that is proven correct.

    import evokernel
    result = evokernel.evolve("task.py", candidates=20)
    verdict = evokernel.judge("kernel.cpp", "task.py")

Importing this loads neither torch nor a model provider; the names below are fetched on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import judge
    from .api import evolve
    from .archive.store import Archive
    from .task import load_task

__version__ = "0.1.0"
__all__ = ["Archive", "evolve", "judge", "load_task"]

_HOME = {"evolve": ".api", "Archive": ".archive.store", "load_task": ".task"}


def __getattr__(name: str) -> Any:
    if name == "judge":
        return import_module(".judge", __name__)  # callable, see there
    if name not in _HOME:
        raise AttributeError(f"module 'evokernel' has no attribute {name!r}")
    return getattr(import_module(_HOME[name], __name__), name)
