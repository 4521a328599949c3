"""jax.pmap: one step, mapped over the devices by one process.

Every array has a leading axis with one entry per device. The state has an equal copy on each device; the batch,
(devices, batch / devices, ...), has a different part on each. All devices run the step on their own entry. `pmean`
averages their gradients by all-reduce, so all devices make the same update and the copies stay equal. The all-reduce is
part of the compiled program, so XLA may overlap it with the rest of backward; all devices wait for each other there.

    (without overlap)
    device 0 | F | B of the last layers | B of the first layers |            | update
    device 1 | F | B of the last layers | B of the first layers |            | update      F forward, B backward
    links    |                                                  | all-reduce |

pmap is in maintenance mode, and shard_map is its successor: in today's JAX, pmap is itself made of jit and shard_map.
It is here because older code uses it.
"""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

from harness.contract import Arrays, Job
from jax_impl import optim, placement, runtime, weights
from jax_impl.averaging import pmean_for
from jax_impl.objective import make_evaluation, make_objective, with_accumulation
from jax_impl.placement import AXIS
from jax_impl.several_steps import SeveralSteps, scanned
from jax_impl.train_state import Step, TrainState


def make_step(job: Job) -> Step:
    """(state, x, y) of one device to its updated state, and the loss, which is equal on all devices."""
    # per_device: BatchNorm sees the device's own samples; global: it shares its statistics over the axis
    objective = make_objective(job, axis_name=AXIS if job.normalization == "global" else None)
    value_and_grad = with_accumulation(jax.value_and_grad(objective, has_aux=True), job)
    optimizer = optim.build(job.optimizer)
    pmean = pmean_for(job)  # jax.lax.pmean, or one of a single vector

    def step(state: TrainState, x: jax.Array, y: jax.Array) -> tuple[TrainState, jax.Array]:
        (loss, batch_stats), gradients = value_and_grad(state.params, state.batch_stats, x, y)
        loss, gradients = pmean((loss, gradients), AXIS)  # once, however many accumulation steps there are
        updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return TrainState(params, opt_state, batch_stats), loss

    return step


class Pmap(SeveralSteps):
    def __init__(self, job: Job) -> None:
        super().__init__(job, own_statistics=True)
        self.devices = runtime.devices(job.world)
        self.one_entry_each = NamedSharding(placement.mesh(job), PartitionSpec(AXIS))
        self.held = self.spread(self.initial())
        evaluate = make_evaluation(job, axis_name=AXIS)
        step, mapped = make_step(job), partial(jax.pmap, axis_name=AXIS, devices=self.devices)
        # losses and evaluations are averaged, and equal on all devices: they come back without the leading axis
        self.compiled = mapped(step, donate_argnums=0, out_axes=(0, None))
        self.compiled_steps = mapped(scanned(step), donate_argnums=0, out_axes=(0, None))
        self.evaluation = mapped(evaluate, out_axes=None)

    def spread(self, whole: TrainState) -> TrainState:
        params, opt_state = placement.stacked((whole.params, whole.opt_state), len(self.devices))
        return jax.device_put(TrainState(params, opt_state, whole.batch_stats), self.one_entry_each)

    def whole(self) -> TrainState:
        params, opt_state = placement.entry((self.held.params, self.held.opt_state))  # the copies are equal
        return TrainState(params, opt_state, self.held.batch_stats)

    def put(self, batch: Arrays) -> tuple[jax.Array, jax.Array]:
        x, y = jax.device_put([self.cut(array) for array in placement.parts(batch, self.job)], self.one_entry_each)
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
