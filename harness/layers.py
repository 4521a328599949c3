"""The layers that workloads are described with: shapes, initial weights, FLOPs, and float64 mathematics in numpy.

Each layer writes its forward pass once and hands back its pullback: the function that turns the gradient of its
output into the gradient of its input and of its own parameters. No framework takes part, so the golden reference
built from these (harness/reference/loops.py) is independent of every implementation that it judges.
tests/test_golden.py holds each pullback against finite differences. Long because the layers belong together, each
beside its pullback.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from harness.spec.arrays import Arrays

Shape = tuple[int, ...]
Pullback = Callable[[np.ndarray], tuple[np.ndarray, Arrays]]


@dataclass(frozen=True)
class Parameter:
    """One trainable tensor and how it begins, as PyTorch draws it.

    "uniform": U(-1/sqrt(fan), 1/sqrt(fan)), torch.nn's default with fan = fan in. "normal": N(0, 2/fan), He et al. 2015
    (arXiv:1502.01852), which torchvision's ResNet uses with fan = fan out. Or "ones", or "zeros".
    `flattened` is the (height, width, channel) shape that a linear weight's rows came from.
    """

    name: str
    shape: Shape
    fan: int
    init: Literal["uniform", "normal", "ones", "zeros"] = "uniform"
    flattened: Shape = ()


class Layer(Protocol):
    """Shapes are those of one sample, without the batch axis; arrays have it."""

    def parameters(self) -> tuple[Parameter, ...]: ...
    def output_shape(self, shape: Shape) -> Shape: ...
    def flops(self, shape: Shape) -> int:
        """Floating-point operations of one sample's forward pass; a multiply-add counts as two."""
        ...

    def forward(self, params: Arrays, x: np.ndarray) -> tuple[np.ndarray, Pullback]: ...


class _Stateless:
    def parameters(self) -> tuple[Parameter, ...]:
        return ()

    def output_shape(self, shape: Shape) -> Shape:
        return shape

    def flops(self, shape: Shape) -> int:
        return 0  # as usual in FLOP counts, only matrix products and convolutions are counted


@dataclass(frozen=True)
class Linear:
    """y = x W + b with W (in, out)."""

    name: str
    inputs: int
    outputs: int
    flattened: Shape = ()

    def parameters(self) -> tuple[Parameter, ...]:
        return (
            Parameter(f"{self.name}.weight", (self.inputs, self.outputs), self.inputs, flattened=self.flattened),
            Parameter(f"{self.name}.bias", (self.outputs,), self.inputs),
        )

    def output_shape(self, shape: Shape) -> Shape:
        assert shape == (self.inputs,), f"{self.name}: input {shape}, expected ({self.inputs},)"
        return (self.outputs,)

    def flops(self, shape: Shape) -> int:
        return 2 * self.inputs * self.outputs

    def forward(self, params: Arrays, x: np.ndarray) -> tuple[np.ndarray, Pullback]:
        weight = params[f"{self.name}.weight"]

        def pullback(dy: np.ndarray) -> tuple[np.ndarray, Arrays]:
            return dy @ weight.T, {f"{self.name}.weight": x.T @ dy, f"{self.name}.bias": dy.sum(0)}

        return x @ weight + params[f"{self.name}.bias"], pullback


def _padded(x: np.ndarray, pad: int, value: float = 0.0) -> np.ndarray:
    """x (N, H, W, C) with a border of `pad` on each side of height and width; without one x itself."""
    return np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)), constant_values=value) if pad else x


def _shifted(x: np.ndarray, row: int, column: int, stride: int, height: int, width: int) -> np.ndarray:
    """The view of x (N, H, W, C) that kernel position (row, column) sees: (N, height, width, C)."""
    return x[:, row : row + stride * height : stride, column : column + stride * width : stride]


