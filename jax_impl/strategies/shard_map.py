"""jax.shard_map: the step of one device, written by hand, on global arrays under jit.

The parameters are one array with a copy on every device; the batch is one array, split by sample across the devices.
Inside shard_map the step sees its device's copy and its device's samples, as under pmap. `pmean` averages the gradients
by all-reduce, where all devices wait for each other, and all devices make the same update. BatchNorm sees its own
device's samples. Each device has its own running statistics, stacked along a leading axis.

    device 0 | F | B of the last layers | B of the first layers |            | update
    device 1 | F | B of the last layers | B of the first layers |            | update      F forward, B backward
    links    |                                                  | all-reduce |

shard_map knows which values vary over the devices, and checks it (`check_vma`): what `out_specs` calls equal on all
devices must be so, or the program does not compile. Parameters are equal everywhere. If the step took its gradient with
respect to them, JAX would sum the devices' gradients itself, because every device uses the same parameter. A `pmean` of
equal sums changes nothing, and with n devices every update would be n times too large. So `pcast` first makes the
parameters this device's own, as far as JAX knows: their gradients are then its own as well, and `pmean` averages them.
"""

from __future__ import annotations

import jax
import optax
from jax.sharding import NamedSharding, PartitionSpec

from harness.contract import Arrays, Job
from jax_impl import optim, placement, weights
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
        batch_stats = placement.entry(state.batch_stats)
        own = jax.lax.pcast(state.params, AXIS, to="varying")  # or JAX sums their gradients over the devices
        (loss, batch_stats), gradients = value_and_grad(own, batch_stats, x, y)
        loss, gradients = pmean((loss, gradients), AXIS)  # once, however many accumulation steps there are
        updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return TrainState(params, opt_state, placement.as_entry(batch_stats)), loss

    return step


class ShardMap(SeveralSteps):
    def __init__(self, job: Job) -> None:
        super().__init__(job, own_statistics=True)
        self.mesh = placement.mesh(job)
        everywhere, samples = PartitionSpec(), placement.sample_spec(job)
        state = TrainState(params=everywhere, opt_state=everywhere, batch_stats=PartitionSpec(AXIS))
        self.shardings = TrainState(*(NamedSharding(self.mesh, spec) for spec in state))
        self.by_sample = NamedSharding(self.mesh, samples)
        self.held = self.spread(self.initial())
        on_all_devices = jax.shard_map(
            make_step(job),
            mesh=self.mesh,
            in_specs=(state, samples, samples),
            out_specs=(state, everywhere),
        )
        self.compiled = jax.jit(on_all_devices, donate_argnums=0)
        self.compiled_steps = jax.jit(scanned(on_all_devices), donate_argnums=0)
        evaluate = make_evaluation(job, own_statistics=True)
        self.evaluation = jax.jit(evaluate, out_shardings=NamedSharding(self.mesh, everywhere))

    def spread(self, whole: TrainState) -> TrainState:
        return jax.device_put(whole, self.shardings)

    def put(self, batch: Arrays) -> tuple[jax.Array, jax.Array]:
        return jax.device_put(placement.parts(batch, self.job), self.by_sample)

    def export(self) -> list[Arrays]:
        return weights.of_each_device(self.held.params, self.mesh.size)


def build(job: Job) -> ShardMap:
    return ShardMap(job)
