"""A normalisation with weights, and a second output of another type."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x, alpha):
        y = self.norm(x) * alpha
        return y, y.argmax(dim=-1)


def get_inputs():
    return [torch.randn(48, 256), 0.5 + float(torch.rand(()))]


def get_init_inputs():
    return [256]
