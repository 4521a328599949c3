"""Linear 5-10-2 with ReLU."""

from __future__ import annotations

from typing import Any

import jax
from flax import linen as nn
from jax.typing import DTypeLike


class Model(nn.Module):
    """(batch, inputs) to logits (batch, outputs)."""

    inputs: int
    hidden: int
    outputs: int
    dtype: DTypeLike
    param_dtype: DTypeLike

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kinds: Any = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        x = nn.relu(nn.Dense(self.hidden, name="fc", **kinds)(x))
        return nn.Dense(self.outputs, name="out", **kinds)(x).astype(self.param_dtype)
