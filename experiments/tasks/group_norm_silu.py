"""Group normalisation of images, then SiLU."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, groups: int, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.silu(self.norm(x))


def get_inputs():
    return [torch.randn(8, 128, 64, 64)]


def get_init_inputs():
    return [16, 128]
