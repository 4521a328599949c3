"""What every layer has: trainable parameters, shapes, FLOPs, and a forward pass that returns its pullback."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from harness.spec.arrays import Arrays

Shape = tuple[int, ...]
Pullback = Callable[[np.ndarray], tuple[np.ndarray, Arrays]]


@dataclass(frozen=True)
class Parameter:
    """One trainable tensor, and how PyTorch initializes it.

    `init`: "uniform" is U(-1/sqrt(fan), 1/sqrt(fan)), torch.nn's default with fan = fan in. "normal" is N(0, 2/fan), He
    et al. 2015 (arXiv:1502.01852), which torchvision's ResNet uses with fan = fan out. The others are constants.
    `flattened`: the (height, width, channel) shape that the rows of a linear weight came from.
    """

    name: str
    shape: Shape
    fan: int
    init: Literal["uniform", "normal", "ones", "zeros"] = "uniform"
    flattened: Shape = ()

    def initial(self, seed: int) -> np.ndarray:
        """Its initial value in float64. It depends on the name and the seed alone, not on the other parameters."""
        rng = np.random.default_rng([seed, zlib.crc32(self.name.encode())])
        if self.init == "uniform":
            bound = 1 / np.sqrt(self.fan)
            return rng.uniform(-bound, bound, self.shape)
        if self.init == "normal":
            return rng.normal(0.0, np.sqrt(2 / self.fan), self.shape)
        return np.ones(self.shape) if self.init == "ones" else np.zeros(self.shape)


class Layer(Protocol):
    """Shapes are those of one sample, without the batch axis; arrays have it.

    Layers that name the same parameter share it (tied weights): both read one tensor, and their gradients are summed.
    """

    def parameters(self) -> tuple[Parameter, ...]: ...
    def output_shape(self, shape: Shape) -> Shape:
        """Raises ValueError for inputs that the layer cannot take: NumPy would broadcast some of them silently."""
        ...

    def flops(self, shape: Shape) -> int:
        """Floating-point operations of one sample's forward pass; a multiply-add counts as two."""
        ...

    def forward(self, params: Arrays, x: np.ndarray) -> tuple[np.ndarray, Pullback]: ...


class Stateless:
    """A layer without parameters that keeps the shape of its input."""

    def parameters(self) -> tuple[Parameter, ...]:
        return ()

    def output_shape(self, shape: Shape) -> Shape:
        return shape

    def flops(self, shape: Shape) -> int:
        return 0  # FLOP counts usually include only matrix products and convolutions


def each_once(parameters: Iterable[Parameter]) -> tuple[Parameter, ...]:
    """The parameters in order. One that several layers share is there once, where it first occurs.

    Raises ValueError for two different parameters of the same name.
    """
    found: dict[str, Parameter] = {}
    for parameter in parameters:
        first = found.setdefault(parameter.name, parameter)
        if first != parameter:
            raise ValueError(
                f"two different parameters are called {parameter.name}: {first} and {parameter}; layers that share a "
                "parameter must describe it alike"
            )
    return tuple(found.values())


def summed(one: Arrays, other: Arrays) -> Arrays:
    """The gradients of two uses of the network's parameters. A parameter that both use gets the sum."""
    return one | {name: one[name] + gradient if name in one else gradient for name, gradient in other.items()}
