"""jax.jit over sharded arrays: the single-device program, made parallel by XLA's partitioner.

The parameters are one array with a copy on every device; the batch is one array, split by sample across the devices.
The step is that of a single device, word for word. XLA divides the computation according to where the arrays lie. It
puts an all-reduce wherever a sum runs over the samples of several devices: in the gradients, in the loss, and in
BatchNorm's statistics, which are therefore those of the whole batch. All devices wait for each other in each
all-reduce.

    device 0 | F             | B             |            | update
    device 1 | F             | B             |            | update      F forward, B backward
    links    | BatchNorm's   | BatchNorm's   | gradients' |             all-reduces

The mesh's axis is Auto: XLA decides. jax.make_mesh makes Explicit ones by default (jit_explicit.py).

Two variants need to know about devices: BatchNorm statistics per device, and gradient accumulation. They are in
jax_impl/per_device.py.
"""

from __future__ import annotations

import jax
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from harness.contract import Arrays, Job
from jax_impl import global_arrays, optim, per_device, placement, weights
from jax_impl.objective import make_evaluation, make_objective
from jax_impl.placement import AXIS
from jax_impl.several_steps import SeveralSteps, scanned
from jax_impl.train_state import Step, TrainState


def make_step(job: Job, mesh: Mesh) -> Step:
    """(state, x, y) to the updated state, and the loss. All arrays are global."""
    objective, optimizer = make_objective(job), optim.build(job.optimizer)
    if job.normalization == "per_device":
        objective = per_device.with_own_statistics(objective, mesh.size)
    value_and_grad = jax.value_and_grad(objective, has_aux=True)
    if job.accumulation_steps > 1:
        value_and_grad = per_device.accumulation(job, mesh)

    def step(state: TrainState, x: jax.Array, y: jax.Array) -> tuple[TrainState, jax.Array]:
        (loss, batch_stats), gradients = value_and_grad(state.params, state.batch_stats, x, y)
        updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return TrainState(params, opt_state, batch_stats), loss

    return step


class JitSharding(SeveralSteps):
    def __init__(self, job: Job) -> None:
        super().__init__(job, own_statistics=job.normalization == "per_device")
        self.mesh = placement.mesh(job)
        replicated = NamedSharding(self.mesh, PartitionSpec())
        by_device = NamedSharding(self.mesh, PartitionSpec(AXIS))
        self.by_sample = NamedSharding(self.mesh, placement.sample_spec(job))
        statistics = by_device if self.own_statistics else replicated
        self.shardings = TrainState(params=replicated, opt_state=replicated, batch_stats=statistics)
        self.held = self.spread(self.initial())
        step = make_step(job, self.mesh)
        # without out_shardings XLA might shard the new state differently
        self.compiled = jax.jit(step, out_shardings=(self.shardings, replicated), donate_argnums=0)
        self.compiled_steps = jax.jit(scanned(step), out_shardings=(self.shardings, replicated), donate_argnums=0)
        evaluate = make_evaluation(job, own_statistics=self.own_statistics)
        self.evaluation = jax.jit(evaluate, out_shardings=replicated)

    def spread(self, whole: TrainState) -> TrainState:
        return global_arrays.spread(whole, self.shardings)

    def whole(self) -> TrainState:
        return global_arrays.gathered(self.held)

    def put(self, batch: Arrays) -> tuple[jax.Array, jax.Array]:
        return global_arrays.joined(placement.parts(batch, self.job), self.by_sample)

    def export(self) -> list[Arrays]:
        return weights.of_each_device(self.held.params, self.job.world.local_devices)


def build(job: Job) -> JitSharding:
    return JitSharding(job)
