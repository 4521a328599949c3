"""Fully sharded data parallelism by jit: parameters, gradients and optimizer state are cut over the devices as well.

Each tensor is cut along its largest dimension that the number of devices divides. A tensor without such a dimension (a
bias of 10 on 4 devices) stays whole on every device. The batch is cut by samples. In a step each device

    gathers the whole tensors (all-gather), runs forward on its samples, and lets the tensors go;
    gathers them again in backward;
    gets its own part of the summed gradients (reduce-scatter), and updates only its own part.

This saves memory: a device keeps one part of parameters, gradients and optimizer state. It costs half as much traffic
again: two gathers and a scatter, where an all-reduce is worth one of each. All devices wait for each other in each of
them. With accumulation the whole tensors are gathered once, and every device adds up whole gradients until one
all-reduce after the last accumulation step: the devices synchronize once, and pay with memory for both.

Sharding constraints say here where tensors are gathered and cut. XLA chooses the collectives and their order: its CPU
compiler turns the reduce-scatter into an all-reduce of which each device keeps its part.
"""

from __future__ import annotations

from typing import Any

import jax
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from harness.contract import Arrays, Job
from jax_impl import optim, per_device, placement, weights
from jax_impl.objective import Objective, make_evaluation, make_objective
from jax_impl.placement import AXIS
from jax_impl.several_steps import SeveralSteps, scanned
from jax_impl.train_state import Step, TrainState


def make_step(job: Job, mesh: Mesh, cuts: Any) -> Step:
    """(state, x, y) to the updated state, and the loss. `cuts`: the sharding of each parameter."""
    objective, optimizer = make_objective(job), optim.build(job.optimizer)
    if job.normalization == "per_device":
        objective = per_device.with_own_statistics(objective, mesh.size)
    value_and_grad = jax.value_and_grad(gathering(objective, cuts), has_aux=True)
    if job.accumulation_steps > 1:
        value_and_grad = per_device.accumulation(job, mesh)  # it takes whole tensors, so XLA gathers them before it

    def step(state: TrainState, x: jax.Array, y: jax.Array) -> tuple[TrainState, jax.Array]:
        (loss, batch_stats), gradients = value_and_grad(state.params, state.batch_stats, x, y)
        # gradients and optimizer state are cut like the parameters: each device updates its own parts
        updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return TrainState(params, opt_state, batch_stats), loss

    return step


def gathering(objective: Objective, cuts: Any) -> Objective:
    """The objective of parameters that are cut: it gathers them in forward, and again in backward."""

    def of_parts(params: weights.Params, batch_stats: Any, x: jax.Array, y: jax.Array) -> tuple[jax.Array, Any]:
        return objective(jax.tree.map(gather, params, cuts), batch_stats, x, y)

    # Save everything for backward except the whole tensors and their casts. Otherwise all of them would stay in memory
    # from forward to backward. (save_anything_except_these_names does not help: it drops the named value, but not the
    # equal value from before it got the name.)
    recomputed = ("sharding_constraint", "convert_element_type")
    return jax.checkpoint(of_parts, policy=lambda primitive, *_, **__: primitive.name not in recomputed)


def gather(part: jax.Array, cut: NamedSharding) -> jax.Array:
    """The whole tensor. Its gradient is cut on the way back, so that the devices need only send sums of parts."""
    replicated = NamedSharding(cut.mesh, PartitionSpec())
    gathered = jax.custom_vjp(lambda part: jax.lax.with_sharding_constraint(part, replicated))
    gathered.defvjp(
        lambda part: (jax.lax.with_sharding_constraint(part, replicated), None),
        lambda _, gradient: (jax.lax.with_sharding_constraint(gradient, cut),),
    )
    return gathered(part)


def largest_dim(shape: tuple[int, ...], devices: int) -> PartitionSpec:
    """Cut along the largest dimension that `devices` divides, the first of equals; not at all if there is none."""
    divisible = [dim for dim, size in enumerate(shape) if size and size % devices == 0]
    if not divisible:
        return PartitionSpec()
    best = max(divisible, key=lambda dim: shape[dim])
    return PartitionSpec(*[AXIS if dim == best else None for dim in range(len(shape))])


class FSDP(SeveralSteps):
    def __init__(self, job: Job) -> None:
        super().__init__(job, own_statistics=job.normalization == "per_device")
        self.mesh = placement.mesh(job)
        replicated = NamedSharding(self.mesh, PartitionSpec())
        by_device = NamedSharding(self.mesh, PartitionSpec(AXIS))
        self.by_sample = NamedSharding(self.mesh, placement.sample_spec(job))
        state = self.initial()
        cuts = jax.tree.map(lambda leaf: NamedSharding(self.mesh, largest_dim(leaf.shape, self.mesh.size)), state)
        self.shardings = cuts._replace(batch_stats=by_device if self.own_statistics else replicated)
        self.held = self.spread(state)
        step = make_step(job, self.mesh, cuts.params)
        # without out_shardings XLA might cut the new state in another way
        self.compiled = jax.jit(step, out_shardings=(self.shardings, replicated), donate_argnums=0)
        self.compiled_steps = jax.jit(scanned(step), out_shardings=(self.shardings, replicated), donate_argnums=0)
        evaluate = make_evaluation(job, own_statistics=self.own_statistics)
        self.evaluation = jax.jit(
            lambda params, *others: evaluate(jax.tree.map(gather, params, cuts.params), *others),
            out_shardings=replicated,
        )

    def spread(self, whole: TrainState) -> TrainState:
        return jax.device_put(whole, self.shardings)

    def put(self, batch: Arrays) -> tuple[jax.Array, jax.Array]:
        return jax.device_put(placement.parts(batch, self.job), self.by_sample)

    def export(self) -> list[Arrays]:
        return weights.of_each_device(self.held.params, self.mesh.size)


def build(job: Job) -> FSDP:
    return FSDP(job)
