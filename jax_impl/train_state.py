"""The training state as one immutable tree: what is in it, how it begins, and how a checkpoint holds it.

Only JAX needs this room. Its step is a pure function, which takes the whole state and returns a new one.

A checkpoint holds arrays by name. "model/<canonical parameter>", "running/<layer>.mean" and "running/<layer>.var" mean
the same in every framework. All other names begin with "optimizer/". They are the paths of Optax's state
("optimizer/0/trace/fc1/kernel") and, under "optimizer/running/", the running statistics of each device if the devices
have their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from harness.contract import Arrays, Job
from jax_impl import models, optim, runtime, weights

OWN = "optimizer/"  # prefix of the name of running statistics that each device has for itself


class TrainState(NamedTuple):
    """All that training changes. Its fields may also hold one sharding, or one spec, for everything below them."""

    params: Any  # weights.Params
    opt_state: Any  # Optax's
    batch_stats: Any  # running statistics of BatchNorm; {} without BatchNorm


Step = Callable[[TrainState, jax.Array, jax.Array], tuple[TrainState, jax.Array]]
"""(state, x, y) to the updated state and the loss."""


def initial(job: Job, *, own_statistics: bool = False) -> TrainState:
    """The job's weights and a fresh optimizer state, in host memory: no device need ever hold all of them.

    `own_statistics`: each device has its own running statistics. They have a leading axis with one entry per device.
    """
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        return jax.tree.map(np.array, _initial(job, own_statistics=own_statistics))


def _initial(job: Job, *, own_statistics: bool) -> TrainState:
    """The same on the default device."""
    dtype = runtime.DTYPES[job.precision]
    params = weights.load(job.params, dtype)
    sample = jnp.zeros((1, *job.workload.input_shape), dtype)
    # shapes only: the weights are given, so none need be drawn
    model = models.build(job.workload, precision=job.precision)
    shapes = jax.eval_shape(model.init, jax.random.key(0), sample)
    # As in torch, running means begin at 0 and running variances at 1. The dtype is not Flax's own, which is float32 at
    # first and float64 after a float64 step: the step would be compiled twice, and a scan refuses such a change.
    start = {"mean": jnp.zeros, "var": jnp.ones}
    axes = (job.world.devices,) if own_statistics else ()
    stats = {
        layer: {name: start[name]((*axes, *leaf.shape), dtype) for name, leaf in leaves.items()}
        for layer, leaves in shapes.get("batch_stats", {}).items()
    }
    return TrainState(params, optim.build(job.optimizer).init(params), stats)


def save(state: TrainState, *, own_statistics: bool) -> Arrays:
    """The whole state. If the devices have their own running statistics, "running/" is the mean over them."""
    leaves = jax.tree.leaves_with_path(state)
    # np.array copies: on CPU devices np.asarray is a view, and JAX does not donate memory while a view exists.
    found = {_name(path): _wide(np.array(copied_on_devices(leaf))) for path, leaf in leaves}
    if own_statistics:
        own = {name: array for name, array in found.items() if name.startswith("running/")}
        found |= {OWN + name: array for name, array in own.items()}
        found |= {name: array.mean(0) for name, array in own.items()}
    return found


def _wide(array: np.ndarray) -> np.ndarray:
    """NumPy's own files hold no bfloat16. Each of its values is one of float32."""
    return array.astype(np.float32) if array.dtype == jnp.bfloat16 else array


def copied_on_devices(array: Any) -> Any:
    """The same values in a new array on the same devices. Reading it leaves no copy of `array` in host memory.

    A JAX array keeps what was read of it, and a second reading would not wait for the devices: the worker measures what
    `sync` left undone by reading the state twice.
    """
    return array.copy()


def load(new: TrainState, given: Arrays) -> TrainState:
    """The state `new` with the given arrays in place of its own.

    If nothing under "optimizer/" is given, the optimizer stays new; if nothing under "running/", so do the running
    statistics. Raises ValueError for an array that is missing or has the wrong shape.
    """
    whole = any(name.startswith("optimizer/") for name in given)

    def leaf(path: Any, new: Any) -> Any:
        name = _name(path)
        if name.startswith("running/"):
            if name not in given:
                return new
            # another strategy may have one set of statistics for all devices
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
