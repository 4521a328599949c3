"""From canonical weights to Keras variables and back. The layouts are the same; only the names differ."""

from __future__ import annotations

import keras
import tensorflow as tf

from harness.contract import Arrays

_NAMES = {
    "kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias", "moving_mean": "mean",
    "moving_variance": "var",
}  # fmt: skip


def variables(model: keras.Model) -> dict[str, tf.Variable]:
    """The model's trainable tf.Variables by canonical name; under MirroredStrategy these are mirrored variables."""
    return _named(model, "trainable_variables")


def running(model: keras.Model) -> dict[str, tf.Variable]:
    """BatchNorm's running statistics by canonical name: "bn1.mean" and "bn1.var"."""
    return _named(model, "non_trainable_variables")


def _named(model: keras.Model, which: str) -> dict[str, tf.Variable]:
    found = {}
    for layer in model.layers:
        whole = (
            f"{layer.name}/" if isinstance(layer, keras.Model) else ""
        )  # a model of one's own: its name says nothing
        for variable in getattr(layer, which):
            *places, leaf = str(variable.path).removeprefix(whole).split("/")
            found[".".join([*places, _NAMES.get(leaf, leaf)])] = variable.value
    return found


def load(targets: dict[str, tf.Variable], params: Arrays) -> None:
    """Copy canonical `params` into the variables. Raises KeyError or ValueError if names or shapes do not match."""
    if targets.keys() != params.keys():
        raise KeyError(f"variables {sorted(targets)} cannot take arrays named {sorted(params)}: give one of each name")
    for name, variable in targets.items():
        variable.assign(params[name].astype(variable.dtype.as_numpy_dtype))


def parameters(tensors: dict[str, tf.Variable] | dict[str, tf.Tensor]) -> Arrays:
    """NumPy arrays of variables or gradients."""
    return {name: tensor.numpy() for name, tensor in tensors.items()}
