"""Model parallelism by hand: the layers are cut into stages, one on each device; the whole batch visits them in turn.

    device 0 | F0 |    |    | B0 |          F forward, B backward; one device works, the others wait
    device 1 |    | F1 | B1 |    |

Each device holds its own stage's parameters, gradients and optimizer state, so a network can be larger than one
device's memory: that is what this buys. It buys no speed: activations cross to the next device on the way forward,
their gradients on the way back, and at any time one device works. BatchNorm sees the whole batch. The step is one
tf.function; TensorFlow cuts its graph at the devices' borders and puts a send and a receive at each.

Each stage has a tape of its own. Under a single tape `tf.device` would hold for the forward pass alone: operations that
a tape makes are on the device of the call to `gradient`, or, without one, mostly on device 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from harness.contract import Job
from harness.spec import partition
from tf_impl import models, placement, runtime, stages, weights
from tf_impl.training import Training


class ModelParallel(Training):
    def __init__(self, job: Job) -> None:
        devices, points = runtime.devices(job.world), stages.cut_points(job)
        self.cut_after = partition.cut_text(points, job.workload.blocks)
        super().__init__(job, models.build_stages(job.workload, points, devices), devices)

    def of_one_part(self, x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
        passes, last = [], self.stages[-1]
        for stage, device in zip(self.stages, self.devices, strict=True):
            with tf.device(device), tf.GradientTape() as tape:
                tape.watch(x)
                output = stage(x, training=True)
                if stage is last:
                    output = self.loss_fn(output, y)  # taken where the targets wait
            passes.append((stage, device, tape, x, output))
            x = output
        gradients, passed_back = [], None
        for stage, device, tape, input_, output in reversed(passes):
            parameters = list(weights.variables(stage).values())
            with tf.device(device):
                found: Any = tape.gradient(output, [input_, *parameters], output_gradients=passed_back)
            passed_back, gradients = found[0], found[1:] + gradients
        return [x, *gradients]

    def evaluate_one_part(self, x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
        for stage, device in zip(self.stages, self.devices, strict=True):
            with tf.device(device):
                x = stage(x, training=False)
        with tf.device(self.devices[-1]):
            return [self.score(x, y)]

    def put(self, own: Sequence[placement.Parts]) -> placement.Parts:
        ((x, _),) = placement.on_device(own[0], self.devices[0])
        ((_, y),) = placement.on_device(own[0], self.devices[-1])
        return ((x, y),)


def build(job: Job) -> ModelParallel:
    return ModelParallel(job)
