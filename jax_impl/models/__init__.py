"""The networks, as Flax linen modules."""

from __future__ import annotations

import importlib

from jax.typing import DTypeLike

from harness.workloads import Workload
from jax_impl.blocks import Network


def build(
    workload: Workload,
    *,
    dtype: DTypeLike,
    param_dtype: DTypeLike,
    axis_name: str | None = None,
    inference: bool = False,
) -> Network:
    """The network of `workload`; the keywords are explained in jax_impl/blocks.py."""
    model = importlib.import_module(f"{__name__}.{workload.name}").Model
    return model(**workload.dims, dtype=dtype, param_dtype=param_dtype, axis_name=axis_name, inference=inference)
