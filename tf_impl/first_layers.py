"""ResNet's first layers in other operations: the settings `space_to_depth` and `gathered_pooling`.

Both compute what the framework's own layers compute. The sums are in another order; parameters keep their shapes.

`space_to_depth`: the first convolution has three input channels, for which tensor cores are too wide. Its stride is 2,
so it is a convolution with stride 1 over blocks of 2 x 2 pixels, whose pixels are the channels: tf.nn.space_to_depth
makes them that, of the image and of the kernel alike. Google's ResNet-50 of MLPerf Training v0.7 does the same on TPUs
(SpaceToDepthConv in github.com/mlcommons/training_results_v0.7).

`gathered_pooling`: windows of 3 x 3 with stride 2 overlap, so a pixel may be the largest of up to four. XLA's own
gradient scatters: each window adds to its pixel, by atomic operations on GPUs. Here, forward also notes which of its
nine pixels each window chose, the first of equal ones; backward adds up, for each pixel, the gradients of the windows
that chose it. With stride 2 these are the same windows for all pixels of a kind: even or odd row, even or odd column.
So backward is a few elementwise operations, which XLA makes one kernel of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras import layers

CHANNELS = 8  # tensor cores take channels of a 16-bit format in multiples of this


def conv(x: Any, name: str, channels: int, kernel: int) -> Any:
    """A convolution with an odd kernel, stride 2 and padding kernel // 2, for images of even height and width."""
    around = kernel // 2
    # one more pixel in front, and one more row and column of the kernel, so that both are cut into whole blocks
    x = layers.ZeroPadding2D(((around + 1, around - 1),) * 2)(x)
    return OverBlocks(channels, kernel, 2, "valid", use_bias=False, name=name)(x)


class OverBlocks(layers.Conv2D):
    """Keras' layer with stride 2, whose kernel begins one pixel after the beginning of its window."""

    def convolution_op(self, inputs: Any, kernel: Any) -> Any:
        kernel = tf.pad(kernel, ((1, 0), (1, 0), (0, 0), (0, 0)))
        kernel = tf.transpose(in_blocks(tf.transpose(kernel, (3, 0, 1, 2))), (1, 2, 3, 0))
        return tf.nn.conv2d(in_blocks(inputs), kernel, strides=1, padding="VALID")


def in_blocks(x: tf.Tensor) -> tf.Tensor:
    """(N, H, W, C) to (N, H / 2, W / 2, 4 C), and channels of zeros."""
    blocks = tf.nn.space_to_depth(x, 2)
    return tf.pad(blocks, ((0, 0), (0, 0), (0, 0), (0, -blocks.shape[-1] % CHANNELS)))


class MaxPool2D(layers.MaxPool2D):
    """Keras' layer with windows of 3 x 3, stride 2 and padding "same", for images of even height and width.

    The padding is one pixel on each side; Keras would pad at the end only.
    """

    def call(self, inputs: Any) -> Any:
        return max_pool(inputs)


@tf.custom_gradient
def max_pool(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    """(N, H, W, C) to (N, H / 2, W / 2, C), and the function that computes the gradient of x."""
    shape: Any = x.shape
    height, width = shape[1:3]
    padded = tf.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=x.dtype.min)
    seen = [padded[:, i : i + height : 2, j : j + width : 2] for i in range(3) for j in range(3)]
    largest, chosen = seen[0], tf.zeros_like(seen[0], tf.int8)
    for position, pixels in enumerate(seen[1:], 1):
        chosen = tf.where(pixels > largest, tf.constant(position, tf.int8), chosen)
        largest = tf.maximum(pixels, largest)

    def gathered(dy: tf.Tensor) -> tf.Tensor:
        # what each window sends to its pixel in row i and column j
        sent = [[tf.where(chosen == 3 * i + j, dy, tf.zeros_like(dy)) for j in range(3)] for i in range(3)]
        # An even row is the middle of a window. An odd one is the last of a window, and the first of the next.
        odd = [last + of_next(first, 1) for first, last in zip(sent[0], sent[2], strict=True)]
        rows = [tf.stack([middle, last + of_next(first, 2)], 3) for first, middle, last in (sent[1], odd)]
        return tf.reshape(tf.stack(rows, 2), tf.shape(x))

    return largest, gathered


def of_next(windows: tf.Tensor, axis: int) -> tf.Tensor:
    """For each window, what the next one along the axis has; zeros for the last."""
    start = [1 if each == axis else 0 for each in range(4)]
    return tf.pad(tf.slice(windows, start, [-1] * 4), [(0, 1) if each == axis else (0, 0) for each in range(4)])
