"""A product with weights that are prepared in each call, scored warm."""

import torch
from torch import nn

EVOKERNEL = {"score": "warm"}


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(features, features))

    def forward(self, x):
        return x @ torch.softmax(self.weight, dim=-1)


def get_inputs():
    return [torch.randn(4, 256)]


def get_init_inputs():
    return [256]
