"""A pipeline of stages, each a program of its own on its own device: micro-batches flow through them.

The layers are cut into stages, one on each device, with its parameters, gradients and optimizer state. The batch is
split into m equal `micro_batches`, or into parts of `split_size` samples, of which the last one may be smaller. (The
last batch of an epoch may have fewer than m samples; each is then a micro-batch.) Every stage takes the micro-batches
in the same order, and first all forward, then all backward (GPipe: Huang et al. 2019, arXiv:1811.06965):

    3 stages, 4 micro-batches          forward                    backward
    device 0 | F0 | F1 | F2 | F3 |    |    |    |    | B3 | B2 | B1 | B0 | update
    device 1 |    | F0 | F1 | F2 | F3 |    |    | B3 | B2 | B1 | B0 |    | update
    device 2 |    |    | F0 | F1 | F2 | F3 | B3 | B2 | B1 | B0 |    |    | update

With p equal stages a device works in m of m + p - 1 ticks; the rest is the bubble, (p - 1) / (m + p - 1). The code
below has no ticks and waits for nothing. A call of a jitted function returns at once, and each device works through its
own queue of calls; a copy to the next device orders the two queues. So while device 1 computes F0, device 0 is already
busy with F1, although Python has one plain loop. A step of p stages and m micro-batches has 2 p m calls for F and B
alone, so micro-batches must be large enough to outlast them: a call takes the host some tenths of a millisecond on CPU
devices, and took 3 to 4 ms on two H200s with ResNet-50, as long as its kernels (reports/probes/two_gpus).

Between F and B a stage keeps the pullback of jax.vjp for each micro-batch. It holds the results of convolutions and
matrix products, and B computes the rest again (stages.KEPT). The gradients of the micro-batches are added up, each
weighted by its share of the samples, so their sum is the gradient of the mean loss over the whole batch. BatchNorm sees
one micro-batch at a time. A stage waits for its next micro-batch, and in the bubble: the empty places in the figure.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from harness.contract import Arrays, Job
from harness.spec import Span, partition
from jax_impl import losses, placement, timeline
from jax_impl.staged import StagedProgram

MicroBatch = tuple[jax.Array, jax.Array]
"""Inputs on the first device, targets on the last one, where the loss is computed."""


class Pipeline(StagedProgram):
    def __init__(self, job: Job) -> None:
        super().__init__(job)  # self.stages[i] has its programs and its state on its own device
        mean_loss = losses.get(job.workload.loss)

        def weighted_loss(outputs: jax.Array, y: jax.Array, share: float) -> jax.Array:
            return share * mean_loss(outputs, y)

        # a number that is compiled in: as an argument it would be copied to the device in each call
        self.loss_and_gradient: Any = jax.jit(jax.value_and_grad(weighted_loss), static_argnums=2)
        self.total = jax.jit(lambda parts: sum(parts[1:], start=parts[0]))

    def put(self, batch: Arrays) -> list[MicroBatch]:
        x, y = placement.on_host(batch, self.job)
        size = partition.micro_batch_size(len(x), self.job.options)
        parts = [slice(start, start + size) for start in range(0, len(x), size)]
        first, last = self.stages[0].device, self.stages[-1].device
        return [(jax.device_put(x[part], first), jax.device_put(y[part], last)) for part in parts]

    def step(self, placed: list[MicroBatch]) -> jax.Array:
        samples = sum(len(x) for x, _ in placed)
        weighted, waiting = [], []
        for x, y in placed:
            outputs, pullbacks = self.forward(x)
            loss, dy = self.loss_and_gradient(outputs, y, len(x) / samples)
            weighted.append(loss)
            waiting.append((pullbacks, dy))

        gradients: list[Any] = [None] * len(self.stages)
        while waiting:
            pullbacks, dy = waiting.pop()
            self.backward(pullbacks, dy, gradients)

        self.update(gradients)  # each stage its own
        self.last_loss = self.total(weighted)
        return self.last_loss

    def forward(self, x: jax.Array) -> tuple[jax.Array, list[Any]]:
        """The outputs of a micro-batch on the last device, and each stage's pullback."""
        pullbacks = []
        for index, stage in enumerate(self.stages):
            held = self.held[index]
            x = jax.device_put(x, stage.device)
            x, pullback, batch_stats = stage.forward(held.params, held.batch_stats, x)
            pullbacks.append(pullback)
            self.held[index] = held._replace(batch_stats=batch_stats)
        return x, pullbacks

    def backward(self, pullbacks: list[Any], dy: jax.Array, gradients: list[Any]) -> None:
        """Add the gradients of a micro-batch to each stage's `gradients`, from the last stage to the first."""
        for index in reversed(range(len(self.stages))):
            stage, params, pullback = self.stages[index], self.held[index].params, pullbacks[index]
            dy = jax.device_put(dy, stage.device)
            if gradients[index] is None:
                gradients[index], *dx = stage.backward(params, pullback, dy)
            else:
                gradients[index], *dx = stage.backward_and_add(gradients[index], params, pullback, dy)
            dy = dx[0] if dx else dy  # the first stage has no gradient to pass on

    def evaluate(self, placed: list[MicroBatch]) -> tuple[float, float]:
        scores = [self.evaluation(self.infer(x), y) for x, y in placed]
        loss, accuracy = np.average(np.stack(scores), axis=0, weights=[len(x) for x, _ in placed])
        return float(loss), float(accuracy)

    def trace(self, placed: list[MicroBatch]) -> list[Span]:
        return timeline.trace_overlapping(self, placed)


def build(job: Job) -> Pipeline:
    return Pipeline(job)
