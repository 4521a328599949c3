"""Fully sharded data parallelism by jit: parameters, gradients and optimizer state are cut over the devices as well.

Each tensor is cut along its largest dimension that the number of devices divides; one that has none (a bias of 10 on 4
devices) is kept whole by every device. So is the batch cut, by samples. In a step each device

    gathers the whole tensors (all-gather), runs forward on its samples, and lets the tensors go;
    gathers them again on the way back, and runs backward;
    gets its own part of the summed gradients (reduce-scatter), and updates its own part alone.

What it saves is memory: a device keeps one part of parameters, gradients and optimizer state. What it pays is half as
much traffic again: two gathers and a scatter, where an all-reduce is worth one of each. All devices wait for each other
in every one of them. With accumulation the whole tensors are gathered once, and every device adds up whole gradients
until one all-reduce behind the last accumulation step: the devices synchronize once, for the memory of both.

Where tensors are gathered and cut is said here, by sharding constraints. By which collectives, and when, is XLA's
choice: its CPU compiler makes the reduce-scatter an all-reduce of which each device keeps its part.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from harness.contract import Job
from jax_impl import weights
from jax_impl.placement import AXIS
from jax_impl.strategies.jit_sharding import JitSharding
from jax_impl.training import Objective, State


class FSDP(JitSharding):
    """jit_sharding with other shardings, and an objective that gathers what it needs."""

    def arrange(self, state: State) -> Any:
        cut = jax.tree.map(lambda leaf: NamedSharding(self.mesh, largest_dim(leaf.shape, self.mesh.size)), state)
        return cut._replace(batch_stats=super().arrange(state).batch_stats)

    def objective(self) -> Objective:
        of_whole = super().objective()

        def of_parts(params: weights.Params, *others: Any) -> tuple[jax.Array, Any]:
            return of_whole(self.gathered(params), *others)

        # Keep everything for the way back but the whole tensors and their casts, which would else stay from forward
        # to backward: all of them at once, in the end. (Named values and save_anything_except_these_names would not do:
        # what has the name is let go, but not the equal value that was given it.)
        again = ("sharding_constraint", "convert_element_type")
        return jax.checkpoint(of_parts, policy=lambda primitive, *_, **__: primitive.name not in again)

    def gathered(self, params: weights.Params) -> weights.Params:
        return jax.tree.map(self.gather, params, self.shardings.params)

    def gather(self, part: jax.Array, cut: NamedSharding) -> jax.Array:
        """The whole tensor; its gradient goes back cut, so that only sums of parts need cross."""
        gathered = jax.custom_vjp(lambda part: jax.lax.with_sharding_constraint(part, self.replicated))
        gathered.defvjp(
            lambda part: (jax.lax.with_sharding_constraint(part, self.replicated), None),
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


def build(job: Job) -> FSDP:
    return FSDP(job)
