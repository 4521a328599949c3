"""Global arrays over the devices of one process or of several, as on several hosts.

Every process sees the whole array, its shape and its sharding, but holds only the parts on its own devices.
"""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding

Tree = TypeVar("Tree")


def spread(tree: Tree, shardings: Any) -> Tree:
    """Arrays that every process has on its host, as global arrays: each process copies the parts of its own devices.

    `shardings`: a tree of them, or of one for several arrays.
    """
    if jax.process_count() == 1:
        return jax.device_put(tree, shardings)

    def of_array(array: Any, sharding: NamedSharding) -> jax.Array:
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    return jax.tree.map(of_array, tree, jax.tree.broadcast(shardings, tree))


def joined(own: tuple[np.ndarray, np.ndarray], sharding: NamedSharding) -> tuple[jax.Array, jax.Array]:
    """The global inputs and targets of which this process has its own rows. Nothing moves between processes."""
    if jax.process_count() == 1:
        return jax.device_put(own, sharding)
    x, y = (jax.make_array_from_process_local_data(sharding, array) for array in own)
    return x, y


def gathered(tree: Tree) -> Tree:
    """The tree with whole arrays in place of those whose parts are on devices of other processes. A collective."""

    def of_array(array: Any) -> Any:
        here = not isinstance(array, jax.Array) or array.is_fully_addressable or array.is_fully_replicated
        return array if here else multihost_utils.process_allgather(array, tiled=True)

    return jax.tree.map(of_array, tree)
