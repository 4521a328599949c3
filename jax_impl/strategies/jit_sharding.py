"""jax.jit over sharded arrays: the single device's program, and XLA's partitioner makes it parallel.

The parameters are one array with a copy on every device, the batch one array cut over the devices by samples; the step
is written as for one device. XLA divides the computation as the arrays lie, and puts an all-reduce wherever a sum runs
over the samples of several devices: in the gradients, in the loss, and in BatchNorm's statistics, which are those of
the whole batch for that reason. All devices wait for each other in each of these.

With per_device normalization the batch gets a second axis, (devices, batch / devices, ...), and the objective is mapped
over the first with jax.vmap: then no sum but the gradients' and the loss's crosses devices.

With accumulation the gradients must not be summed over the devices before the last of its steps, and code in which no
axis has a name cannot say "not yet": XLA would put an all-reduce into the loop. So the loop over accumulation steps,
and it alone, is written for one device (jax.shard_map, see shard_map.py), with one pmean behind it.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from harness.contract import Arrays, Job
from jax_impl import placement, training, weights
from jax_impl.placement import AXIS
from jax_impl.program import Program
from jax_impl.training import Differentiation, Objective, State


class JitSharding(Program):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.own_statistics = self.has_own_statistics()
        self.mesh = placement.mesh(job)
        self.replicated = NamedSharding(self.mesh, PartitionSpec())
        self.by_device = NamedSharding(self.mesh, PartitionSpec(AXIS))
        self.by_sample = NamedSharding(self.mesh, placement.sample_spec(job))
        state = self.initial()
        self.shardings = self.arrange(state)
        self.held = self.spread(state)
        self.compiled = self.compile()
        self.evaluation = jax.jit(self.evaluate_sharded, out_shardings=self.replicated)

    def has_own_statistics(self) -> bool:
        return self.job.normalization == "per_device"

    def spread(self, whole: State) -> State:
        return jax.device_put(whole, self.shardings)

    def arrange(self, state: State) -> Any:
        """How the state lies: shardings in the state's form, each for all that is below it."""
        statistics = self.by_device if self.own_statistics else self.replicated
        return State(self.replicated, self.replicated, statistics)  # pyright: ignore[reportArgumentType]

    def compile(self) -> Any:
        # Without out_shardings XLA would be free to hand the new state back cut otherwise.
        return jax.jit(
            training.make_step(self.job, differentiate=self.differentiation()),
            out_shardings=(self.shardings, self.replicated),
            donate_argnums=0,
        )

    def evaluate_sharded(self, params: weights.Params, batch_stats: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        """Loss and accuracy. XLA shares the samples out as in a step, and averages the devices' own statistics."""
        if self.own_statistics:
            batch_stats = jax.tree.map(lambda a: a.mean(0), batch_stats)
        return training.make_evaluation(self.job)(self.gathered(params), batch_stats, x, y)

    def gathered(self, params: weights.Params) -> weights.Params:
        """Inside a compiled program: the whole tensors."""
        return params

    def objective(self) -> Objective:
        whole = training.make_objective(self.job)
        return each_device(whole, self.mesh.size) if self.own_statistics else whole

    def differentiation(self) -> Differentiation:
        if self.job.accumulation_steps == 1:
            return training.make_differentiation(self.job, objective=self.objective())
        return self.accumulation()

    def accumulation(self) -> Differentiation:
        """The loop over accumulation steps on each device's own samples; the devices synchronize once, behind it."""
        shared = None if self.own_statistics else AXIS
        loop = training.make_differentiation(self.job, objective=training.make_objective(self.job, axis_name=shared))

        def on_one_device(state: State, x: jax.Array, y: jax.Array) -> Any:
            if self.own_statistics:
                state = state._replace(batch_stats=placement.entry(state.batch_stats))
            (loss, batch_stats), gradients = loop(state, x, y)
            if self.own_statistics:
                batch_stats = placement.as_entry(batch_stats)
            loss, gradients = jax.lax.pmean((loss, gradients), AXIS)
            return (loss, batch_stats), gradients

        everywhere, samples = PartitionSpec(), placement.sample_spec(self.job)
        statistics = PartitionSpec(AXIS) if self.own_statistics else everywhere
        state = State(everywhere, everywhere, statistics)  # pyright: ignore[reportArgumentType]
        return jax.shard_map(
            on_one_device,
            mesh=self.mesh,
            in_specs=(state, samples, samples),
            out_specs=((everywhere, statistics), everywhere),
            check_vma=False,  # pmean is written by hand
        )

    def put(self, batch: Arrays) -> tuple[jax.Array, jax.Array]:
        return jax.device_put(training.parts(batch, self.job), self.by_sample)

    def export(self) -> list[Arrays]:
        """As each device has it. A replicated array claims that its copies are equal, and is read from one of them:
        only device by device does a copy show that went astray."""

        def on_device(array: jax.Array, index: int) -> jax.Array:
            return array.addressable_shards[index].data if array.is_fully_replicated else array

        return [
            weights.parameters(jax.tree.map(lambda a, i=i: on_device(a, i), self.held.params))
            for i in range(self.mesh.size)
        ]


def each_device(objective: Objective, devices: int) -> Objective:
    """The mean of the objective over the devices' parts of the samples, each with running statistics of its own."""
    over_parts = jax.vmap(objective, in_axes=(None, 0, 0, 0))

    def mapped(params: weights.Params, batch_stats: Any, x: jax.Array, y: jax.Array) -> tuple[jax.Array, Any]:
        x, y = (array.reshape(devices, -1, *array.shape[1:]) for array in (x, y))
        losses, batch_stats = over_parts(params, batch_stats, x, y)
        return losses.mean(), batch_stats

    return mapped


def build(job: Job) -> JitSharding:
    return JitSharding(job)
