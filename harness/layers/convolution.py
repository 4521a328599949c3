"""Layers with a sliding window: convolution and max-pooling. Images are NHWC."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.layers.base import Parameter, Pullback, Shape, Stateless
from harness.spec.arrays import Arrays


@dataclass(frozen=True)
class Conv2D:
    """2-D cross-correlation, which every framework calls convolution; kernel HWIO, symmetric zero padding.

    With `he`, the kernel is initialized as in torchvision's ResNet, otherwise as in torch.nn.Conv2d.
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
        if len(shape) != 3 or shape[2] != self.inputs:
            raise ValueError(f"{self.name}: input {shape}, expected (height, width, {self.inputs})")
        height, width = _window_counts(shape, self.kernel, self.stride, self.padding)
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
        patches = np.concatenate(views, axis=-1) if len(views) > 1 else views[0]  # a 1x1 kernel needs no copy of x
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
                # rows, not dy: NumPy makes this one large product, but splits one over four axes by lines of pixels
                _shifted(dx, i, j, *window)[...] += (rows @ weight[i, j].T).reshape(*patches.shape[:3], -1)
            return dx[:, pad : pad + x.shape[1], pad : pad + x.shape[2]], grads

        return y, pullback


@dataclass(frozen=True)
class MaxPool2D(Stateless):
    """Maximum over square windows; padding is minus infinity. Among equal values, the first gets the gradient."""

    kernel: int
    stride: int
    padding: int = 0

    def output_shape(self, shape: Shape) -> Shape:
        height, width = _window_counts(shape, self.kernel, self.stride, self.padding)
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


def _padded(x: np.ndarray, pad: int, value: float = 0.0) -> np.ndarray:
    """x (N, H, W, C) with a border of `pad` pixels around height and width; x itself where `pad` is 0."""
    return np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)), constant_values=value) if pad else x


def _shifted(x: np.ndarray, row: int, column: int, stride: int, height: int, width: int) -> np.ndarray:
    """The view of x (N, H, W, C) that kernel position (row, column) sees: (N, height, width, C)."""
    return x[:, row : row + stride * height : stride, column : column + stride * width : stride]


def _window_counts(shape: Shape, kernel: int, stride: int, padding: int) -> tuple[int, int]:
    """How many windows fit into the height and the width. Raises ValueError if none does."""
    height, width = ((length + 2 * padding - kernel) // stride + 1 for length in shape[:2])
    if height < 1 or width < 1:
        raise ValueError(f"no window of {kernel} x {kernel} fits into {shape[0]} x {shape[1]} with padding {padding}")
    return height, width
