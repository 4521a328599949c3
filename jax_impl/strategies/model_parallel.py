"""Model parallelism by hand: the layers are cut into stages, one per device; the whole batch visits them in turn.

    device 0 | F0 |    |    | B0 |          F forward, B backward; one device works, the others wait
    device 1 |    | F1 | B1 |    |

Each device holds the parameters, gradients and optimizer state of its own stage, so a network can be larger than one
device's memory. That is the gain. There is no gain in speed: activations cross to the next device in forward, their
gradients cross back in backward, and only one device works at any time. BatchNorm sees the whole batch.

A jitted program lives on one set of devices, so each stage is compiled by itself, and Python moves the arrays between
stages. A stage's forward returns the pullback of jax.vjp, which is a tree of arrays like any other result of jit. It
holds the results of convolutions and matrix products; backward computes the rest again from these and the stage's
parameters (stages.KEPT). Calls return at once and each device works through its own queue; a copy to the next
device orders the two queues.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from harness.contract import Arrays, Job
from harness.spec import Span
from jax_impl import losses, placement, timeline
from jax_impl.staged import StagedProgram


class ModelParallel(StagedProgram):
    def __init__(self, job: Job) -> None:
        super().__init__(job)  # self.stages[i] has its programs and its state on its own device
        self.loss_and_gradient = jax.jit(jax.value_and_grad(losses.get(job.workload.loss)))

    def put(self, batch: Arrays) -> tuple[jax.Array, jax.Array]:
        x, y = placement.on_host(batch, self.job)
        # targets wait on the device that computes the loss
        return jax.device_put(x, self.stages[0].device), jax.device_put(y, self.stages[-1].device)

    def step(self, placed: tuple[jax.Array, jax.Array]) -> jax.Array:
        x, y = placed
        pullbacks: list[Any] = []
        for index, stage in enumerate(self.stages):
            held = self.held[index]
            x = jax.device_put(x, stage.device)
            x, pullback, batch_stats = stage.forward(held.params, held.batch_stats, x)
            pullbacks.append(pullback)
            self.held[index] = held._replace(batch_stats=batch_stats)

        loss, dy = self.loss_and_gradient(x, y)

        gradients: list[Any] = []
        for held, stage in zip(reversed(self.held), reversed(self.stages), strict=True):
            dy = jax.device_put(dy, stage.device)
            own, *dx = stage.backward(held.params, pullbacks.pop(), dy)
            gradients.insert(0, own)
            dy = dx[0] if dx else None  # the first stage has no gradient to pass on

        self.update(gradients)  # each stage its own
        self.last_loss = loss
        return loss

    def evaluate(self, placed: tuple[jax.Array, jax.Array]) -> tuple[float, float]:
        x, y = placed
        loss, accuracy = np.asarray(self.evaluation(self.infer(x), y))
        return float(loss), float(accuracy)

    def trace(self, placed: tuple[jax.Array, jax.Array]) -> list[Span]:
        return timeline.trace(self, placed)


def build(job: Job) -> ModelParallel:
    return ModelParallel(job)
