"""The convolutional network of the MNIST examples."""

from __future__ import annotations

from typing import Any

import jax
from flax import linen as nn
from jax.typing import DTypeLike


class Model(nn.Module):
    """(batch, 28, 28, 1) to log-probabilities (batch, classes)."""

    channels1: int
    channels2: int
    hidden: int
    classes: int
    dtype: DTypeLike
    param_dtype: DTypeLike

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kinds: Any = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        x = nn.relu(nn.Conv(self.channels1, (5, 5), padding="VALID", name="conv1", **kinds)(x))
        x = nn.max_pool(x, (2, 2), (2, 2))
        x = nn.relu(nn.Conv(self.channels2, (5, 5), padding="VALID", name="conv2", **kinds)(x))
        x = nn.max_pool(x, (2, 2), (2, 2))
        x = x.reshape(x.shape[0], -1)  # (height, width, channel) order: canonical
        x = nn.relu(nn.Dense(self.hidden, name="fc1", **kinds)(x))
        x = nn.Dense(self.classes, name="fc2", **kinds)(x)
        return nn.log_softmax(x.astype(self.param_dtype))
