"""The networks as Keras models. Their number formats come from Keras' global policy, which runtime.start sets.

Each network is an ordered mapping from the names in `workload.blocks` to functions of a symbolic tensor. Keras layers
are such functions: the call creates their variables, on the device and in the scope of the call.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import keras
import tensorflow as tf
from keras import layers

from harness.spec import of_layers, workload_packages
from harness.workloads import Workload
from tf_impl import batch_norm, weights

Blocks = dict[str, Callable[[Any], Any]]


Settings = Mapping[str, bool]
NONE: Settings = MappingProxyType({})


def build(
    workload: Workload, *, settings: Settings = NONE, momentum: float = 0.9, synchronized: bool = False
) -> keras.Model:
    """The network of `workload`. Its output has the parameters' dtype. `settings`: those of the job. For the others see
    batch_norm.layer."""
    found = _blocks(workload, settings, momentum=momentum, synchronized=synchronized)
    model = _model(list(found.values()), workload.input_shape, last=True)
    if not workload_packages.is_ours(workload.name):
        _check([model], workload)
    return model


def build_stages(
    workload: Workload, points: Sequence[int], devices: Sequence[str], *, settings: Settings
) -> list[keras.Model]:
    """The same network, cut before the blocks numbered `points`. Each stage's variables are on its own device.

    The stages are models with the names stage0, stage1 and so on.
    """
    functions, shape = list(_blocks(workload, settings).values()), workload.input_shape
    stages = []
    for device, (start, end) in zip(devices, pairwise([0, *points, len(functions)]), strict=True):
        last, name = end == len(functions), f"stage{len(stages)}"
        # by default an input is float32, to which bf16 activations would be converted, and back
        dtype = stages[-1].outputs[0].dtype if stages else None
        with tf.device(device):
            stages.append(_model(functions[start:end], shape, dtype=dtype, last=last, name=name))
        shape = stages[-1].output_shape[1:]
    if not workload_packages.is_ours(workload.name):
        _check(stages, workload)
    return stages


def _check(stages: Sequence[keras.Model], workload: Workload) -> None:
    """Raises ValueError for a network of one's own whose parameters or outputs are not those of its workload."""
    found: Any = {name: tuple(held.shape) for stage in stages for name, held in weights.variables(stage).items()}
    expected = {parameter.name: parameter.shape for parameter in workload.parameters()}
    workload_packages.check_model(workload.name, "tf", parameters=found, expected=expected)
    outputs = tuple(stages[-1].output_shape[1:])
    workload_packages.check_outputs(workload.name, "tf", outputs=outputs, expected=workload.output_shape)


def _blocks(workload: Workload, settings: Settings, *, momentum: float = 0.9, synchronized: bool = False) -> Blocks:
    norm = batch_norm.layer(momentum=momentum, synchronized=synchronized, settings=settings)
    module = importlib.import_module(workload_packages.model_module(workload.name, "tf", ours_in=__name__))
    known: dict[str, Any] = {"batch_norm": norm} if workload.normalizes else {}
    known |= of_layers(settings)
    if hasattr(module, "build"):  # a Keras model of one's own that knows nothing of blocks is one layer
        workload_packages.check_blocks(workload.name, "tf", blocks=("model",), expected=workload.blocks)
        return {"model": module.build(**workload.dims, **known)}
    found = module.blocks(**workload.dims, **known)
    if not workload_packages.is_ours(workload.name):
        workload_packages.check_blocks(workload.name, "tf", blocks=tuple(found), expected=workload.blocks)
    return found


def _model(
    functions: Sequence[Callable[[Any], Any]],
    shape: tuple[int, ...],
    *,
    dtype: str | None = None,
    last: bool,
    name: str | None = None,
) -> keras.Model:
    """The functions one after another. The last stage converts its output to the parameters' dtype.

    `dtype`: of the input, by default the parameters'.
    """
    inputs = x = keras.Input(shape, dtype=dtype)
    for function in functions:
        x = function(x)
    outputs = layers.Activation("linear", dtype=keras.config.floatx())(x) if last else x
    return keras.Model(inputs, outputs, name=name)
