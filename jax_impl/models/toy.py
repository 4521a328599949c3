"""Two linear layers, with or without ReLU in between, and with or without a layer that the network leaves out."""

from __future__ import annotations

from typing import Any

from flax import linen as nn

from jax_impl.models import Block, Network


class Model(Network):
    """(batch, inputs) to (batch, outputs)."""

    inputs: int
    hidden: int
    outputs: int
    relu: int
    unused: int = 0

    def blocks(self) -> dict[str, Block]:
        kinds: Any = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        dense = self.layer(nn.Dense)
        net1, net2 = dense(self.hidden, name="net1", **kinds), dense(self.outputs, name="net2", **kinds)
        between: dict[str, Block] = {"relu": nn.relu} if self.relu else {}
        if self.unused:
            # The network leaves this layer out: its parameters are in the tree that jax.grad is given, and get zeros.
            # (Flax's own init would not make them, because the layer is never called.)
            between["unused"] = lambda x: x
        return {"net1": net1, **between, "net2": lambda x: net2(x).astype(self.param_dtype)}
