"""Makes tensors without saying on which device."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x + torch.sin(torch.arange(x.shape[1]) * 0.01)


def get_inputs():
    return [torch.randn(256, 1024)]
