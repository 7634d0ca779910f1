"""Three shapes, weights, integer inputs, two outputs of different types (one of them counts), and a counter that forward updates."""

import torch
from torch import nn

EVOKERNEL = {"shapes": [{"rows": 1}, {"rows": 37}]}


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(features))
        self.register_buffer("rows_seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x, idx):
        self.rows_seen += x.shape[0]
        y = torch.relu(x * self.weight)
        return y.sum(dim=-1)[idx], (x > 0).sum(dim=-1)


def get_inputs(rows=48):
    return [torch.randn(rows, 64), torch.randint(0, rows, (17,))]


def get_init_inputs():
    return [64]
