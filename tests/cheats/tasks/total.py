"""One number, whose size differs from draw to draw by orders of magnitude."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.exp(x.sum() / 4)


def get_inputs():
    return [torch.randn(16, 32)]
