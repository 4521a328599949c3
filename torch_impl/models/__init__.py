"""The networks. Each is an nn.Sequential: an ordered list of blocks, so that strategies can cut it between any two."""

from __future__ import annotations

import importlib

from torch import nn

from harness.workloads import Workload


def build(workload: Workload) -> nn.Sequential:
    """The network of `workload`, with PyTorch's own initial weights."""
    return importlib.import_module(f"{__name__}.{workload.name}").build(**workload.dims)
