"""The networks as Keras models. Their number formats come from Keras' global policy, which runtime.start sets.

Each network is an ordered mapping from the names in `workload.blocks` to functions of a symbolic tensor. Keras layers
are such functions: the call creates their variables, on the device and in the scope of the call.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import keras
import tensorflow as tf
from keras import layers

from harness.workloads import Workload

Blocks = dict[str, Callable[[Any], Any]]


def build(workload: Workload, *, synchronized: bool = False, momentum: float = 0.9) -> keras.Model:
    """The network of `workload`. Its output has the parameters' dtype.

    `synchronized`: BatchNorm computes its statistics over the samples of all replicas, by its own all-reduces.
    `momentum`: what its running statistics keep of themselves in an update.
    """
    found = _blocks(workload, synchronized, momentum)
    return _model(list(found.values()), workload.input_shape, last=True)


def build_stages(workload: Workload, points: Sequence[int], devices: Sequence[str]) -> list[keras.Model]:
    """The same network, cut before the blocks numbered `points`. Each stage's variables are on its own device."""
    functions, shape = list(_blocks(workload, synchronized=False, momentum=0.9).values()), workload.input_shape
    stages = []
    for device, (start, end) in zip(devices, pairwise([0, *points, len(functions)]), strict=True):
        with tf.device(device):
            stages.append(_model(functions[start:end], shape, last=end == len(functions)))
        shape = stages[-1].output_shape[1:]
    return stages


def _blocks(workload: Workload, synchronized: bool, momentum: float) -> Blocks:
    module = importlib.import_module(f"{__name__}.{workload.name}")
    of_batch_norm = {"synchronized": synchronized, "momentum": momentum} if workload.normalizes else {}
    return module.blocks(**workload.dims, **of_batch_norm)


def _model(functions: Sequence[Callable[[Any], Any]], shape: tuple[int, ...], *, last: bool) -> keras.Model:
    """The functions one after another. The last stage converts its output to the parameters' dtype."""
    inputs = x = keras.Input(shape)
    for function in functions:
        x = function(x)
    return keras.Model(inputs, layers.Activation("linear", dtype=keras.config.floatx())(x) if last else x)
