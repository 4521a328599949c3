"""A pipeline as one program for all devices: shard_map, a scan over ticks, activations passed on by ppermute.

Each device holds one stage. The batch is cut into m equal micro-batches; in each tick every stage takes the micro-batch
that the stage before it finished a tick ago (GPipe: Huang et al. 2019, arXiv:1811.06965), and jax.grad turns the
scan round: the ticks run backwards, and what ppermute sent on now comes back as a gradient.

    3 stages, 4 micro-batches          forward                    backward
    device 0 | F0 | F1 | F2 | F3 |    |    |    |    | B3 | B2 | B1 | B0 |
    device 1 |    | F0 | F1 | F2 | F3 |    |    | B3 | B2 | B1 | B0 |
    device 2 |    |    | F0 | F1 | F2 | F3 | B3 | B2 | B1 | B0 |

With p equal stages a device works in m of m + p - 1 ticks; the rest is the bubble, (p - 1) / (m + p - 1). In every
tick neighbours wait for each other in the ppermute, so a tick lasts as long as the slowest stage. At the end the loss,
one number, is summed over the devices; gradients and optimizer state never leave their stage.

One program means that every array has one shape on all devices, though stages differ. So each stage's parameters lie
flat in one row, padded to the longest (balance by "parameters" keeps the padding small), and what is passed on is flat
and padded to the largest activation at a cut: padding costs memory, and bandwidth at the smaller cuts. lax.switch picks
the device's own stage, by a true branch: no device computes another's stage, and none computes in the bubble. But every
device's program holds all stages, and every device gets the batch though only the ends look at it. Backward keeps each
tick's input and runs its forward again (jax.checkpoint; so does GPipe): otherwise the switch would keep, in every tick,
room for the intermediate values of all stages. BatchNorm sees one micro-batch at a time.

XLA's CPU compiler makes convolutions inside a loop or a switch some twenty times slower than outside (four of
mnist_cnn's second one with their gradients on one core: 6 ms unrolled, 116 ms in a scan), so on CPU devices this file
is slow for a reason that is not its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jax.sharding import NamedSharding, PartitionSpec

from harness.contract import Arrays, Job
from harness.spec import partition
from jax_impl import losses, optim, placement, runtime, stages, weights
from jax_impl.placement import AXIS
from jax_impl.program import Program
from jax_impl.train_state import Metrics, Step, TrainState


class Rows(NamedTuple):
    """Trees, one for each stage, as the rows of one array: flat, and padded with zeros."""

    array: np.ndarray
    unflatten: list[Callable[[jax.Array], Any]]  # a padded row to its stage's tree

    def tree(self, array: np.ndarray) -> dict[str, Any]:
        """All stages' layers, from rows like these."""
        return stages.joined(*(unflatten(row) for unflatten, row in zip(self.unflatten, array, strict=True)))


