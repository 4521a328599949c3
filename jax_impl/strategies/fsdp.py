"""Fully sharded data parallelism by jit: parameters, gradients and optimizer state are cut over the devices as well.

Each tensor is cut along its largest dimension that the number of devices divides. A tensor without such a dimension (a
bias of 10 on 4 devices) stays whole on every device. The batch is cut by samples. In a step

    forward     each layer gathers its own parameters (all-gather), computes, and lets them go
    backward    each layer gathers its kernel again, and computes its gradients
    update      each device gets its own part of the summed gradients (reduce-scatter), and updates its own part

    device 0 |          | F 1 |          | F 2 |          | B 2 |          | B 1 |                | update
    device 1 |          | F 1 |          | F 2 |          | B 2 |          | B 1 |                | update
    links    | gather 1 |     | gather 2 |     | gather 2 |     | gather 1 |     | reduce-scatter |

This saves memory: a device keeps one part of parameters, gradients and optimizer state. It takes 1.5 times the traffic
of an all-reduce: two all-gathers and a reduce-scatter, where an all-reduce amounts to one of each. All devices wait for
each other in each of these collectives.

Nothing here communicates explicitly. Sharding constraints say where a tensor must be whole and where it is cut, and
XLA's partitioner inserts the collectives. For the gradients it writes an all-reduce of which each device keeps its
part. XLA's compiler for GPUs can make a reduce-scatter of the two; that for CPUs does not.

jax.checkpoint (nn.remat) around a layer makes backward gather again: only the layer's inputs and the parts of its
parameters are saved in forward. What backward recomputes is the gathered kernel alone. The gradient of a convolution or
a product needs its inputs and its kernel, but not its output, so the convolution is not computed a second time.
BatchNorm's gradient needs its statistics, which would have to be computed a second time. So BatchNorm's few parameters
are gathered once and kept. So are the parameters of a Flax module of one's own, which is one layer here (see
docs/own-model.md), and is not rounded.

In bf16 a convolution or a product computes with its parameters rounded to bfloat16. Each device rounds its own part
before it is gathered, which halves the bytes. The numbers are the same as if the whole tensor were rounded.

With accumulation the whole tensors are gathered once, and every device adds up whole gradients until one all-reduce
after the last accumulation step: the devices synchronize once, and pay with memory for both.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import optax
from flax import linen as nn
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from harness.contract import Arrays, Job
from jax_impl import global_arrays, models, optim, per_device, placement, runtime, weights
from jax_impl.objective import make_evaluation, make_objective
from jax_impl.placement import AXIS
from jax_impl.several_steps import SeveralSteps, scanned
from jax_impl.train_state import Step, TrainState


def make_step(job: Job, mesh: Mesh, cuts: Any) -> Step:
    """(state, x, y) to the updated state, and the loss. `cuts`: the sharding of each parameter."""
    layer = gathering(job, mesh, again_in_backward=job.options["reshard_after_forward"])
    objective, optimizer = make_objective(job, layer=layer), optim.build(job.optimizer)
    if job.normalization == "per_device":
        objective = per_device.with_own_statistics(objective, mesh.size)
    value_and_grad = jax.value_and_grad(objective, has_aux=True)
    if job.accumulation_steps > 1:
        value_and_grad = per_device.accumulation(job, mesh)  # it takes whole tensors, so XLA gathers them before it

    def step(state: TrainState, x: jax.Array, y: jax.Array) -> tuple[TrainState, jax.Array]:
        (loss, batch_stats), gradients = value_and_grad(state.params, state.batch_stats, x, y)
        gradients = jax.lax.with_sharding_constraint(gradients, cuts)
        # the optimizer state is cut in the same way: each device updates its own parts
        updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return TrainState(params, opt_state, batch_stats), loss

    return step


def gathering(job: Job, mesh: Mesh, *, again_in_backward: bool) -> models.Layer:
    """Makes layers of which each device holds a part, and which gather their parameters when they use them.

    With `again_in_backward` the gathered kernels are not kept from forward to backward.
    """
    whole, dtype = NamedSharding(mesh, PartitionSpec()), runtime.COMPUTE_DTYPES[job.precision]

    def layer(kind: Any) -> Any:
        has_kernel = issubclass(kind, nn.Conv | nn.Dense)
        each = partial(gather, whole=whole, dtype=dtype if has_kernel else None)  # BatchNorm computes in float32
        gathered = nn.map_variables(kind, "params", lambda params: jax.tree.map(each, params))
        return nn.remat(gathered) if again_in_backward and has_kernel else gathered

    return layer


def gather(part: jax.Array, whole: NamedSharding, dtype: DTypeLike | None) -> jax.Array:
    """The whole tensor on every device, rounded to a number format if one is given."""
    if dtype is not None and dtype != part.dtype:
        cut = NamedSharding(whole.mesh, largest_dim(part.shape, whole.mesh.size))
        part = jax.lax.with_sharding_constraint(part.astype(dtype), cut)  # else XLA would gather first, and then round
    return jax.lax.with_sharding_constraint(part, whole)


def largest_dim(shape: tuple[int, ...], devices: int) -> PartitionSpec:
    """Cut along the largest dimension that `devices` divides (of equal ones, the first); not at all if there is
    none."""
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
        layer = gathering(job, self.mesh, again_in_backward=False)
        evaluate = make_evaluation(job, own_statistics=self.own_statistics, layer=layer)
        self.evaluation = jax.jit(evaluate, out_shardings=replicated)

    def spread(self, whole: TrainState) -> TrainState:
        return global_arrays.spread(whole, self.shardings)

    def whole(self) -> TrainState:
        return global_arrays.gathered(self.held)

    def put(self, batch: Arrays) -> tuple[jax.Array, jax.Array]:
        return global_arrays.joined(placement.parts(batch, self.job), self.by_sample)

    def export(self) -> list[Arrays]:
        return weights.of_each_device(global_arrays.gathered(self.held.params), self.job.world.local_devices)


def build(job: Job) -> FSDP:
    return FSDP(job)
