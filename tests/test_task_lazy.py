"""Modules whose parameters have no shape before their first call."""

from pathlib import Path

import pytest

from evokernel.errors import TaskError
from evokernel.task import load_task

LAZY = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.LazyLinear(4)

    def forward(self, x):
        return self.l(x)

def get_inputs():
    return [torch.randn(3, 5)]
"""


def test_a_lazy_module_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "lazy.py"
    file.write_text(LAZY)
    with pytest.raises(TaskError, match=r"l\.weight.*lazy"):
        load_task(file)
