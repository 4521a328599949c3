"""Linear 5-10-2 with ReLU."""

from __future__ import annotations

from typing import Any

from flax import linen as nn

from jax_impl.models import Block, Network


class Model(Network):
    """(batch, inputs) to logits (batch, outputs)."""

    inputs: int
    hidden: int
    outputs: int

    def blocks(self) -> dict[str, Block]:
        kinds: Any = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        dense = self.layer(nn.Dense)
        out = dense(self.outputs, name="out", **kinds)
        return {
            "fc": dense(self.hidden, name="fc", **kinds),
            "relu": nn.relu,
            "out": lambda x: out(x).astype(self.param_dtype),
        }
