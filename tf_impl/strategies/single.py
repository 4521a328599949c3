"""One device: the step as one tf.function. The base case that every speed-up is measured against.

Parameters, gradients and the whole batch live on one device; nothing crosses. The first call traces the Python function
into a graph; later calls run the graph, without XLA, as tf.function does by default.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from harness.contract import Arrays, Job
from tf_impl import losses, models, optim, placement, runtime, weights


class SingleDevice:
    def __init__(self, job: Job) -> None:
        self.job = job
        (self.device,) = runtime.devices(job.world)
        self.dtype = runtime.DTYPES[job.precision]
        self.loss_fn = losses.get(job.workload.loss)
        with tf.device(self.device):
            self.model = models.build(job.workload)
            self.variables = weights.variables(self.model)
            weights.load(self.variables, job.params)
            self.optimizer = optim.build(job.optimizer, list(self.variables.values()))
        self.compiled = tf.function(self.train_step)
        self.last: Any = None

    def train_step(self, x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, Any]:
        with tf.GradientTape() as tape:
            loss = self.loss_fn(self.model(x, training=True), y)
        gradients: Any = tape.gradient(loss, list(self.variables.values()))
        self.optimizer.apply(gradients)
        return loss, gradients if self.job.keep_gradients else []

    def place(self, batch: Arrays) -> tuple[tf.Tensor, tf.Tensor]:
        x, y = batch["x"], batch["y"]
        with tf.device(self.device):
            # identity: a constant made from numpy may stay in host memory until first used
            return tf.identity(placement.tensor(x, self.dtype)), tf.identity(placement.tensor(y, self.dtype))

    def step(self, placed: tuple[tf.Tensor, tf.Tensor]) -> None:
        self.last = self.compiled(*placed)

    def sync(self) -> None:
        runtime.sync(self.job.world)

    def loss(self) -> float:
        return float(self.last[0])

    def gradients(self) -> Arrays | None:
        return weights.parameters(dict(zip(self.variables, self.last[1], strict=True)))

    def export(self) -> list[Arrays]:
        return [weights.parameters(self.variables)]


def build(job: Job) -> SingleDevice:
    return SingleDevice(job)
