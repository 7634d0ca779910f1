"""The judge: when a kernel counts as correct, and how fast it is. See docs/judge.md.

`evokernel.judge` is this package and, as the public API promises, also the function of api.py: Python puts a subpackage under its name on
its parent as soon as anything in it is imported, so the package itself is made callable instead of fighting over the name.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """evokernel.api.judge(kernel, task, session=None): the verdict of one kernel file on one task file."""
        return import_module("evokernel.api").judge(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
