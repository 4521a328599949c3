"""A training state as arrays by name, and back: what a checkpoint holds.

"model/<canonical parameter>" and "running/<layer>.mean" or ".var" mean the same in every framework. The rest is
"optimizer/": Optax's state by its paths ("optimizer/0/trace/fc1/kernel") and, under "optimizer/running/", the running
statistics of each device where these have their own.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from harness.contract import Arrays
from jax_impl import weights
from jax_impl.training import State

OWN = "optimizer/"  # before the name of running statistics: each device's own


def save(state: State, *, own_statistics: bool) -> Arrays:
    """All of a state. "running/" is the mean over the devices where these have statistics of their own."""
    leaves = jax.tree.leaves_with_path(state)
    # a copy: on CPU devices np.asarray is a view, and while it lives JAX does not donate that memory to the next step
    found = {_name(path): np.array(leaf) for path, leaf in leaves}
    if own_statistics:
        own = {name: array for name, array in found.items() if name.startswith("running/")}
        found |= {OWN + name: array for name, array in own.items()}
        found |= {name: array.mean(0) for name, array in own.items()}
    return found


def load(new: State, given: Arrays) -> State:
    """The state `new` with what is given in its place: without "optimizer/" the optimizer stays new, and without
    "running/" the statistics. Raises ValueError for an array that is missing or has the wrong shape."""
    whole = any(name.startswith("optimizer/") for name in given)

    def leaf(path: Any, new: Any) -> Any:
        name = _name(path)
        if name.startswith("running/"):
            if name not in given:
                return new
            # another strategy's are one for all devices
            array = given.get(OWN + name, np.broadcast_to(given[name], new.shape))
        elif name in given:
            array = given[name]
        elif name.startswith("optimizer/") and not whole:
            return new
        else:
            raise ValueError(f"the state lacks {name}: it is of another network, optimizer or strategy")
        if array.shape != new.shape:
            raise ValueError(f"{name} of the state has shape {array.shape}, here it must have {new.shape}")
        return np.array(array, new.dtype)

    return jax.tree.map_with_path(leaf, new)


def _name(path: Any) -> str:
    field, *rest = [jax.tree_util.keystr((key,), simple=True) for key in path]
    if field == "params":
        return f"model/{weights.canonical_name(*rest)}"
    return f"running/{'.'.join(rest)}" if field == "batch_stats" else f"optimizer/{'/'.join(rest)}"
