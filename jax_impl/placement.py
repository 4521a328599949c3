"""From NumPy batches to arrays on devices: number formats, the mesh of devices, and how arrays are cut over it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, PartitionSpec

from harness.contract import Arrays, Job
from jax_impl import runtime

AXIS = "devices"


def on_host(batch: Arrays, job: Job) -> tuple[np.ndarray, np.ndarray]:
    """NumPy inputs and targets in the job's number format; class labels become int32."""
    x, y = batch["x"], batch["y"]
    dtype = runtime.DTYPES[job.precision]
    return x.astype(dtype, copy=False), y.astype("int32" if y.dtype.kind == "i" else dtype, copy=False)


def parts(batch: Arrays, job: Job) -> tuple[np.ndarray, np.ndarray]:
    """A global batch as a step takes it: (batch, ...), or (accumulation steps, batch / accumulation steps, ...)."""
    x, y = on_host(batch, job)
    if job.accumulation_steps == 1:
        return x, y
    x, y = (array.reshape(job.accumulation_steps, -1, *array.shape[1:]) for array in (x, y))
    return x, y


def joined(parts: Sequence[Arrays]) -> Arrays:
    """One batch from those of several accumulation steps, which `parts` cuts again."""
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in ("x", "y")}


def mesh(job: Job, kind: AxisType = AxisType.Auto) -> Mesh:
    """All devices of the trial in a row.

    Auto: XLA chooses shardings where the code names none. Explicit: see strategies/jit_explicit.py.
    """
    devices = runtime.all_devices(job.world)
    return jax.make_mesh((len(devices),), (AXIS,), axis_types=(kind,), devices=devices)


def sample_spec(job: Job) -> PartitionSpec:
    """Cuts the arrays of `parts` over the devices by samples, within each accumulation step if there are several."""
    return PartitionSpec(AXIS) if job.accumulation_steps == 1 else PartitionSpec(None, AXIS)


def stacked(tree: Any, count: int) -> Any:
    """Every array `count` times along a new leading axis: one entry per device."""
    return jax.tree.map(lambda a: np.stack([np.asarray(a)] * count), tree)


def entry(tree: Any) -> Any:
    """The first entry of that axis. Inside jax.shard_map it is the only one: this device's own."""
    return jax.tree.map(lambda a: a[0], tree)


def as_entry(tree: Any) -> Any:
    """Inside jax.shard_map: this device's own arrays as its entry of that axis."""
    return jax.tree.map(lambda a: a[None], tree)
