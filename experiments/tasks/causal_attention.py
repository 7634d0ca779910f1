"""Causal scaled dot-product attention, head size 64."""

import torch
from torch import nn
from torch.nn import functional


class Model(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def get_inputs():
    return [torch.randn(4, 16, 1024, 64), torch.randn(4, 16, 1024, 64), torch.randn(4, 16, 1024, 64)]


def get_init_inputs():
    return []
