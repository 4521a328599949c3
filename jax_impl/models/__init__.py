"""The networks, as Flax linen modules."""

from __future__ import annotations

import importlib

from flax import linen as nn
from jax.typing import DTypeLike

from harness.workloads import Workload


def build(workload: Workload, *, dtype: DTypeLike, param_dtype: DTypeLike) -> nn.Module:
    """The network of `workload`: layers compute in `dtype`; parameters and the output are in `param_dtype`."""
    model = importlib.import_module(f"{__name__}.{workload.name}").Model
    return model(**workload.dims, dtype=dtype, param_dtype=param_dtype)
