"""What a device must do by itself under jit, where the code sees one batch and no devices.

Two variants of jit_sharding and fsdp need it: BatchNorm over each device's own samples, and gradient accumulation that
synchronizes the devices only once.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

from harness.contract import Job
from jax_impl import placement, weights
from jax_impl.objective import Objective, ValueAndGrad, make_objective, with_accumulation
from jax_impl.placement import AXIS


def with_own_statistics(objective: Objective, devices: int) -> Objective:
    """The mean of the objective over the devices' parts of the samples, each with its own BatchNorm statistics.

    The batch gets a leading axis, (devices, batch / devices, ...), and jax.vmap maps the objective over it. No sum then
    runs over the samples of several devices, except those of the loss and the gradients.
    """
    over_parts = jax.vmap(objective, in_axes=(None, 0, 0, 0))

    def mapped(params: weights.Params, batch_stats: Any, x: jax.Array, y: jax.Array) -> tuple[jax.Array, Any]:
        x, y = (array.reshape(devices, -1, *array.shape[1:]) for array in (x, y))
        losses, batch_stats = over_parts(params, batch_stats, x, y)
        return losses.mean(), batch_stats

    return mapped


def accumulation(job: Job, mesh: Mesh) -> ValueAndGrad:
    """The loop over accumulation steps on each device's own samples, and one all-reduce behind it.

    The gradients must not be summed over the devices before the last accumulation step. With Auto axes, code cannot say
    so: XLA would put an all-reduce into the loop. So the loop, and only the loop, is written for one device by
    jax.shard_map. It takes whole parameters.
    """
    own_statistics = job.normalization == "per_device"
    objective = make_objective(job, axis_name=None if own_statistics else AXIS)
    value_and_grad = with_accumulation(jax.value_and_grad(objective, has_aux=True), job)

    def on_one_device(
        params: weights.Params, batch_stats: Any, x: jax.Array, y: jax.Array
    ) -> tuple[tuple[jax.Array, Any], weights.Params]:
        if own_statistics:
            batch_stats = placement.entry(batch_stats)
        own = jax.lax.pcast(params, AXIS, to="varying")  # see strategies/shard_map.py
        (loss, batch_stats), gradients = value_and_grad(own, batch_stats, x, y)
        if own_statistics:
            batch_stats = placement.as_entry(batch_stats)
        loss, gradients = jax.lax.pmean((loss, gradients), AXIS)
        return (loss, batch_stats), gradients

    everywhere, samples = PartitionSpec(), placement.sample_spec(job)
    statistics = PartitionSpec(AXIS) if own_statistics else everywhere
    return jax.shard_map(
        on_one_device,
        mesh=mesh,
        in_specs=(everywhere, statistics, samples, samples),
        out_specs=((everywhere, statistics), everywhere),
    )
