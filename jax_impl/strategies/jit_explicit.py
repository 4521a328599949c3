"""Explicit sharding: where an array lies is part of its type, and JAX follows these types through the program.

The mesh's axis is Explicit (jax.make_mesh makes it so by default), where jit_sharding's is Auto. `jax.typeof` shows
"@devices" behind each dimension that is cut over the axis. In a step of 512 samples:

    x          float32[512@devices,28,28,1]      each device has its part of the samples
    kernel     float32[5,5,1,20]                 whole on every device
    outputs    float32[512@devices,10]           x decides: each device computes its own rows
    loss       float32[]                         a mean over @devices: all-reduce
    gradient   float32[5,5,1,20]                 has its kernel's type, so the devices' sums must be added: all-reduce

The step is that of jit_sharding, and so that of a single device. The collectives are the same. The difference is who
decides. With Auto axes XLA's partitioner chooses shardings when it compiles, and out_shardings must constrain it. Here
the types decide while JAX traces. They can be printed and asserted, the new state has the types of the old one, and
where two operands ask for different results, JAX raises ShardingTypeError instead of choosing. The author then says
which one is meant, with jax.reshard or an argument out_sharding. Of this step, only the gradient of gathered pooling
needs one (first_layers.py). Accumulation is by shard_map, as in jit_sharding; inside it, the axis is neither Auto nor
Explicit but Manual. (Explicit mode has types of its own for it, jax.P(reduced=...) and jax.P(unreduced=...). Up to jax
0.12 they know neither convolutions nor the addition of a bias.)

Arrays carry their mesh, so jit needs none in its context. With jax.set_mesh, jax.P could stand in place of each
NamedSharding.
"""

from __future__ import annotations

import jax
from jax.sharding import AxisType, NamedSharding

from harness.contract import Arrays, Job
from jax_impl import placement, weights
from jax_impl.objective import make_evaluation
from jax_impl.several_steps import SeveralSteps, scanned
from jax_impl.strategies.jit_sharding import make_step
from jax_impl.train_state import TrainState


class JitExplicit(SeveralSteps):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.mesh = placement.mesh(job, AxisType.Explicit)
        self.replicated = NamedSharding(self.mesh, jax.P())
        self.by_sample = NamedSharding(self.mesh, placement.sample_spec(job))
        self.held = self.spread(self.initial())
        step = make_step(job, self.mesh)
        self.compiled = jax.jit(step, donate_argnums=0)
        self.compiled_steps = jax.jit(scanned(step), donate_argnums=0)
        self.evaluation = jax.jit(make_evaluation(job))

    def spread(self, whole: TrainState) -> TrainState:
        return jax.device_put(whole, self.replicated)

    def put(self, batch: Arrays) -> tuple[jax.Array, jax.Array]:
        return jax.device_put(placement.parts(batch, self.job), self.by_sample)

    def export(self) -> list[Arrays]:
        return weights.of_each_device(self.held.params, self.mesh.size)


def build(job: Job) -> JitExplicit:
    return JitExplicit(job)
