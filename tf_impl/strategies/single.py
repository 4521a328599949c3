"""One device: the whole training step is one tf.function. Every speed-up is measured against it.

Parameters, gradients, optimizer state and the whole batch live on one device, and nothing crosses to another. The first
call of the step traces this Python code into a graph; later calls run the graph. With the setting `xla`, XLA compiles
the loss and the gradients, and the update stays in the graph. With `xla_step`, XLA compiles the update, too. The tuned
track turns on both.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from harness.contract import Job
from tf_impl import models, placement, runtime
from tf_impl.program import LossAndGradients, mean_over_parts
from tf_impl.several_steps import SeveralSteps
from tf_impl.tuning import xla_if_set, xla_step_if_set


class SingleDevice(SeveralSteps):
    def __init__(self, job: Job) -> None:
        (device,) = runtime.devices(job.world)
        with tf.device(device):
            self.model = models.build(job.workload, momentum=job.statistics_momentum, settings=job.settings)
            super().__init__(job, [self.model], [device])

    @tf.function
    def train_step(self, parts: placement.Parts) -> tf.Tensor:
        return self.device_step(parts)

    @xla_step_if_set
    def device_step(self, parts: placement.Parts) -> tf.Tensor:
        # With accumulation the batch comes in several parts, and the gradient is the mean of theirs.
        loss, gradients = mean_over_parts(self.loss_and_gradients, parts)
        self.optimizer.apply(gradients)
        return loss

    @xla_if_set
    def loss_and_gradients(self, x: tf.Tensor, y: tf.Tensor) -> LossAndGradients:
        with tf.GradientTape() as tape:
            loss = self.loss_fn(self.model(x, training=True), y)
        return loss, tape.gradient(loss, self.parameters, unconnected_gradients=tf.UnconnectedGradients.ZERO)

    def to_devices(self, own: Sequence[placement.Parts]) -> placement.Parts:
        return placement.to_device(own[0], self.devices[0])


def build(job: Job) -> SingleDevice:
    return SingleDevice(job)
