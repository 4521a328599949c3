"""One process per device: the program of shard_map, run by as many processes as there are devices.

Each process runs the same Python code and drives one device (JAX calls this multi-controller). jax.distributed connects
them. Then every process sees the devices of all, and makes the same global arrays over the same mesh. But it holds only
the parts on its own device:

    process 0    x[:256] and a copy of the parameters on device 0  --.
                                                                     |-- global x, 512 samples; global parameters
    process 1    x[256:] and a copy of the parameters on device 1  --'

A process reads only its own samples, and make_array_from_process_local_data joins the processes' arrays to the global
one, without moving anything. The step is that of shard_map, word for word: its pmean is an all-reduce between the
processes, where all wait for each other. Every process must call the same compiled functions in the same order.

One process for each GPU is what JAX's documentation recommends. No process launches the work of several devices, and
each has the host's cores near its GPU. It is also how a program uses several hosts.
"""

from __future__ import annotations

import jax

from harness.contract import Arrays, Job
from jax_impl import global_arrays, placement, weights
from jax_impl.strategies.shard_map import ShardMap
from jax_impl.train_state import TrainState


class MultiProcess(ShardMap):
    def spread(self, whole: TrainState) -> TrainState:
        """The global state. Each process has all of it on the host, and copies the parts of its own device."""
        return global_arrays.spread(whole, self.shardings)

    def whole(self) -> TrainState:
        """The devices' own running statistics are brought to every process. A collective."""
        return global_arrays.gathered(self.held)

    def put(self, batch: Arrays) -> tuple[jax.Array, jax.Array]:
        """The global batch, of which this process has its own rows."""
        return global_arrays.joined(placement.parts(batch, self.job), self.by_sample)

    def export(self) -> list[Arrays]:
        return weights.of_each_device(self.held.params, self.job.world.local_devices)


def build(job: Job) -> MultiProcess:
    return MultiProcess(job)
