"""Where the option `cut` cuts a network into stages."""

from __future__ import annotations

import time
from typing import Any

import keras
import tensorflow as tf

from harness.contract import Job
from harness.spec import partition
from tf_impl import models, runtime

TIMED_RUNS = 3  # each block's time is the smallest of this many


def cut_points(job: Job) -> tuple[int, ...]:
    """The index of the first block of each stage after the first; there is one stage per device.

    "time" balances the measured time of forward and backward; for all others see Workload.cut_points.
    """
    if job.options["cut"] == "time":
        return partition.balance(block_seconds(job), job.world.devices)
    return job.workload.cut_points(job.options["cut"], job.world.devices)


def block_seconds(job: Job) -> list[float]:
    """Seconds that forward and backward of each block take alone on the first device, for a whole batch of random
    numbers, with XLA if the stages run with it. Nobody needs the gradient of the images, so the first block does not
    compute it."""
    device, count = runtime.devices(job.world)[0], len(job.workload.blocks)
    seconds = []
    blocks = models.build_stages(job.workload, range(1, count), [device] * count, settings=job.settings)
    for index, block in enumerate(blocks):
        run = forward_and_backward(block, first=index == 0, xla=job.settings.get("xla", False))
        with tf.device(device):
            shape = (job.global_batch, *block.input_shape[1:])
            x = tf.random.stateless_normal(shape, seed=(0, 0), dtype=block.inputs[0].dtype)
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


def forward_and_backward(block: keras.Model, *, first: bool, xla: bool = False) -> Any:
    """A function of a block's input: its output, and the gradients by the block's parameters and, unless it is the
    first block, by its input."""

    def forward(x: tf.Tensor) -> Any:
        return block(tf.stop_gradient(x) if first else x, training=True)

    if xla:  # its backward is a program of its own, as in the step
        forward = tf.function(forward, jit_compile=True)

    @tf.function
    def run(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = forward(x)
        inputs = [] if first else [x]
        return output, tape.gradient(output, [*inputs, *(variable.value for variable in block.trainable_variables)])

    return run
