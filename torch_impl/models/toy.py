"""Two linear layers, with or without a ReLU in between."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn


def build(*, inputs: int, hidden: int, outputs: int, relu: int) -> nn.Sequential:
    """(batch, inputs) to (batch, outputs)."""
    blocks: OrderedDict[str, nn.Module] = OrderedDict(net1=nn.Linear(inputs, hidden))
    if relu:
        blocks["relu"] = nn.ReLU()
    blocks["net2"] = nn.Linear(hidden, outputs)
    return nn.Sequential(blocks)
