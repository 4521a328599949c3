"""The settings `xla` and `xla_step`, which a strategy applies to its own functions. (`fused_update` is in optim.py.)

xla               | loss and gradients | -> | all-reduce | -> | update |    a program of XLA, and operations of a graph
xla and xla_step  | loss and gradients      all-reduce         update |    one program of XLA
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf


def xla_if_set(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that computes loss and gradients, or the forward pass of a stage, compiled by XLA if the setting `xla`
    is on. The gradient of what XLA compiled is compiled as well.

    The step calls it once for each part of the batch. It must be called inside a tf.function.
    """
    return _compiled_if_set(method, "xla", unless="xla_step")  # then XLA compiles the step around it


def xla_step_if_set(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that makes one device's whole step, compiled by XLA if the setting `xla_step` is on.

    It must be called inside a tf.function. On GPUs, TensorFlow compiles an all-reduce inside it to XLA's own. On CPU
    devices it does not (MirroredExtended._use_merge_call), and such a method cannot be compiled.
    """
    return _compiled_if_set(method, "xla_step")


def _compiled_if_set(method: Callable[..., Any], setting: str, *, unless: str = "") -> Callable[..., Any]:
    compiled = tf.function(method, jit_compile=True)

    @functools.wraps(method)
    def chosen(self: Any, *arguments: Any) -> Any:
        if not self.job.settings.get(setting, False) or self.job.settings.get(unless, False):
            return method(self, *arguments)
        # A function of this program, which ends with it: one for all programs would keep the variables of each.
        return compiled.__get__(self, type(self))(*arguments)

    return chosen
