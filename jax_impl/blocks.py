"""A network as an ordered list of blocks, all of which or a few can be applied: what stages are cut from."""

from __future__ import annotations

from collections.abc import Callable

import jax
from flax import linen as nn
from jax.typing import DTypeLike

Block = Callable[[jax.Array], jax.Array]


class Network(nn.Module, kw_only=True):
    """Layers compute in `dtype`; parameters and the output are in `param_dtype`.

    `axis_name`: the mapped axis over which BatchNorm shares its statistics; None where it takes those of the samples
    that it sees. `inference`: BatchNorm normalizes with its running statistics.
    """

    dtype: DTypeLike
    param_dtype: DTypeLike
    axis_name: str | None = None
    inference: bool = False

    def blocks(self) -> dict[str, Block]:
        """The blocks by their names in the workload, in order; called while Flax is applying the network."""
        raise NotImplementedError

    @nn.compact
    def __call__(self, x: jax.Array, start: int = 0, end: int | None = None) -> jax.Array:
        """The output of blocks `start` to `end`, all by default. Only their parameters need be there."""
        for block in list(self.blocks().values())[start:end]:
            x = block(x)
        return x
