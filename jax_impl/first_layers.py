"""ResNet's first layers in other operations: the settings `space_to_depth` and `gathered_pooling`.

Both compute what the framework's own layers compute. The sums are in another order; parameters keep their shapes.

`space_to_depth`: the first convolution has three input channels, for which tensor cores are too wide. Its stride is 2,
so it is a convolution with stride 1 over blocks of 2 x 2 pixels, whose pixels are the channels: this holds of the image
and of the kernel alike. Google's ResNet-50 of MLPerf Training v0.7 does the same on TPUs (SpaceToDepthConv in
github.com/mlcommons/training_results_v0.7).

`gathered_pooling`: windows of 3 x 3 with stride 2 overlap, so a pixel may be the largest of up to four. XLA's own
gradient scatters: each window adds to its pixel, by atomic operations on GPUs. Here, forward also notes which of its
nine pixels each window chose, the first of equal ones; backward adds up, for each pixel, the gradients of the windows
that chose it. With stride 2 these are the same windows for all pixels of a kind: even or odd row, even or odd column.
So backward is a few elementwise operations, which XLA makes one kernel of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

CHANNELS = 8  # tensor cores take channels of a 16-bit format in multiples of this


def conv_general_dilated(
    lhs: jax.Array, rhs: jax.Array, window_strides: Any, padding: Sequence[tuple[int, int]], **known: Any
) -> jax.Array:
    """jax.lax's function, as flax.linen.Conv calls it, for stride 2, an odd kernel and images of even height and width.

    lhs (N, H, W, C), rhs (k, k, C, outputs), padding k // 2 on all sides.
    """
    assert tuple(window_strides) == (2, 2) and known["lhs_dilation"] == known["rhs_dilation"] == (1, 1)
    around = rhs.shape[0] // 2
    assert tuple(padding) == ((around, around),) * 2
    # one more pixel in front, and one more row and column of the kernel, so that both are cut into whole blocks
    image = jnp.pad(lhs, ((0, 0), *[(around + 1, around - 1)] * 2, (0, 0)))
    kernel = jnp.pad(rhs, (*[(1, 0)] * 2, (0, 0), (0, 0)))
    kernel = in_blocks(kernel.transpose(3, 0, 1, 2)).transpose(1, 2, 3, 0)
    return jax.lax.conv_general_dilated(in_blocks(image), kernel, (1, 1), "VALID", **known)


def in_blocks(x: jax.Array) -> jax.Array:
    """(N, H, W, C) to (N, H / 2, W / 2, 4 C), and channels of zeros."""
    # strided slices: unlike a reshape of pixels to blocks, they are defined for arrays with explicit sharding
    blocks = jnp.concatenate([x[:, row::2, column::2] for row in (0, 1) for column in (0, 1)], axis=-1)
    return jnp.pad(blocks, ((0, 0), (0, 0), (0, 0), (0, -blocks.shape[-1] % CHANNELS)))


@jax.custom_vjp
def max_pool(x: jax.Array) -> jax.Array:
    """flax.linen.max_pool with windows of 3 x 3, stride 2 and padding 1: (N, H, W, C) to (N, H / 2, W / 2, C).

    Height and width must be even.
    """
    return largest_and_chosen(x)[0]


def largest_and_chosen(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The largest number of each window, and at which of the nine positions it is, by rows."""
    _, height, width, _ = x.shape
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-jnp.inf)
    seen = [padded[:, i : i + height : 2, j : j + width : 2] for i in range(3) for j in range(3)]
    largest, chosen = seen[0], jnp.zeros_like(seen[0], jnp.int8)
    for position, pixels in enumerate(seen[1:], 1):
        chosen = jnp.where(pixels > largest, jnp.int8(position), chosen)
        largest = jnp.maximum(pixels, largest)
    return largest, chosen


def gathered(chosen: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
    """The gradient of max_pool's input."""
    count, height, width, channels = dy.shape
    # what each window sends to its pixel in row i and column j
    sent = [[jnp.where(chosen == 3 * i + j, dy, jnp.zeros_like(dy)) for j in range(3)] for i in range(3)]

    def of_next(windows: jax.Array, axis: int) -> jax.Array:
        widths = [(0, 1) if each == axis else (0, 0) for each in range(4)]
        return jnp.pad(jax.lax.slice_in_dim(windows, 1, None, axis=axis), widths)

    # An even row is the middle of a window. An odd one is the last of a window, and the first of the next.
    odd = [last + of_next(first, 1) for first, last in zip(sent[0], sent[2], strict=True)]
    rows = [jnp.stack([middle, last + of_next(first, 2)], 3) for first, middle, last in (sent[1], odd)]
    # JAX does not derive the sharding of what a reshape merges; here all axes keep theirs
    sharding = jax.typeof(dy).sharding
    shape = (count, 2 * height, 2 * width, channels)
    return (jax.lax.reshape(jnp.stack(rows, 2), shape, out_sharding=sharding if any(sharding.spec) else None),)


max_pool.defvjp(largest_and_chosen, gathered)
