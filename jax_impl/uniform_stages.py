"""Unlike stages made uniform, so that one program can run on all devices of a pipeline.

In one program every array has the same shape on all devices, but stages differ. So each stage's parameters lie flat in
one row, padded with zeros to the longest row. (Balance by "parameters" keeps the padding small.) Activations that cross
devices are flat too, and padded to the largest activation at a cut. Padding costs memory, and bandwidth at the smaller
cuts.

jax.lax.switch then runs the device's own stage. It is a true branch: no device computes another device's stage, and
none computes in the bubble. But every device's program contains all stages.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from harness.contract import Job
from jax_impl import losses, runtime, stages
from jax_impl.placement import AXIS
from jax_impl.train_state import TrainState

Work = Callable[..., tuple[jax.Array, jax.Array, jax.Array]]


class Rows(NamedTuple):
    """Trees, one per stage, as the rows of one array: flat, and padded with zeros."""

    array: np.ndarray
    unflatten: list[Callable[[jax.Array], Any]]  # for each stage: a padded row to the stage's tree

    def tree(self, array: np.ndarray) -> dict[str, Any]:
        """All stages' layers, from rows like these."""
        return stages.joined(*(unflatten(row) for unflatten, row in zip(self.unflatten, array, strict=True)))


class UniformStages:
    """The stages of a job, each applied to rows. `whole`: a state whose shapes the rows take."""

    def __init__(self, job: Job, cut: list[stages.Stage], whole: TrainState) -> None:
        self.job, self.cut = job, cut
        self.params, self.batch_stats = self.rows(whole.params), self.rows(whole.batch_stats)
        self.input_shapes = self.find_input_shapes()

    def rows(self, tree: dict[str, Any]) -> Rows:
        """A tree by layers as one row per stage."""
        return as_rows([stage.own(tree) for stage in self.cut], runtime.DTYPES[self.job.precision])

    def to_rows(self, whole: TrainState) -> TrainState:
        """A state whose trees by layers are rows: of two axes, where the optimizer's counters have none."""
        return stages.map_trees(lambda tree: self.rows(tree).array, whole)

    def from_rows(self, state: TrainState) -> TrainState:
        """The state whose rows these are, as NumPy arrays."""
        params, opt_state, batch_stats = state
        # what the optimizer keeps for each parameter has rows like the parameters'
        opt_state = jax.tree.map(lambda a: self.params.tree(a) if a.ndim == 2 else a, opt_state)
        return TrainState(self.params.tree(params), opt_state, self.batch_stats.tree(batch_stats))

    def find_input_shapes(self) -> list[tuple[int, ...]]:
        """The shape of each stage's input, for one micro-batch."""
        samples = self.job.global_batch // self.job.options["micro_batches"]
        shapes = [(samples, *self.job.workload.input_shape)]
        for index in range(len(self.cut) - 1):
            x = jax.ShapeDtypeStruct(shapes[-1], runtime.DTYPES[self.job.precision])
            forward = partial(self.forward, index, inference=False)
            shapes.append(jax.eval_shape(forward, self.params.array[index], self.batch_stats.array[index], x)[0].shape)
        return shapes

    def no_activation(self) -> jax.Array:
        """Zeros in the shape of what crosses devices."""
        longest = max(math.prod(shape) for shape in self.input_shapes[1:])
        return varying(jnp.zeros(longest, runtime.COMPUTE_DTYPES[self.job.precision]))

    def forward(
        self, index: int, params: jax.Array, batch_stats: jax.Array, x: jax.Array, *, inference: bool
    ) -> tuple[jax.Array, Any]:
        """A stage's outputs and new running statistics, from its rows."""
        stage = self.cut[index]
        own = self.params.unflatten[index](params), self.batch_stats.unflatten[index](batch_stats)
        return (stage.infer if inference else stage.forward)(*own, x)

    def make_work(self, x: jax.Array, y: jax.Array, *, inference: bool) -> Work:
        """(branch, micro_batch, params, batch_stats, received) to the work of one stage on one micro-batch.

        Branch 0 is the bubble, branch k + 1 is stage k. `params`, `batch_stats`: the stage's rows. `received`: the flat
        activation from the previous stage; the first stage takes its samples from x, (micro-batches, samples, ...).
        Returns the flat activation for the next stage, the new statistics' row, and the last stage's loss (or, in
        inference mode, loss and accuracy) of this micro-batch, which is 0 for the others.
        """
        measure = (losses.evaluation if inference else losses.get)(self.job.workload.loss)
        nothing = varying(jnp.zeros((2,) if inference else (), runtime.DTYPES[self.job.precision]))

        def bubble(
            micro_batch: jax.Array, params: jax.Array, batch_stats: jax.Array, received: jax.Array
        ) -> tuple[jax.Array, jax.Array, jax.Array]:
            return self.no_activation(), batch_stats, nothing

        def work(
            index: int, micro_batch: jax.Array, params: jax.Array, batch_stats: jax.Array, received: jax.Array
        ) -> tuple[jax.Array, jax.Array, jax.Array]:
            shape = self.input_shapes[index]
            inputs = received[: math.prod(shape)].reshape(shape) if index else x[micro_batch]
            output, new_stats = self.forward(index, params, batch_stats, inputs, inference=inference)
            if new_stats:
                batch_stats = padded(ravel_pytree(new_stats)[0], len(batch_stats))
            if index < len(self.cut) - 1:
                return padded(output.ravel(), len(received)), batch_stats, nothing
            return self.no_activation(), batch_stats, measure(output, y[micro_batch])

        branches = [bubble, *(partial(work, index) for index in range(len(self.cut)))]
        return lambda branch, *given: jax.lax.switch(branch, branches, *given)


def as_rows(trees: list[Any], dtype: Any) -> Rows:
    """Trees of this dtype as rows. A tree may be empty."""
    flat = [ravel_pytree(tree) for tree in trees]
    # At least one number: without BatchNorm there are no statistics, and the partitioner of jax 0.11 crashes with
    # SIGSEGV on an array of size 0.
    longest = max(1, *(len(row) for row, _ in flat))
    array = np.stack([np.asarray(padded(row, longest), dtype) for row, _ in flat])
    return Rows(array, [partial(_unflatten, unravel, len(row)) for row, unravel in flat])


def varying(array: jax.Array) -> jax.Array:
    """`array`, inside of shard_map, as one that may differ from device to device, as the other branches' results do."""
    return jax.lax.pcast(array, AXIS, to="varying")


def padded(row: jax.Array, length: int) -> jax.Array:
    """`row` with zeros behind it, up to `length`."""
    return jnp.pad(row, (0, length - len(row)))


def _unflatten(unravel: Callable[[jax.Array], Any], length: int, row: jax.Array) -> Any:
    return unravel(row[:length])