@dataclass(frozen=True)
class Conv2D:
    """2-D cross-correlation, as every framework calls convolution; kernel HWIO, symmetric zero padding.

    With `he`, the kernel begins as torchvision's ResNet draws it, else as torch.nn.Conv2d does.
    """

    name: str
    kernel: int
    inputs: int
    outputs: int
    stride: int = 1
    padding: int = 0
    bias: bool = True
    he: bool = False

    def parameters(self) -> tuple[Parameter, ...]:
        fan_in, fan_out = (self.kernel * self.kernel * channels for channels in (self.inputs, self.outputs))
        shape = (self.kernel, self.kernel, self.inputs, self.outputs)
        weight = Parameter(
            f"{self.name}.weight", shape, fan_out if self.he else fan_in, "normal" if self.he else "uniform"
        )
        return (weight, Parameter(f"{self.name}.bias", (self.outputs,), fan_in)) if self.bias else (weight,)

    def output_shape(self, shape: Shape) -> Shape:
        height, width = (_window_count(n, self.kernel, self.stride, self.padding) for n in shape[:2])
        return (height, width, self.outputs)

    def flops(self, shape: Shape) -> int:
        height, width, outputs = self.output_shape(shape)
        return 2 * height * width * outputs * self.kernel * self.kernel * self.inputs

    def forward(self, params: Arrays, x: np.ndarray) -> tuple[np.ndarray, Pullback]:
        weight, pad = params[f"{self.name}.weight"], self.padding
        height, width, outputs = self.output_shape(x.shape[1:])
        padded = _padded(x, pad)
        positions = [(i, j) for i in range(self.kernel) for j in range(self.kernel)]
        window = (self.stride, height, width)
        views = [_shifted(padded, i, j, *window) for i, j in positions]
        patches = np.concatenate(views, axis=-1) if len(views) > 1 else views[0]  # of a 1x1 kernel: x itself, no copy
        columns = patches.reshape(-1, len(positions) * self.inputs)
        y = (columns @ weight.reshape(-1, outputs)).reshape(len(x), height, width, outputs)
        if self.bias:
            y = y + params[f"{self.name}.bias"]

        def pullback(dy: np.ndarray) -> tuple[np.ndarray, Arrays]:
            rows = dy.reshape(-1, outputs)
            grads = {f"{self.name}.weight": (columns.T @ rows).reshape(weight.shape)}
            if self.bias:
                grads[f"{self.name}.bias"] = rows.sum(0)
            dx = np.zeros_like(padded)
            for i, j in positions:
                # rows, not dy: one large product; of four axes NumPy makes one for each line of pixels
                _shifted(dx, i, j, *window)[...] += (rows @ weight[i, j].T).reshape(*patches.shape[:3], -1)
            return dx[:, pad : pad + x.shape[1], pad : pad + x.shape[2]], grads

        return y, pullback


@dataclass(frozen=True)
class MaxPool2D(_Stateless):
    """Maximum over square windows; padding counts as minus infinity; of equal values the first takes the gradient."""

    kernel: int
    stride: int
    padding: int = 0

    def output_shape(self, shape: Shape) -> Shape:
        height, width = (_window_count(n, self.kernel, self.stride, self.padding) for n in shape[:2])
        return (height, width, shape[2])

    def forward(self, params: Arrays, x: np.ndarray) -> tuple[np.ndarray, Pullback]:
        pad = self.padding
        height, width, _ = self.output_shape(x.shape[1:])
        padded = _padded(x, pad, -np.inf)
        positions = [(i, j) for i in range(self.kernel) for j in range(self.kernel)]
        window = (self.stride, height, width)
        views = np.stack([_shifted(padded, i, j, *window) for i, j in positions])
        winner = views.argmax(0)

        def pullback(dy: np.ndarray) -> tuple[np.ndarray, Arrays]:
            dx = np.zeros_like(padded)
            for index, (i, j) in enumerate(positions):
                _shifted(dx, i, j, *window)[...] += dy * (winner == index)
            return dx[:, pad : pad + x.shape[1], pad : pad + x.shape[2]], {}

        return views.max(0), pullback


@dataclass(frozen=True)
class BatchNorm:
    """Normalizes each channel by the mean and the biased variance over samples and positions, then scales and shifts.

    Ioffe & Szegedy 2015, arXiv:1502.03167, algorithm 1. Running statistics do not take part in training, so the
    reference keeps none.
    """

    name: str
    channels: int
    epsilon: float = 1e-5

    def parameters(self) -> tuple[Parameter, ...]:
        shape = (self.channels,)
        return (
            Parameter(f"{self.name}.weight", shape, 1, "ones"),
            Parameter(f"{self.name}.bias", shape, 1, "zeros"),
        )

    def output_shape(self, shape: Shape) -> Shape:
        return shape

    def flops(self, shape: Shape) -> int:
        return 0

    def forward(self, params: Arrays, x: np.ndarray) -> tuple[np.ndarray, Pullback]:
        axes = tuple(range(x.ndim - 1))
        count = x.size // x.shape[-1]
        normal = x - x.mean(axes)
        scale = 1 / np.sqrt((normal * normal).mean(axes) + self.epsilon)
        normal *= scale
        weight = params[f"{self.name}.weight"]

        def pullback(dy: np.ndarray) -> tuple[np.ndarray, Arrays]:
            dweight, dbias = (dy * normal).sum(axes), dy.sum(axes)
            dx = weight * scale * (dy - dbias / count - normal * (dweight / count))
            return dx, {f"{self.name}.weight": dweight, f"{self.name}.bias": dbias}

        return normal * weight + params[f"{self.name}.bias"], pullback


