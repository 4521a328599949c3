"""What simple programs reach on this process's devices: matrix products, memory, and the links between devices."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from harness.contract import World
from harness.gate import bounds
from harness.spec import LinkRate, Precision
from tf_impl.holdings import COPIED
from tf_impl.replicas import ReplicatedProgram
from tf_impl.runtime import DTYPES, devices, sync


def matrix_rate(world: World, precision: Precision) -> float:
    """Floating-point operations per second of a large matrix product in this precision on one of the devices.

    The numbers are random, as in training: at the power limit, a product of equal ones is faster.
    """
    size = bounds.matrix_size(world.platform, precision)
    names = devices(world)[:1]
    with tf.device(names[0]):
        dtype = tf.bfloat16 if precision == "bf16" else DTYPES[precision]
        a = tf.random.stateless_normal((size, size), seed=(0, 0), dtype=dtype)
        product = tf.function(tf.linalg.matmul)
        return bounds.matrix_products(lambda: product(a, a), lambda: sync(names), world.platform, size=size)


def memory_rate(world: World) -> float:
    """Bytes per second that the memory of one of the devices reads and writes."""
    names = devices(world)[:1]
    with tf.device(names[0]):
        numbers, two = tf.ones(bounds.NUMBERS[world.platform]), tf.constant(2.0)
        return bounds.memory(lambda: tf.multiply(numbers, two), lambda: sync(names), world.platform)


def link_rate(world: World, program: Any) -> LinkRate | None:
    """The bandwidth between the trial's devices, by an all-reduce. A collective.

    None if there is one device, and where TensorFlow has no all-reduce: under parameter_server, and under mirrored with
    a `cross_device` that copies.
    """
    replicated = isinstance(program, ReplicatedProgram)
    if world.devices == 1 or (world.processes > 1 and not replicated):
        return None
    if replicated and program.job.options.get("cross_device") in COPIED:
        return None
    names = devices(world)
    if len(set(names)) < len(names):  # all stages on one device, by mistake: another check reports it
        return None
    # Two strategies in one process would give the same keys to their collectives.
    strategy = program.strategy if replicated else tf.distribute.MirroredStrategy(names)

    @tf.function
    def make() -> Any:
        return strategy.run(lambda: tf.ones(bounds.LINK_NUMBERS[world.platform]))

    @tf.function
    def reduce(numbers: Any) -> Any:
        return strategy.run(_sum_over_replicas, args=(numbers,))

    numbers = make()
    rate = bounds.all_reduce(lambda: reduce(numbers), lambda: sync(names), world.platform, devices=world.devices)
    return LinkRate(bytes_per_second=rate, measured_by="all-reduce")


def _sum_over_replicas(own: tf.Tensor) -> Any:
    replica = tf.distribute.get_replica_context()
    here = tf.identity(own)  # an argument of the function has no device, which tells MultiWorkerMirrored where to sum
    return replica.all_reduce(tf.distribute.ReduceOp.SUM, here)
