"""Canonical weights to Flax's tree and back. The layouts are the same; only the names differ."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from harness.contract import Arrays

Params = dict[str, dict[str, Any]]
_NAMES = {"kernel": "weight", "scale": "weight", "bias": "bias"}


def load(params: Arrays, dtype: DTypeLike) -> Params:
    """A Flax parameter tree of JAX arrays from canonical `params`."""
    tree: Params = {}
    for name, array in params.items():
        layer, _, leaf = name.rpartition(".")
        if leaf == "weight":
            leaf = "scale" if array.ndim == 1 else "kernel"  # BatchNorm's weight is Flax's scale
        tree.setdefault(layer, {})[leaf] = jnp.asarray(array, dtype)
    return tree


def parameters(tree: Params) -> Arrays:
    """Canonical arrays from a Flax parameter tree, or from a tree of gradients."""
    return {
        canonical_name(layer, leaf): np.asarray(array)
        for layer, leaves in tree.items()
        for leaf, array in leaves.items()
    }


def of_each_device(tree: Params, devices: int) -> list[Arrays]:
    """Canonical arrays as each device has them.

    A replicated array claims that all its copies are equal, and NumPy reads one of them. Only reading device by device
    shows a copy that went astray. Arrays that are cut over the devices are put together.
    """

    def on_device(array: jax.Array, index: int) -> jax.Array:
        return array.addressable_shards[index].data if array.is_fully_replicated else array

    return [parameters(jax.tree.map(lambda a, i=i: on_device(a, i), tree)) for i in range(devices)]


def canonical_name(layer: str, leaf: str) -> str:
    """The canonical name of one of Flax's parameters."""
    return ".".join(filter(None, (layer, _NAMES.get(leaf, leaf))))
