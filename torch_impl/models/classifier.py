"""Linear 5-10-2 with ReLU."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn


def build(*, inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """(batch, inputs) to logits (batch, outputs)."""
    return nn.Sequential(
        OrderedDict(
            fc=nn.Linear(inputs, hidden),
            relu=nn.ReLU(),
            out=nn.Linear(hidden, outputs),
        )
    )
