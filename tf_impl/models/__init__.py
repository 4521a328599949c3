"""The networks, as Keras models. Number formats come from Keras' global policy, which runtime.start sets."""

from __future__ import annotations

import importlib

import keras

from harness.workloads import Workload


def build(workload: Workload) -> keras.Model:
    """The network of `workload`; its output is in the parameters' dtype."""
    model = importlib.import_module(f"{__name__}.{workload.name}").build(**workload.dims)
    if not model.built:
        model.build((None, *workload.input_shape))
    return model
