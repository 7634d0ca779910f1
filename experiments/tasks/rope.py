"""Rotary position embedding of queries: halves of each head turned by an angle that depends on the position."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        first, second = q.chunk(2, dim=-1)
        return q * cos + torch.cat((-second, first), dim=-1) * sin


def get_inputs():
    angle = torch.rand(1024, 128) * 6.28
    return [torch.randn(4, 16, 1024, 128), angle.cos(), angle.sin()]


def get_init_inputs():
    return []
