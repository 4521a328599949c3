"""Numpy arrays to tensors on devices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from harness.contract import Arrays

Parts = tuple[tuple[tf.Tensor, tf.Tensor], ...]
"""A batch, or a device's share of it: x and y for each accumulation step."""


def on_device(parts: Sequence[Arrays], device: str, dtype: str) -> Parts:
    """Each part's x and y, on `device` before the step asks for them."""
    with tf.device(device):
        # identity: a constant made from numpy may stay in host memory until first used
        return tuple((tf.identity(_tensor(p["x"], dtype)), tf.identity(_tensor(p["y"], dtype))) for p in parts)


def _tensor(array: np.ndarray, dtype: str) -> tf.Tensor:
    """Class labels stay integers."""
    return tf.constant(array) if array.dtype.kind == "i" else tf.constant(array, dtype)