class Pipeline(Program):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.mesh = placement.mesh(job)
        points = stages.cut_points(job)
        self.cut_after = partition.cut_text(points, job.workload.blocks)
        self.stages = stages.split(job, points)
        whole = self.initial()
        self.params, self.batch_stats = self.rows(whole.params), self.rows(whole.batch_stats)
        self.input_shapes = self.find_input_shapes()
        self.replicated = NamedSharding(self.mesh, PartitionSpec())
        self.by_stage = NamedSharding(self.mesh, PartitionSpec(AXIS))
        self.held = self.spread(whole)
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self.held)
        self.compiled = jax.jit(self.make_step(), out_shardings=(shardings, None), donate_argnums=0)
        self.evaluation = jax.jit(lambda *given: self.through_all(*given, inference=True)[0])

    def rows(self, tree: dict[str, Any]) -> Rows:
        """A tree by layers as one row for each stage."""
        return as_rows([stage.own(tree) for stage in self.stages])

    def spread(self, whole: TrainState) -> TrainState:
        laid = stages.map_trees(lambda tree: self.rows(tree).array, whole)
        # what the optimizer keeps for each parameter lies with it; its counter is everywhere
        return jax.tree.map(lambda a: jax.device_put(a, self.by_stage if np.ndim(a) == 2 else self.replicated), laid)

    def whole(self) -> TrainState:
        params, opt_state, batch_stats = jax.device_get(self.held)
        opt_state = jax.tree.map(lambda a: self.params.tree(a) if a.ndim == 2 else a, opt_state)
        return TrainState(self.params.tree(params), opt_state, self.batch_stats.tree(batch_stats))

    def make_step(self) -> Step:
        """(state, x, y) to the updated state, and the metrics."""
        value_and_grad = jax.value_and_grad(self.through_all, has_aux=True)
        optimizer = optim.build(self.job.optimizer)

        def step(state: TrainState, x: jax.Array, y: jax.Array) -> tuple[TrainState, Metrics]:
            (loss, batch_stats), gradients = value_and_grad(state.params, state.batch_stats, x, y)
            updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
            params = optax.apply_updates(state.params, updates)
            kept = gradients if self.job.keep_gradients else None
            return TrainState(params, opt_state, batch_stats), Metrics(loss, kept)

        return step

    def find_input_shapes(self) -> list[tuple[int, ...]]:
        """Of each stage's input, for one micro-batch."""
        samples = self.job.global_batch // self.job.options["micro_batches"]
        shapes = [(samples, *self.job.workload.input_shape)]
        for index in range(len(self.stages) - 1):
            x = jax.ShapeDtypeStruct(shapes[-1], runtime.DTYPES[self.job.precision])
            forward = partial(self.forward, index, inference=False)
            shapes.append(jax.eval_shape(forward, self.params.array[index], self.batch_stats.array[index], x)[0].shape)
        return shapes

    def forward(
        self, index: int, params: jax.Array, batch_stats: jax.Array, x: jax.Array, *, inference: bool
    ) -> tuple[jax.Array, Any]:
        """A stage's outputs and new running statistics, from its rows."""
        stage = self.stages[index]
        own = self.params.unflatten[index](params), self.batch_stats.unflatten[index](batch_stats)
        return (stage.infer if inference else stage.forward)(*own, x)

    def through_all(self, *given: Any, inference: bool = False) -> tuple[jax.Array, Any]:
        """(params, batch_stats, x, y) to the loss, with accuracy in inference mode, and new running statistics."""
        stage, everywhere = PartitionSpec(AXIS), PartitionSpec()
        pipeline = jax.shard_map(
            partial(self.on_one_device, inference=inference),
            mesh=self.mesh,
            in_specs=(stage, stage, everywhere, everywhere),
            out_specs=(stage, stage),
            # the trap of shard_map.py is none here: what is differentiated, parameters, is not replicated
            check_vma=False,
        )
        by_device, batch_stats = pipeline(*given)
        return by_device.sum(0), batch_stats  # all but the last device's are 0

    def on_one_device(
        self, params: jax.Array, batch_stats: jax.Array, x: jax.Array, y: jax.Array, *, inference: bool
    ) -> Any:
        """All ticks of one device, from its rows, each (1, longest); x and y have a leading axis of micro-batches.

        Returns what it has of the loss, or of what is measured in inference mode, and its new running statistics.
        """
        stage, last, count = jax.lax.axis_index(AXIS), len(self.stages) - 1, len(x)
        work = self.make_work(x, y, inference=inference)
        work = jax.checkpoint(work, prevent_cse=False)  # a loop's ticks are kept apart anyway

        def tick(carried: tuple[jax.Array, jax.Array], number: jax.Array) -> tuple[Any, jax.Array]:
            given, batch_stats = carried
            micro_batch = number - stage
            branch = jnp.where(busy(micro_batch, count), stage + 1, 0)
            output, batch_stats, measured = work(branch, micro_batch, params[0], batch_stats, given)
            return (jax.lax.ppermute(output, AXIS, [(i, i + 1) for i in range(last)]), batch_stats), measured

        longest = max(math.prod(shape) for shape in self.input_shapes[1:])
        nothing = jnp.zeros(longest, runtime.COMPUTE_DTYPES[self.job.precision])
        (_, batch_stats), found = jax.lax.scan(tick, (nothing, batch_stats[0]), jnp.arange(count + last))
        return found.sum(0)[None] / count, batch_stats[None]

    def make_work(self, x: jax.Array, y: jax.Array, *, inference: bool) -> Callable:
        """(branch, micro-batch, ...) to one stage's work on it: branch 0 is the bubble, k + 1 stage k."""
        measure = (losses.evaluation if inference else losses.get)(self.job.workload.loss)
        nothing = jnp.zeros((2,) if inference else (), runtime.DTYPES[self.job.precision])

        def bubble(micro_batch, params, batch_stats, given):
            return jnp.zeros_like(given), batch_stats, nothing

        def work(index, micro_batch, params, batch_stats, given):
            shape = self.input_shapes[index]
            inputs = given[: math.prod(shape)].reshape(shape) if index else x[micro_batch]
            output, new_stats = self.forward(index, params, batch_stats, inputs, inference=inference)
            if new_stats:
                batch_stats = padded(ravel_pytree(new_stats)[0], len(batch_stats))
            if index < len(self.stages) - 1:
                return padded(output.ravel(), len(given)), batch_stats, nothing
            return jnp.zeros_like(given), batch_stats, measure(output, y[micro_batch])

        branches = [bubble, *(partial(work, index) for index in range(len(self.stages)))]
        return lambda branch, *given: jax.lax.switch(branch, branches, *given)

    def put(self, batch: Arrays) -> tuple[jax.Array, jax.Array]:
        count = self.job.options["micro_batches"]
        x, y = (a.reshape(count, -1, *a.shape[1:]) for a in placement.on_host(batch, self.job))
        return jax.device_put((x, y), self.replicated)

    def gradients(self) -> Arrays | None:
        return weights.parameters(self.params.tree(jax.device_get(self.metrics.gradients)))


def busy(micro_batch: jax.Array, count: int) -> jax.Array:
    """Whether a stage has work in a tick: before its first micro-batch and after its last it is in the bubble."""
    return (micro_batch >= 0) & (micro_batch < count)


def as_rows(trees: list[Any]) -> Rows:
    """Trees of one dtype as rows."""
    flat = [ravel_pytree(tree) for tree in trees]
    # at least one number: of an array without any (no BatchNorm, no statistics) jax 0.11's partitioner dies by SIGSEGV
    longest = max(1, *(len(row) for row, _ in flat))
    array = np.stack([np.asarray(padded(row, longest)) for row, _ in flat])
    return Rows(array, [partial(_unflatten, unravel, len(row)) for row, unravel in flat])


def _unflatten(unravel: Callable[[jax.Array], Any], length: int, row: jax.Array) -> Any:
    return unravel(row[:length])


def padded(row: jax.Array, length: int) -> jax.Array:
    """`row` with zeros behind it, up to `length`."""
    return jnp.pad(row, (0, length - len(row)))


def build(job: Job) -> Pipeline:
    return Pipeline(job)
