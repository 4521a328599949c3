"""Layers in sequence, and the residual block that is made of two sequences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from harness.layers.base import Layer, Parameter, Pullback, Shape, each_once, summed
from harness.layers.convolution import Conv2D
from harness.layers.linear import Linear
from harness.layers.normalization import BatchNorm
from harness.spec.arrays import Arrays


def chain_shape(layers: Sequence[Layer], shape: Shape) -> Shape:
    """The output shape of a chain of layers."""
    for layer in layers:
        shape = layer.output_shape(shape)
    return shape


def chain_flops(layers: Sequence[Layer], shape: Shape) -> int:
    """Floating-point operations of one sample's forward pass through a chain of layers. A parameter that is used twice
    costs work twice."""
    total = 0
    for layer in layers:
        total += layer.flops(shape)
        shape = layer.output_shape(shape)
    return total


def chain_values(layers: Sequence[Layer], shape: Shape) -> int:
    """How many numbers one sample's inputs are, with the outputs of each layer of a chain."""
    total = math.prod(shape)
    for layer in layers:
        shape = layer.output_shape(shape)
        total += math.prod(shape)
    return total


def chain_forward(layers: Sequence[Layer], params: Arrays, x: np.ndarray) -> tuple[np.ndarray, Pullback]:
    """Forward through a chain of layers, with the pullback of the whole chain."""
    pullbacks = []
    for layer in layers:
        x, pullback = layer.forward(params, x)
        pullbacks.append(pullback)

    def chained(dy: np.ndarray) -> tuple[np.ndarray, Arrays]:
        gradients: Arrays = {}
        for pullback in reversed(pullbacks):
            dy, grads = pullback(dy)
            gradients = summed(gradients, grads)
        return dy, gradients

    return x, chained


@dataclass(frozen=True)
class Residual:
    """body(x) + shortcut(x); an empty shortcut is the identity."""

    body: tuple[Layer, ...]
    shortcut: tuple[Layer, ...] = ()

    def parameters(self) -> tuple[Parameter, ...]:
        layers = (*self.body, *self.shortcut)
        return each_once(parameter for layer in layers for parameter in layer.parameters())

    def output_shape(self, shape: Shape) -> Shape:
        outputs, around = chain_shape(self.body, shape), chain_shape(self.shortcut, shape)
        if outputs != around:
            raise ValueError(f"a residual block adds outputs {outputs} of its body and {around} of its shortcut")
        return outputs

    def flops(self, shape: Shape) -> int:
        return chain_flops(self.body, shape) + chain_flops(self.shortcut, shape)

    def forward(self, params: Arrays, x: np.ndarray) -> tuple[np.ndarray, Pullback]:
        y, back = chain_forward(self.body, params, x)
        around, back_around = chain_forward(self.shortcut, params, x)

        def pullback(dy: np.ndarray) -> tuple[np.ndarray, Arrays]:
            (dx, grads), (dx_around, grads_around) = back(dy), back_around(dy)
            return dx + dx_around, summed(grads, grads_around)

        return y + around, pullback


def mapped(layers: Sequence[Layer], change: Callable[[Layer], Layer]) -> tuple[Layer, ...]:
    """The layers with `change` made to each. A residual block keeps its two paths: their layers are changed."""
    return tuple(
        Residual(mapped(layer.body, change), mapped(layer.shortcut, change))
        if isinstance(layer, Residual)
        else change(layer)
        for layer in layers
    )


def all_layers(layers: Sequence[Layer]) -> Iterator[Layer]:
    """The layers in order; in place of a residual block, those of its body and of its shortcut, at any depth."""
    for layer in layers:
        if isinstance(layer, Residual):
            yield from all_layers((*layer.body, *layer.shortcut))
        else:
            yield layer


def normalized_kernels(layers: Sequence[Layer]) -> list[str]:
    """The names of the kernels right before a BatchNorm, at any depth, without those that another layer uses too.

    BatchNorm divides out the size of such a kernel, but for its epsilon. So the gradient is orthogonal to the kernel
    (Euler's theorem on homogeneous functions; van Laarhoven 2017, arXiv:1706.05350).
    """
    uses = Counter(parameter.name for layer in all_layers(layers) for parameter in layer.parameters())
    return [name for name in _before_norms(layers) if uses[name] == 1]


def _before_norms(layers: Sequence[Layer]) -> Iterator[str]:
    for before, after in pairwise(layers):
        if isinstance(before, (Conv2D, Linear)) and isinstance(after, BatchNorm):
            yield f"{before.name}.weight"
    for layer in layers:
        if isinstance(layer, Residual):
            yield from _before_norms(layer.body)
            yield from _before_norms(layer.shortcut)


def batch_norms(layers: Sequence[Layer]) -> list[BatchNorm]:
    """The BatchNorm layers among these, at any depth, in order."""
    return [layer for layer in all_layers(layers) if isinstance(layer, BatchNorm)]
