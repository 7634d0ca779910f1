"""Softmax over very long rows: fewer rows than a GPU has multiprocessors (the row length of KernelBench level 1, problem 23)."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=-1)


def get_inputs():
    return [torch.randn(32, 393216)]


def get_init_inputs():
    return []
