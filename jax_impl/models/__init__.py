"""The networks, as Flax Linen modules. Each is an ordered list of blocks, so that strategies can cut it anywhere.

Flax recommends NNX to new users. The networks are in Linen because `apply` is a pure function, which every strategy
transforms as it is, and because it is called fastest: a step of ResNet-50's graph took the host 1.09 ms with Linen,
1.63 ms with NNX split once and a pure step, and 20.9 ms with nnx.jit (flax 0.12.8, jax 0.10.2, on a CPU).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import jax
from flax import linen as nn
from jax.typing import DTypeLike

from harness.spec import Precision
from harness.workloads import Workload
from jax_impl import runtime

Block = Callable[[jax.Array], jax.Array]
Layer = Callable[[Any], Any]
"""Maps the class of a layer, such as nn.Conv, to the class that a network uses in its place."""


class Network(nn.Module, kw_only=True):
    """Layers compute in `dtype`; parameters and the output are in `param_dtype`.

    `axis_name`: the mapped axis over which BatchNorm shares its statistics; None to use only the samples it sees.
    `momentum`: what BatchNorm's running statistics keep of themselves in an update. `inference`: BatchNorm normalizes
    with its running statistics. `layer`: a strategy may use it to transform the layers, for example to gather their
    parameters.
    """

    dtype: DTypeLike
    param_dtype: DTypeLike
    axis_name: str | None = None
    momentum: float = 0.9
    inference: bool = False
    layer: Layer = lambda kind: kind

    def blocks(self) -> dict[str, Block]:
        """The blocks in order, by their names in the workload. Called while Flax applies the network."""
        raise NotImplementedError

    @nn.compact
    def __call__(self, x: jax.Array, start: int = 0, end: int | None = None) -> jax.Array:
        """The output of blocks `start` to `end`, by default of all. It needs the parameters of these blocks only."""
        for block in list(self.blocks().values())[start:end]:
            x = block(x)
        return x


def build(
    workload: Workload,
    *,
    precision: Precision,
    axis_name: str | None = None,
    momentum: float = 0.9,
    inference: bool = False,
    layer: Layer | None = None,
) -> Network:
    """The network of `workload` in the number formats of `precision`; for the other keywords see Network."""
    model = importlib.import_module(f"{__name__}.{workload.name}").Model
    dtype, param_dtype = runtime.COMPUTE_DTYPES[precision], runtime.DTYPES[precision]
    known: dict[str, Any] = {"axis_name": axis_name, "momentum": momentum, "inference": inference}
    known |= {"layer": layer} if layer else {}
    return model(**workload.dims, dtype=dtype, param_dtype=param_dtype, **known)
