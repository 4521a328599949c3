"""jax.pmap: one program, mapped over the devices by one process.

Every array has a leading axis with one entry a device: the state holds an equal copy on each, the batch (devices,
batch / devices, ...) a different part on each. All devices run the shared step on their own entry; `pmean` averages
their gradients by all-reduce, so that all make the same update and the copies stay equal. The compiled program holds
the all-reduce, so XLA may overlap it with the rest of backward; all devices wait for each other there.

JAX keeps pmap in maintenance: shard_map is its successor. It is here because most existing code uses it.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from harness.contract import Arrays, Job
from jax_impl import placement, runtime, training, weights
from jax_impl.placement import AXIS


class Pmap:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.devices = runtime.devices(job.world)
        self.one_entry_each = NamedSharding(placement.mesh(job), PartitionSpec(AXIS))
        copies = placement.stacked(training.initial_state(job), len(self.devices))
        self.state = jax.device_put(copies, self.one_entry_each)
        step = training.make_step(job, axis_name=AXIS)
        self.compiled = jax.pmap(step, axis_name=AXIS, devices=self.devices, donate_argnums=0)
        self.metrics: Any = None

    def place(self, batch: Arrays) -> tuple[jax.Array, jax.Array]:
        by_device = [self.cut(array) for array in training.parts(batch, self.job)]
        x, y = jax.block_until_ready(jax.device_put(by_device, self.one_entry_each))  # the copies are not to be timed
        return x, y

    def cut(self, array: np.ndarray) -> np.ndarray:
        """(devices, batch / devices, ...), or (devices, accumulation steps, ...): each device has a part of each."""
        count = len(self.devices)
        if self.job.accumulation_steps == 1:
            return array.reshape(count, -1, *array.shape[1:])
        return array.reshape(self.job.accumulation_steps, count, -1, *array.shape[2:]).swapaxes(0, 1)

    def step(self, placed: tuple[jax.Array, jax.Array]) -> None:
        self.state, self.metrics = self.compiled(self.state, *placed)

    def sync(self) -> None:
        jax.block_until_ready((self.state, self.metrics))

    def loss(self) -> float:
        return float(self.metrics.loss[0])  # averaged already: every entry is the global mean

    def gradients(self) -> Arrays | None:
        return weights.parameters(jax.tree.map(lambda a: a[0], self.metrics.gradients))

    def export(self) -> list[Arrays]:
        replicas = jax.device_get(self.state.params)
        return [weights.parameters(jax.tree.map(lambda a, i=i: a[i], replicas)) for i in range(len(self.devices))]


def build(job: Job) -> Pmap:
    return Pmap(job)
