"""ReLU with gradients that torch.compile makes less traffic of: the setting `batch_norm_relu`.

The gradient of torch.relu reads its output, to see where it is zero. Behind BatchNorm, whose gradient reads its input
anyway, the sign can be computed again from that input, and the output need not be read: twice for each layer, once for
BatchNorm's sums and once for the gradient of its input.

At the end of a block, the output must be read, because computing it again takes both summands. There the gradient has
three readers: both sums, the gradient of BatchNorm's input, and the shortcut. By default inductor computes it anew in
each of them, from the gradients of the next block's two branches and the output, and through the shortcut also from
those of the block after that. It reads less if the gradient is stored once. Inductor stores what a pooling reads, and
a pooling over single pixels changes no value. (It stores what as_strided views, too. But that writes strides into the
graph, and inductor may choose other ones.)

In the program for ResNet-50, both together read and write 58 GB outside of convolutions instead of 69
(reports/probes/batch_norm).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

READS = 6
"""Arrays that inductor may read to compute a value anew instead of storing it; its default is 4. The gradient behind
BatchNorm and ReLU is computed from two activations and four numbers for each channel."""


def compiler_options(settings: Mapping[str, bool]) -> dict[str, int]:
    """Options of torch.compile that belong to the setting."""
    return {"realize_reads_threshold": READS} if settings.get("batch_norm_relu", False) else {}


class ReLUByInput(nn.Module):
    """torch.relu, whose gradient reads the input instead of the output."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x <= 0, torch.zeros((), dtype=x.dtype, device=x.device), x)


class ReLUByOutput(torch.autograd.Function):
    """torch.relu of images, (batch, channels, height, width), whose gradient inductor stores."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        (y,) = ctx.saved_tensors
        dx = torch.where(y <= 0, torch.zeros((), dtype=dy.dtype, device=dy.device), dy)
        return functional.avg_pool2d(dx, 1)  # the same values: inductor stores what a pooling reads
