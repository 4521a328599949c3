"""The layers that describe workloads: shapes, initial weights, FLOPs, and their mathematics in float64 with NumPy.

Each layer has a forward pass that returns its output and its pullback: the function that turns the gradient of the
output into the gradients of the input and of the layer's parameters. No framework is involved, so the golden reference
built from these layers (harness/reference/loops.py) is independent of every implementation that it judges. Only Opaque
layers have no forward pass.
tests/test_golden.py checks each pullback against finite differences.
"""

from __future__ import annotations

from harness.layers.activations import LogSoftmax, ReLU, log_softmax
from harness.layers.base import Layer, Parameter, Pullback, Shape, each_once
from harness.layers.chains import (
    Residual,
    batch_norms,
    chain_flops,
    chain_forward,
    chain_shape,
    chain_values,
    normalized_kernels,
)
from harness.layers.convolution import Conv2D, MaxPool2D
from harness.layers.linear import Flatten, Linear
from harness.layers.normalization import BatchNorm
from harness.layers.opaque import Opaque
from harness.layers.pooling import GlobalAveragePool
from harness.layers.rounding import with_rounding
from harness.layers.unused import Unused, unused_parameters

__all__ = [
    "BatchNorm",
    "Conv2D",
    "Flatten",
    "GlobalAveragePool",
    "Layer",
    "Linear",
    "LogSoftmax",
    "MaxPool2D",
    "Opaque",
    "Parameter",
    "Pullback",
    "ReLU",
    "Residual",
    "Shape",
    "Unused",
    "batch_norms",
    "chain_flops",
    "chain_forward",
    "chain_shape",
    "chain_values",
    "each_once",
    "log_softmax",
    "normalized_kernels",
    "unused_parameters",
    "with_rounding",
]
