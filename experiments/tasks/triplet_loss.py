"""Triplet margin loss with Euclidean distances: three inputs, one number."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, margin: float) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, anchor: torch.Tensor, positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
        return nn.functional.triplet_margin_loss(anchor, positive, negative, margin=self.margin)


def get_inputs():
    return [torch.randn(4096, 1024), torch.randn(4096, 1024), torch.randn(4096, 1024)]


def get_init_inputs():
    return [1.0]
