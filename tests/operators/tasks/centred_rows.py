"""Rows without their mean, times a weight: the task of the full example in the prompts."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(features) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean(-1, keepdim=True)) * self.weight


def get_inputs():
    return [torch.randn(512, 1024)]


def get_init_inputs():
    return [1024]
