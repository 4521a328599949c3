"""Where the option `cut` cuts a network into stages."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import tensorflow as tf

from harness.contract import Job
from harness.spec import partition
from tf_impl import models, runtime

TIMED_RUNS = 3  # each block's time is the smallest of this many


def cut_points(job: Job) -> tuple[int, ...]:
    """The index of the first block of each stage after the first; there is one stage per device.

    "parameters" balances the number of parameters, "time" the measured time of forward and backward. Anything else is a
    list of block names: harness.spec.partition.cut_points. Raises UsageError for an unknown name.
    """
    blocks, how = job.workload.blocks, job.options["cut"]
    if how == "parameters":
        sizes = {parameter.name: float(np.prod(parameter.shape)) for parameter in job.workload.parameters()}
        costs = [sum(size for name, size in sizes.items() if name.startswith(f"{block}.")) for block in blocks]
        return partition.balance(costs, job.world.devices)
    if how == "time":
        return partition.balance(block_seconds(job), job.world.devices)
    return partition.cut_points(how, blocks, job.world.devices)


def block_seconds(job: Job) -> list[float]:
    """Seconds that forward and backward of each block take alone on the first device, for a whole batch of zeros."""
    device, count = runtime.devices(job.world)[0], len(job.workload.blocks)
    seconds = []
    for block in models.build_stages(job.workload, range(1, count), [device] * count):

        @tf.function
        def run(x: tf.Tensor, block: Any = block) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                output = block(x, training=True)
            return tape.gradient(output, [x, *(variable.value for variable in block.trainable_variables)])

        with tf.device(device):
            x = tf.zeros((job.global_batch, *block.input_shape[1:]), runtime.DTYPES[job.precision])
            run(x)  # traces the function
            times = []
            for _ in range(TIMED_RUNS):
                runtime.sync([device])
                start = time.perf_counter()
                run(x)
                runtime.sync([device])
                times.append(time.perf_counter() - start)
        seconds.append(min(times))
    return seconds
