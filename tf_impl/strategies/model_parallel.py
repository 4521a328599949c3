"""Model parallelism by hand: the layers are cut into stages, one per device; the whole batch visits them in turn.

    device 0 | F0 |    |    | B0 |          F forward, B backward; one device works, the others wait
    device 1 |    | F1 | B1 |    |

Each device holds the parameters, gradients and optimizer state of its own stage, so the network can be larger than the
memory of one device. That is all this buys; it buys no speed. Activations cross to the next device on the way forward,
their gradients cross on the way back, and only one device works at a time. BatchNorm normalizes over the whole batch.
The step is one tf.function: TensorFlow cuts its graph at the borders between devices and puts a send and a receive at
each. With the setting `xla`, forward and backward of each stage are programs of XLA, which compiles for one device.

Each stage has a tape of its own. With a single tape, `tf.device` would hold for the forward pass only: the operations
that a tape makes are placed on the device of the call to `gradient` or, without one, mostly on device 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from harness.contract import Job
from harness.spec import partition
from tf_impl import models, placement, runtime, stages, weights
from tf_impl.several_steps import SeveralSteps
from tf_impl.tuning import xla_if_set


class ModelParallel(SeveralSteps):
    def __init__(self, job: Job) -> None:
        devices, points = runtime.devices(job.world), stages.cut_points(job)
        self.cut_after = partition.cut_text(points, job.workload.blocks)
        super().__init__(job, models.build_stages(job.workload, points, devices, settings=job.settings), devices)

    @tf.function
    def train_step(self, parts: placement.Parts) -> tf.Tensor:
        ((x, y),) = parts  # the whole batch at once: there is nothing to accumulate
        loss, passes = self.forward(x, y)
        gradients = self.backward(passes)
        self.optimizer.apply(gradients)  # updates each variable on its own device
        return loss

    def forward(self, x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, list[tuple]]:
        """The loss, and what the backward pass needs of each stage: its tape, its input and its output."""
        passes = []
        for index, device in enumerate(self.devices):
            targets = [y] if index == len(self.stages) - 1 else []
            with tf.device(device), tf.GradientTape() as tape:
                tape.watch(x)
                output = self.run_stage(index, x, *targets)
            passes.append((tape, x, output))
            x = output  # TensorFlow sends it to the next device
        return x, passes

    @xla_if_set
    def run_stage(self, index: int, x: tf.Tensor, *targets: tf.Tensor) -> tf.Tensor:
        """A stage's output, or with targets the loss: the last stage has it, on the device where the targets are."""
        stage = self.stages[index]
        if index == 0 and stage.trainable_variables:
            x = tf.stop_gradient(x)  # or XLA would compute the gradient of the images, which nobody needs
        output = stage(x, training=True)
        return self.loss_fn(output, *targets) if targets else output

    def backward(self, passes: list[tuple]) -> list[tf.Tensor]:
        """The gradients of all parameters, from the last stage to the first."""
        gradients, from_next_stage = [], None  # the last stage's output is the loss: nothing comes back to it
        for stage, device, (tape, x, output) in reversed(list(zip(self.stages, self.devices, passes, strict=True))):
            parameters = list(weights.variables(stage).values())
            with tf.device(device):
                of_x, *of_parameters = tape.gradient(
                    output,
                    [x, *parameters],
                    output_gradients=from_next_stage,
                    unconnected_gradients=tf.UnconnectedGradients.ZERO,
                )
            gradients = of_parameters + gradients
            from_next_stage = of_x
        return gradients

    def evaluate_part(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        for stage, device in zip(self.stages, self.devices, strict=True):
            with tf.device(device):
                x = stage(x, training=False)
        with tf.device(self.devices[-1]):
            return self.score(x, y)

    def to_devices(self, own: Sequence[placement.Parts]) -> placement.Parts:
        """The inputs to the first device, the targets to the last."""
        ((x, _),) = placement.to_device(own[0], self.devices[0])
        ((_, y),) = placement.to_device(own[0], self.devices[-1])
        return ((x, y),)


def build(job: Job) -> ModelParallel:
    return ModelParallel(job)
