"""Numpy arrays to tensors."""

from __future__ import annotations

import numpy as np
import tensorflow as tf


def tensor(array: np.ndarray, dtype: str) -> tf.Tensor:
    """A tensor of `dtype`, on the current device; class labels stay integers."""
    return tf.constant(array) if array.dtype.kind == "i" else tf.constant(array, dtype)
