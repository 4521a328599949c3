"""python jax_batch_norm.py: how much of a bfloat16 gradient BatchNorm leaves in the mean over the batch, which is zero.

Prints one line for Flax's layer and one for ours: the largest mean of a channel, relative to the mean size.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from jax_impl.batch_norm import BatchNorm

SHAPE = (4096, 8)


def left(kind: type[nn.BatchNorm], dtype: str) -> float:
    layer = kind(use_running_average=False, dtype=jnp.dtype(dtype), param_dtype=jnp.float32)
    x, dy = (jax.random.normal(jax.random.key(seed), SHAPE) for seed in (0, 1))
    x, dy = x.astype(dtype), (1 + 0.2 * dy).astype(dtype)
    variables = layer.init(jax.random.key(2), x)

    def total(x: jax.Array) -> jax.Array:
        y, _ = layer.apply(variables, x, mutable=["batch_stats"])
        assert y.dtype == dtype
        return (y * dy).astype("float32").sum()

    dx = np.asarray(jax.jit(jax.grad(total))(x), np.float64)
    return float(np.abs(dx.mean(0)).max() / np.abs(dx).mean())


for kind in (nn.BatchNorm, BatchNorm):
    print(json.dumps({"module": kind.__module__, **{dtype: left(kind, dtype) for dtype in ("bfloat16", "float32")}}))
