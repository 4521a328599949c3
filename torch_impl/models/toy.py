"""Two linear layers, with or without a ReLU in between, and with or without a layer that forward leaves out."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn


class Unused(nn.Linear):
    """A layer that forward leaves out. No output depends on its parameters, so backward gives them no gradient: their
    `.grad` is None, and optimizers pass over them."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return input


def build(*, inputs: int, hidden: int, outputs: int, relu: int, unused: int = 0) -> nn.Sequential:
    """(batch, inputs) to (batch, outputs)."""
    blocks: OrderedDict[str, nn.Module] = OrderedDict(net1=nn.Linear(inputs, hidden))
    if relu:
        blocks["relu"] = nn.ReLU()
    if unused:
        blocks["unused"] = Unused(hidden, hidden)
    blocks["net2"] = nn.Linear(hidden, outputs)
    return nn.Sequential(blocks)
