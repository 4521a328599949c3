"""A pipeline as one program on all devices (SPMD): shard_map, a scan over ticks, and ppermute to pass activations on.

Each device holds one stage. The batch is cut into m equal micro-batches. In each tick every stage takes the micro-batch
that the previous stage finished one tick ago (GPipe: Huang et al. 2019, arXiv:1811.06965). jax.grad reverses the scan:
the ticks run backwards, and what ppermute sent forward comes back as a gradient.

    3 stages, 4 micro-batches          forward                    backward
    device 0 | F0 | F1 | F2 | F3 |    |    |    |    | B3 | B2 | B1 | B0 |
    device 1 |    | F0 | F1 | F2 | F3 |    |    | B3 | B2 | B1 | B0 |
    device 2 |    |    | F0 | F1 | F2 | F3 | B3 | B2 | B1 | B0 |

With p equal stages a device works in m of m + p - 1 ticks; the rest is the bubble, (p - 1) / (m + p - 1). Neighbours
wait for each other in every tick's ppermute, so a tick lasts as long as the slowest stage. At the end the loss, one
number, is summed over the devices; gradients and optimizer state never leave their stage. Every device gets the whole
batch, though only the first and the last stage look at it. BatchNorm sees one micro-batch at a time.

Backward keeps each tick's input and runs its forward again (jax.checkpoint, as GPipe does). Otherwise the scan would
store the intermediate values in every tick, with room for those of all stages. How stages of different shapes fit into
one program is explained in jax_impl/uniform_stages.py.

XLA's CPU compiler rewrites convolutions into the form that its fast kernels take only outside of loops and switches
(xla/service/cpu/conv_canonicalization.h). Gradients of convolutions inside are some twenty times slower (four copies of
mnist_cnn's second convolution with their gradients on one core: 6 ms unrolled, 116 ms in a scan). So this strategy is
slow on CPU devices for a reason that has nothing to do with pipelines. On GPUs, XLA copies the number of a switch's
branch to the host and waits for it before it launches the branch (ConditionalThunk, xla/backends/gpu/runtime). So the
host cannot run ahead of the devices in any tick, forward or backward. For stages that differ as much as those of a
convolutional network, pipeline.py is simpler and faster; one program is for deep networks of equal stages.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

from harness.contract import Arrays, Job
from harness.spec import Span, partition
from jax_impl import optim, placement, stages
from jax_impl.placement import AXIS
from jax_impl.several_steps import SeveralSteps, scanned
from jax_impl.tick_timeline import Clock
from jax_impl.train_state import Step, TrainState, copied_on_devices
from jax_impl.uniform_stages import UniformStages, varying


class PipelineSpmd(SeveralSteps):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.mesh = placement.mesh(job)
        points = stages.cut_points(job)
        self.cut_after = partition.cut_text(points, job.workload.blocks)
        whole = self.initial()
        self.stages = UniformStages(job, stages.split(job, points), whole)
        self.replicated = NamedSharding(self.mesh, PartitionSpec())
        self.by_stage = NamedSharding(self.mesh, PartitionSpec(AXIS))
        self.held = self.spread(whole)
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self.held)
        self.jit = partial(jax.jit, out_shardings=(shardings, None), donate_argnums=0)
        step = self.make_step()
        self.compiled, self.compiled_steps = self.jit(step), self.jit(scanned(step))
        self.traced: tuple[Clock, Any] | None = None
        self.evaluation = jax.jit(lambda *given: self.through_all(*given, inference=True)[0])

    def make_step(self, clock: Clock | None = None) -> Step:
        """(state, x, y) to the updated state, and the loss. Parameters are rows, one per stage. `clock` notes when
        stages work."""
        value_and_grad = jax.value_and_grad(partial(self.through_all, clock=clock), has_aux=True)
        optimizer = optim.build(self.job.optimizer)

        def step(state: TrainState, x: jax.Array, y: jax.Array) -> tuple[TrainState, jax.Array]:
            (loss, batch_stats), gradients = value_and_grad(state.params, state.batch_stats, x, y)
            updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
            params = optax.apply_updates(state.params, updates)
            return TrainState(params, opt_state, batch_stats), loss

        return step

    def through_all(self, *given: Any, inference: bool = False, clock: Clock | None = None) -> tuple[jax.Array, Any]:
        """(params, batch_stats, x, y) to the loss and the new running statistics. In inference mode, to loss and
        accuracy as one array, and the unchanged statistics."""
        stage, everywhere = PartitionSpec(AXIS), PartitionSpec()
        pipeline = jax.shard_map(
            partial(self.on_one_device, inference=inference, clock=clock),
            mesh=self.mesh,
            in_specs=(stage, stage, everywhere, everywhere),
            out_specs=(stage, stage),
        )
        by_device, batch_stats = pipeline(*given)
        return by_device.sum(0), batch_stats  # it is 0 on all devices but the last

    def on_one_device(
        self,
        params: jax.Array,
        batch_stats: jax.Array,
        x: jax.Array,
        y: jax.Array,
        *,
        inference: bool,
        clock: Clock | None,
    ) -> tuple[jax.Array, jax.Array]:
        """All ticks of one device, on its rows, each (1, longest); x and y have a leading axis of micro-batches.

        Returns this device's share of the loss (in inference mode: of loss and accuracy), and its new statistics' row.
        """
        stage, last, count = jax.lax.axis_index(AXIS), self.mesh.size - 1, len(x)
        make_work, batch = partial(self.stages.make_work, inference=inference), (varying(x), varying(y))
        if clock is None:
            work = jax.checkpoint(make_work(*batch), prevent_cse=False)  # the loop already keeps ticks apart
        else:
            work = clock.around(make_work, stage, count, *batch)

        def tick(carried: tuple[jax.Array, jax.Array], number: jax.Array) -> tuple[Any, jax.Array]:
            received, batch_stats = carried
            micro_batch = number - stage
            branch = jnp.where(busy(micro_batch, count), stage + 1, 0)  # 0 is the bubble
            output, batch_stats, measured = work(branch, micro_batch, params[0], batch_stats, received)
            sent = jax.lax.ppermute(output, AXIS, [(i, i + 1) for i in range(last)])
            return (sent, batch_stats), measured

        start = self.stages.no_activation(), batch_stats[0]
        (_, batch_stats), measured = jax.lax.scan(tick, start, jnp.arange(count + last))
        return measured.sum(0)[None] / count, batch_stats[None]

    def spread(self, whole: TrainState) -> TrainState:
        rows = self.stages.to_rows(whole)
        # each stage's row to its device, the optimizer's counters to all
        return jax.tree.map(lambda a: jax.device_put(a, self.by_stage if np.ndim(a) == 2 else self.replicated), rows)

    def whole(self) -> TrainState:
        return self.stages.from_rows(jax.device_get(jax.tree.map(copied_on_devices, self.held)))

    def put(self, batch: Arrays) -> tuple[jax.Array, jax.Array]:
        count = self.job.options["micro_batches"]
        x, y = (a.reshape(count, -1, *a.shape[1:]) for a in placement.on_host(batch, self.job))
        return jax.device_put((x, y), self.replicated)

    def trace(self, placed: tuple[jax.Array, jax.Array]) -> list[Span]:
        if self.traced is None:
            clock = Clock()
            self.traced = clock, self.jit(self.make_step(clock)).lower(self.held, *placed).compile()
        clock, step = self.traced
        clock.seen.clear()
        self.held, self.last_loss = step(self.held, *placed)
        self.sync()
        return clock.spans()


def busy(micro_batch: jax.Array, count: int) -> jax.Array:
    """Whether a stage has work in a tick. It is in the bubble before its first micro-batch and after its last."""
    return (micro_batch >= 0) & (micro_batch < count)


def build(job: Job) -> PipelineSpmd:
    return PipelineSpmd(job)
