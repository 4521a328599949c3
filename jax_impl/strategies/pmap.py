"""jax.pmap: one program, mapped over the devices by one process.

Every array has a leading axis with one entry a device: the state holds an equal copy on each, the batch (devices,
batch / devices, ...) a different part on each. All devices run the shared step on their own entry; `pmean` averages
their gradients by all-reduce, so that all make the same update and the copies stay equal. The compiled program holds
the all-reduce, so XLA may overlap it with the rest of backward; all devices wait for each other there.

JAX keeps pmap in maintenance: shard_map is its successor. It is here because most existing code uses it.
"""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from harness.contract import Arrays, Job
from jax_impl import placement, runtime, training, weights
from jax_impl.placement import AXIS
from jax_impl.program import Program
from jax_impl.training import State


class Pmap(Program):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.devices = runtime.devices(job.world)
        self.one_entry_each = NamedSharding(placement.mesh(job), PartitionSpec(AXIS))
        self.held = self.spread(self.initial())
        step, evaluate = training.make_step(job, axis_name=AXIS), training.make_evaluation(job, axis_name=AXIS)
        # the metrics are averaged already, and equal everywhere: they come back without the leading axis
        self.compiled = jax.pmap(step, axis_name=AXIS, devices=self.devices, donate_argnums=0, out_axes=(0, None))
        self.evaluation = jax.pmap(evaluate, axis_name=AXIS, devices=self.devices, out_axes=None)

    def has_own_statistics(self) -> bool:
        return True

    def spread(self, whole: State) -> State:
        params, opt_state = placement.stacked((whole.params, whole.opt_state), len(self.devices))
        return jax.device_put(State(params, opt_state, whole.batch_stats), self.one_entry_each)

    def whole(self) -> State:
        params, opt_state = placement.entry((self.held.params, self.held.opt_state))  # the copies are equal
        return State(params, opt_state, self.held.batch_stats)

    def put(self, batch: Arrays) -> tuple[jax.Array, jax.Array]:
        x, y = jax.device_put([self.cut(array) for array in training.parts(batch, self.job)], self.one_entry_each)
        return x, y

    def cut(self, array: np.ndarray) -> np.ndarray:
        """(devices, batch / devices, ...), or (devices, accumulation steps, ...): each device has a part of each."""
        count = len(self.devices)
        if self.job.accumulation_steps == 1:
            return array.reshape(count, -1, *array.shape[1:])
        return array.reshape(self.job.accumulation_steps, count, -1, *array.shape[2:]).swapaxes(0, 1)

    def export(self) -> list[Arrays]:
        replicas = jax.device_get(self.held.params)
        return [weights.parameters(jax.tree.map(lambda a, i=i: a[i], replicas)) for i in range(len(self.devices))]


def build(job: Job) -> Pmap:
    return Pmap(job)
