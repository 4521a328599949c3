"""Two linear layers, with or without ReLU between."""

from __future__ import annotations

from typing import Any

import jax
from flax import linen as nn
from jax.typing import DTypeLike


class Model(nn.Module):
    """(batch, inputs) to (batch, outputs)."""

    inputs: int
    hidden: int
    outputs: int
    relu: int
    dtype: DTypeLike
    param_dtype: DTypeLike

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kinds: Any = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        x = nn.Dense(self.hidden, name="net1", **kinds)(x)
        if self.relu:
            x = nn.relu(x)
        return nn.Dense(self.outputs, name="net2", **kinds)(x).astype(self.param_dtype)
