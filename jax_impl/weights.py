"""Canonical weights to Flax's tree and back. The layouts are the same; only the names differ ("weight" is "kernel")."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from harness.contract import Arrays

Params = dict[str, dict[str, Any]]
_LEAVES = {"weight": "kernel", "bias": "bias"}
_NAMES = {leaf: name for name, leaf in _LEAVES.items()}


def load(params: Arrays, dtype: DTypeLike) -> Params:
    """A Flax parameter tree of jax arrays from canonical `params`."""
    tree: Params = {}
    for name, array in params.items():
        layer, _, leaf = name.rpartition(".")
        tree.setdefault(layer, {})[_LEAVES[leaf]] = jnp.asarray(array, dtype)
    return tree


def parameters(tree: Params) -> Arrays:
    """Canonical arrays from a Flax parameter tree, or from a tree of gradients."""
    return {
        f"{layer}.{_NAMES[leaf]}": np.asarray(array) for layer, leaves in tree.items() for leaf, array in leaves.items()
    }
