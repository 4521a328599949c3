"""ResNet's first layers in other operations: the settings `space_to_depth` and `gathered_pooling`.

Both compute what the framework's own layers compute. The sums are in another order; parameters keep their shapes.

`space_to_depth`: the first convolution has three input channels, for which tensor cores are too wide. Its stride is 2,
so it is a convolution with stride 1 over blocks of 2 x 2 pixels, whose pixels are the channels: F.pixel_unshuffle makes
them that, of the image and of the kernel alike. Google's ResNet-50 of MLPerf Training v0.7 does the same on TPUs
(SpaceToDepthConv in github.com/mlcommons/training_results_v0.7).

`gathered_pooling`: windows of 3 x 3 with stride 2 overlap, so a pixel may be the largest of up to four. Inductor's own
gradient computes for each pixel which windows these are. Here, forward also notes which of its nine pixels each window
chose, the first of equal ones; backward adds up, for each pixel, the gradients of the windows that chose it. With
stride 2 these are the same windows for all pixels of a kind: even or odd row, even or odd column. So backward is a few
elementwise operations, which torch.compile makes one kernel of.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

CHANNELS = 8  # tensor cores take channels of a 16-bit format in multiples of this


class Conv2d(nn.Conv2d):
    """nn.Conv2d with an odd kernel, stride 2 and padding kernel // 2, for images of even height and width."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        around = self.kernel_size[0] // 2
        # one more pixel in front, and one more row and column of the kernel, so that both are cut into whole blocks
        image = in_blocks(functional.pad(input, (around + 1, around - 1) * 2))
        kernel = in_blocks(functional.pad(self.weight, (1, 0) * 2))
        if self.weight.is_contiguous(memory_format=torch.channels_last):
            image, kernel = (each.contiguous(memory_format=torch.channels_last) for each in (image, kernel))
        return functional.conv2d(image, kernel, self.bias)


def in_blocks(x: torch.Tensor) -> torch.Tensor:
    """(N, C, H, W) to (N, 4 C, H / 2, W / 2), and channels of zeros."""
    blocks = functional.pixel_unshuffle(x, 2)
    return functional.pad(blocks, (0, 0, 0, 0, 0, -blocks.shape[1] % CHANNELS))


class MaxPool2d(nn.MaxPool2d):
    """nn.MaxPool2d(3, stride=2, padding=1), for images of even height and width."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return GatheredPooling.apply(input)


class GatheredPooling(torch.autograd.Function):
    """(N, C, H, W) to (N, C, H / 2, W / 2)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        height, width = x.shape[2:]
        padded = functional.pad(x, (1, 1, 1, 1), value=-torch.inf)
        seen = [padded[:, :, i : i + height : 2, j : j + width : 2] for i in range(3) for j in range(3)]
        largest, chosen = seen[0], torch.zeros_like(seen[0], dtype=torch.int8)
        for position, pixels in enumerate(seen[1:], 1):
            chosen = torch.where(pixels > largest, position, chosen).to(torch.int8)
            largest = torch.maximum(pixels, largest)
        ctx.save_for_backward(chosen)
        return largest

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        (chosen,) = ctx.saved_tensors
        count, channels, height, width = dy.shape
        # what each window sends to its pixel in row i and column j
        sent = [[torch.where(chosen == 3 * i + j, dy, 0) for j in range(3)] for i in range(3)]
        # An even row is the middle of a window. An odd one is the last of a window, and the first of the next.
        of_next_row = [functional.pad(first[:, :, 1:], (0, 0, 0, 1)) for first in sent[0]]
        odd = [last + first for first, last in zip(of_next_row, sent[2], strict=True)]
        pairs = [(middle, last + functional.pad(first[:, :, :, 1:], (0, 1))) for first, middle, last in (sent[1], odd)]
        rows = [torch.stack(pair, -1) for pair in pairs]
        return torch.stack(rows, 3).reshape(count, channels, 2 * height, 2 * width)
