"""The convolutional network of the MNIST examples."""

from __future__ import annotations

from functools import partial
from typing import Any

from flax import linen as nn

from jax_impl.models import Block, Network


class Model(Network):
    """(batch, 28, 28, 1) to log-probabilities (batch, classes)."""

    channels1: int
    channels2: int
    hidden: int
    classes: int

    def blocks(self) -> dict[str, Block]:
        kinds: Any = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        conv, dense = self.layer(nn.Conv), self.layer(nn.Dense)
        pool = partial(nn.max_pool, window_shape=(2, 2), strides=(2, 2))
        return {
            "conv1": conv(self.channels1, (5, 5), padding="VALID", name="conv1", **kinds),
            "relu1": nn.relu,
            "pool1": pool,
            "conv2": conv(self.channels2, (5, 5), padding="VALID", name="conv2", **kinds),
            "relu2": nn.relu,
            "pool2": pool,
            "flatten": lambda x: x.reshape(x.shape[0], -1),  # in (height, width, channel) order, the canonical one
            "fc1": dense(self.hidden, name="fc1", **kinds),
            "relu3": nn.relu,
            "fc2": dense(self.classes, name="fc2", **kinds),
            "log_softmax": lambda x: nn.log_softmax(x.astype(self.param_dtype)),
        }
