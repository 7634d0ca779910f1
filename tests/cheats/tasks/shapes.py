"""A norm of rows, judged at three shapes; one has a single row, one has odd sizes."""

import torch
from torch import nn

EVOKERNEL = {"shapes": [{"rows": 1, "cols": 64}, {"rows": 5, "cols": 33}]}


class Model(nn.Module):
    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-5)


def get_inputs(rows=24, cols=96):
    return [torch.randn(rows, cols)]


def get_init_inputs():
    return []
