"""From NumPy arrays to tensors on devices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from harness.contract import Arrays

Parts = tuple[tuple[tf.Tensor, tf.Tensor], ...]
"""A batch, or one device's share of it: x and y for each accumulation step."""


def to_host(parts: Sequence[Arrays], dtype: str) -> Parts:
    """Each part's x and y as tensors in host memory."""
    with tf.device("CPU:0"):
        return tuple((_tensor(part["x"], dtype), _tensor(part["y"], dtype)) for part in parts)


def to_device(parts: Parts, device: str) -> Parts:
    """Each part's x and y on `device`, so that the step does not have to copy them."""
    with tf.device(device):
        return tuple((tf.identity(x), tf.identity(y)) for x, y in parts)


def _tensor(array: np.ndarray, dtype: str) -> tf.Tensor:
    """Floating-point arrays become `dtype`; class labels stay integers."""
    return tf.constant(array) if array.dtype.kind == "i" else tf.constant(array, dtype)
