"""One device: the step as one tf.function. The base case that every speed-up is measured against.

Parameters, gradients and the whole batch live on one device; nothing crosses. The first call traces the Python function
into a graph; later calls run the graph, without XLA, as tf.function does by default.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from harness.contract import Job
from tf_impl import models, placement, runtime
from tf_impl.training import Training


class SingleDevice(Training):
    def __init__(self, job: Job) -> None:
        (device,) = runtime.devices(job.world)
        with tf.device(device):
            super().__init__(job, [models.build(job.workload)], [device])

    def put(self, own: Sequence[placement.Parts]) -> placement.Parts:
        return placement.on_device(own[0], self.devices[0])


def build(job: Job) -> SingleDevice:
    return SingleDevice(job)
