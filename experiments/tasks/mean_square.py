"""A reduction over a middle dimension: the mean square of every channel."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.pow(2).mean(dim=1)


def get_inputs():
    return [torch.randn(32, 256, 1024)]


def get_init_inputs():
    return []
