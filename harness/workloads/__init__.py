"""The workloads: one file each. The file's name is the workload's name, and `--workload` takes it.

A workload file holds `SIZES`, a mapping from size to Workload, whose first entry is the default. It says all that is
neutral between the frameworks: layers, loss, optimizer, batch size, data. How a framework writes the same network is in
`<package>/models/<name>.py`.
"""

from __future__ import annotations

import importlib
import pkgutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from harness.layers import Arrays, Layer, Parameter, Shape
from harness.specs import OptimizerSpec

Loss = Literal["mse", "cross_entropy", "nll"]
Split = Literal["train", "test"]


def _as_float64(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is trained, independent of any framework.

    `load(split, source)` returns {"x": (samples, *input_shape), "y": targets}; `source` is the folder given by --data,
    or None. `transform` turns stored inputs into float64 network inputs. `dims` are the numbers that models are built
    from. `unit` is what throughput counts.
    """

    name: str
    size: str
    summary: str
    unit: Literal["image", "sample"]
    input_shape: Shape
    layers: tuple[Layer, ...]
    dims: dict[str, int]
    loss: Loss
    global_batch: int
    optimizer: OptimizerSpec
    load: Callable[[Split, Path | None], Arrays]
    transform: Callable[[np.ndarray], np.ndarray] = field(default=_as_float64)
    takes_data: bool = False  # whether --data means anything to it

    def parameters(self) -> tuple[Parameter, ...]:
        """All trainable tensors in the order of the layers."""
        return tuple(parameter for layer in self.layers for parameter in layer.parameters())

    def init_params(self, seed: int) -> Arrays:
        """Initial float64 weights: U(-1/sqrt(fan_in), 1/sqrt(fan_in)), as torch.nn.Linear and Conv2d draw them.

        Each tensor has a random stream of its own, so its values do not depend on what other tensors there are.
        """
        params: Arrays = {}
        for parameter in self.parameters():
            rng = np.random.default_rng([seed, zlib.crc32(parameter.name.encode())])
            bound = 1 / np.sqrt(parameter.fan_in)
            params[parameter.name] = rng.uniform(-bound, bound, parameter.shape)
        return params

    def flops_per_unit(self) -> int:
        """Floating-point operations to train on one sample: three times the forward pass.

        The backward pass has two products of the forward's size, one for the inputs and one for the weights (Kaplan et
        al. 2020, arXiv:2001.08361, section 2.1).
        """
        total, shape = 0, self.input_shape
        for layer in self.layers:
            total += layer.flops(shape)
            shape = layer.output_shape(shape)
        return 3 * total


def names() -> list[str]:
    """All workloads of this package."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def sizes(name: str) -> dict[str, Workload]:
    """The sizes of a workload, the default first. Raises ModuleNotFoundError for an unknown name."""
    return importlib.import_module(f"{__name__}.{name}").SIZES


def get(name: str, size: str) -> Workload:
    """One workload at one size. Raises ModuleNotFoundError or KeyError for unknown names."""
    return sizes(name)[size]