@dataclass(frozen=True)
class GlobalAveragePool(_Stateless):
    """(height, width, channel) to (channel,): the mean over all positions."""

    def output_shape(self, shape: Shape) -> Shape:
        return shape[2:]

    def forward(self, params: Arrays, x: np.ndarray) -> tuple[np.ndarray, Pullback]:
        positions = x.shape[1] * x.shape[2]

        def pullback(dy: np.ndarray) -> tuple[np.ndarray, Arrays]:
            return np.broadcast_to(dy[:, None, None] / positions, x.shape), {}

        return x.mean((1, 2)), pullback


@dataclass(frozen=True)
class Residual:
    """body(x) + shortcut(x); an empty shortcut is x itself."""

    body: tuple[Layer, ...]
    shortcut: tuple[Layer, ...] = ()

    def parameters(self) -> tuple[Parameter, ...]:
        return tuple(parameter for layer in (*self.body, *self.shortcut) for parameter in layer.parameters())

    def output_shape(self, shape: Shape) -> Shape:
        return chain_shape(self.body, shape)

    def flops(self, shape: Shape) -> int:
        return chain_flops(self.body, shape) + chain_flops(self.shortcut, shape)

    def forward(self, params: Arrays, x: np.ndarray) -> tuple[np.ndarray, Pullback]:
        y, back = chain_forward(self.body, params, x)
        around, back_around = chain_forward(self.shortcut, params, x)

        def pullback(dy: np.ndarray) -> tuple[np.ndarray, Arrays]:
            (dx, grads), (dx_around, grads_around) = back(dy), back_around(dy)
            return dx + dx_around, grads | grads_around

        return y + around, pullback


@dataclass(frozen=True)
class ReLU(_Stateless):
    def forward(self, params: Arrays, x: np.ndarray) -> tuple[np.ndarray, Pullback]:
        y = np.maximum(x, 0)
        return y, lambda dy: (dy * (y > 0), {})  # y, which the next layer keeps as well, so that x need not be kept


@dataclass(frozen=True)
class Flatten(_Stateless):
    """(height, width, channel) to one axis, in that order."""

    def output_shape(self, shape: Shape) -> Shape:
        return (int(np.prod(shape)),)

    def forward(self, params: Arrays, x: np.ndarray) -> tuple[np.ndarray, Pullback]:
        return x.reshape(len(x), -1), lambda dy: (dy.reshape(x.shape), {})


@dataclass(frozen=True)
class LogSoftmax(_Stateless):
    def forward(self, params: Arrays, x: np.ndarray) -> tuple[np.ndarray, Pullback]:
        y = log_softmax(x)
        return y, lambda dy: (dy - np.exp(y) * dy.sum(-1, keepdims=True), {})


def has_batch_norm(layers: Sequence[Layer]) -> bool:
    """Whether there is a BatchNorm among the layers, at any depth."""
    return any(
        isinstance(layer, BatchNorm) or (isinstance(layer, Residual) and has_batch_norm((*layer.body, *layer.shortcut)))
        for layer in layers
    )


def chain_shape(layers: Sequence[Layer], shape: Shape) -> Shape:
    """The shape that comes out of a chain of layers."""
    for layer in layers:
        shape = layer.output_shape(shape)
    return shape


def chain_flops(layers: Sequence[Layer], shape: Shape) -> int:
    """Floating-point operations of one sample's forward pass through a chain of layers."""
    total = 0
    for layer in layers:
        total += layer.flops(shape)
        shape = layer.output_shape(shape)
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
            gradients |= grads
        return dy, gradients

    return x, chained


def log_softmax(x: np.ndarray) -> np.ndarray:
    """log softmax over the last axis, shifted by the maximum so that exp cannot overflow."""
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def _window_count(length: int, kernel: int, stride: int, padding: int) -> int:
    return (length + 2 * padding - kernel) // stride + 1
