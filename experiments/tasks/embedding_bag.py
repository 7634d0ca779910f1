"""Integer inputs: the masked mean of embedding rows (sentences of different lengths)."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, rows: int, features: int) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, features)

    def forward(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        picked = self.table(tokens)
        keep = torch.arange(tokens.shape[1], device=tokens.device)[None, :] < lengths[:, None]
        return (picked * keep[..., None]).sum(dim=1) / lengths[:, None]


def get_inputs():
    return [torch.randint(0, 20000, (1024, 32)), torch.randint(1, 33, (1024,), dtype=torch.int32)]


def get_init_inputs():
    return [20000, 256]
