"""A depthwise 3 by 3 convolution with bias, then hard swish, as in mobile networks."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.hardswish(self.conv(x))


def get_inputs():
    return [torch.randn(16, 96, 56, 56)]


def get_init_inputs():
    return [96]
