"""Flax's BatchNorm, whose gradient is rounded to bfloat16 once.

In bf16, flax.linen.BatchNorm converts its input to float32 twice: where it computes the statistics, and where it
normalizes. So backward rounds two gradients to bfloat16, and adds them up in bfloat16. The second one is the small
correction that makes the sum of all gradients zero, and most of it is lost in that addition. What is left adds up over
the batch: with 256 images, the gradient of ResNet's first bias is 3.7 times as large as in float32. Here the input is
float32 from the start, and it is 0.8 times as large (reports/probes/batch_norm). torch.nn.BatchNorm2d and Keras'
BatchNormalization round once as well.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn


class BatchNorm(nn.BatchNorm):
    """flax.linen.BatchNorm with an input in float32, or float64, whatever that of `x` is."""

    def __call__(self, x: jax.Array, *args: Any, **known: Any) -> jax.Array:
        return super().__call__(x.astype(jnp.promote_types(x.dtype, jnp.float32)), *args, **known)
