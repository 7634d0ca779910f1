"""16-bit inputs and outputs: a gate in bfloat16."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, gate):
        return torch.nn.functional.silu(gate) * x


def get_inputs():
    return [torch.randn(24, 130).bfloat16(), torch.randn(24, 130).bfloat16()]


def get_init_inputs():
    return []
