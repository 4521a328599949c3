"""The setting `xla`, which a strategy applies to its own functions. (`fused_update` is in optim.py.)"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf


def xla_if_set(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a program, compiled by XLA if the setting `xla` is on. It must be called inside a tf.function.

    The step calls it once for each part of the batch, so the all-reduce and the update stay outside XLA.
    """
    compiled = tf.function(method, jit_compile=True)

    @functools.wraps(method)
    def chosen(self: Any, *tensors: tf.Tensor) -> Any:
        function = compiled if self.job.settings.get("xla", False) else method
        return function(self, *tensors)

    return chosen
