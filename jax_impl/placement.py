"""Where arrays lie: the mesh of devices, and the shardings over it."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from harness.contract import Job
from jax_impl import runtime

AXIS = "devices"


def mesh(job: Job) -> Mesh:
    """All devices of this process in a row."""
    # Mesh, not jax.make_mesh: the latter makes Explicit axes, and plain code then has to spell out shardings.
    return Mesh(np.array(runtime.devices(job.world)), (AXIS,))


def sample_spec(job: Job) -> PartitionSpec:
    """Cuts `training.parts` over the devices: the samples, of every accumulation step if there are several."""
    return PartitionSpec(AXIS) if job.accumulation_steps == 1 else PartitionSpec(None, AXIS)


def stacked(tree: Any, count: int) -> Any:
    """Every array `count` times along a new leading axis: one entry for each device."""
    return jax.tree.map(lambda a: np.stack([np.asarray(a)] * count), tree)


def entry(tree: Any) -> Any:
    """The first entry of that axis. Inside jax.shard_map it is the only one: this device's own."""
    return jax.tree.map(lambda a: a[0], tree)


def as_entry(tree: Any) -> Any:
    """Inside jax.shard_map: what this device has, as its entry of that axis."""
    return jax.tree.map(lambda a: a[None], tree)
