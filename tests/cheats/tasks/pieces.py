"""Three outputs, one a whole reduction, from a strided input."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, idx):
        picked = x.index_select(0, idx)
        return picked, x.sum(), (x > 0)


def get_inputs():
    return [torch.randn(64, 96).t(), torch.randint(0, 96, (17,))]


def get_init_inputs():
    return []
