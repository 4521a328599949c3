"""Layers that the forward pass leaves out, so that no output depends on their parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.layers.base import Layer, Parameter, Pullback, Stateless, each_once
from harness.layers.chains import all_layers
from harness.spec.arrays import Arrays


@dataclass(frozen=True)
class Unused(Stateless):
    """The parameters of `layer`, and the identity in place of its forward pass.

    Their gradient is zero: an update without weight decay leaves them as they are.
    """

    layer: Layer

    def parameters(self) -> tuple[Parameter, ...]:
        return self.layer.parameters()

    def forward(self, params: Arrays, x: np.ndarray) -> tuple[np.ndarray, Pullback]:
        return x, lambda dy: (dy, {p.name: np.zeros_like(params[p.name]) for p in self.parameters()})


def unused_parameters(layers: Sequence[Layer]) -> tuple[Parameter, ...]:
    """The parameters that no output depends on: those of Unused layers that no other layer shares."""
    every = list(all_layers(layers))
    used = {parameter for layer in every if not isinstance(layer, Unused) for parameter in layer.parameters()}
    return each_once(parameter for layer in every for parameter in layer.parameters() if parameter not in used)
