"""jax.shard_map: pmap's step, on the arrays of jit: what crosses devices is written by hand, where they lie is named.

The parameters are one array with a copy on every device, the batch one array cut by samples. Inside shard_map the step
sees one device's part and its own copy, as under pmap; `pmean` averages the gradients by all-reduce, where all devices
wait for each other, and all make the same update (`make_step` in jax_impl/training.py, as for pmap). BatchNorm sees its
own device's samples, and each device has running statistics of its own: they lie as entries of a leading axis.

`check_vma=False` is meant. By default (check_vma=True) shard_map tracks which values vary over the devices, and the
gradient of a parameter that does not vary is summed over the devices by shard_map itself, since the parameter is one
and its uses are many. A `pmean` after that averages equal sums: every update is as many times too large as there are
devices, and nothing warns. Right under the default would be `jax.grad` of the pmean'ed loss, or
`jax.lax.pcast(params, axis, to="varying")` first; the former is wrong without the check, where gradients stay local.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import PartitionSpec

from harness.contract import Job
from jax_impl import placement, training
from jax_impl.placement import AXIS
from jax_impl.strategies.jit_sharding import JitSharding
from jax_impl.training import Metrics, State


class ShardMap(JitSharding):
    """Arrays lie, come and go as with jit: only the compiled step is another."""

    def has_own_statistics(self) -> bool:
        return True  # as under pmap, also where they are equal

    def compile(self) -> Any:
        step = training.make_step(self.job, axis_name=AXIS)

        def on_one_device(state: State, x: jax.Array, y: jax.Array) -> tuple[State, Metrics]:
            new, metrics = step(state._replace(batch_stats=placement.entry(state.batch_stats)), x, y)
            return new._replace(batch_stats=placement.as_entry(new.batch_stats)), metrics

        everywhere, samples = PartitionSpec(), placement.sample_spec(self.job)
        state = State(everywhere, everywhere, PartitionSpec(AXIS))  # pyright: ignore[reportArgumentType]
        mapped = jax.shard_map(
            on_one_device,
            mesh=self.mesh,
            in_specs=(state, samples, samples),
            out_specs=(state, everywhere),
            check_vma=False,
        )
        return jax.jit(mapped, donate_argnums=0)


def build(job: Job) -> ShardMap:
    return ShardMap(job)
