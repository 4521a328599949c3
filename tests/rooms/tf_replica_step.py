"""python tf_replica_step.py FOLDER RANK PROCESSES WAY: MirroredStrategy on two CPU devices, in float64.

WAY is `usual`, or `whole`, `stored` or both with a plus sign. With `whole`, each replica's step is a tf.function of its
own with the all-reduce inside, as on GPUs with the setting `xla_step`. Only XLA is missing, because TensorFlow does not
compile that on CPU devices. `keys` adds the setting `xla_step`, of which only the constant keys of the all-reduce are
left then. `stored` is the setting `stored_losses`. Prints one JSON line: the losses, the replicas' weights, the bytes
that cross in a step, how many operations in the traced graph of a call wait for both devices, how many numbers from
host memory a call takes, and where each replica's loss is. Each way needs a process of its own, because two programs
with collectives in one process would take each other's.
"""

import functools
import json
import os
import sys

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute import mirrored_strategy
from tf_training import BATCH, build, one_bottleneck

from harness.contract import World
from harness.datasets import Batches
from tf_impl import holdings, runtime, tuning


def called_as_on_gpus():
    """A replica's functions are called by themselves, and TensorFlow leaves their all-reduce inside."""

    def as_function(method, setting, *, unless=""):
        function = tf.function(method) if setting == "xla_step" else method

        def chosen(self, *arguments):
            return function(self, *arguments)

        return chosen

    tuning._compiled_if_set = as_function
    mirrored_strategy.MirroredExtended._use_merge_call = lambda self: tf.executing_eagerly()


def waiting_for_both(graph):
    """The operations that other devices' operations come before, directly or by way of some without a device."""

    def devices_of(operation):
        return {operation.device} if operation.device else devices_before(operation)

    @functools.cache
    def devices_before(operation):
        before = [tensor.op for tensor in operation.inputs] + list(operation.control_inputs)
        return frozenset().union(*(devices_of(each) for each in before))

    return sum(len(devices_before(each) | devices_of(each)) > 1 for each in graph.get_operations())


def of_replicas(program, losses):
    """A loss of each replica."""
    return losses if isinstance(losses, tuple) else program.strategy.experimental_local_results(losses)


def graphs(program, placed):
    """Of a call with one step, and of one with three."""
    yield program.train_step.get_concrete_function(placed[0]).graph
    yield program.train_steps.get_concrete_function(tuple(placed[1:])).graph


if __name__ == "__main__":
    way = sys.argv[4].split("+")
    if "whole" in way:
        called_as_on_gpus()
    world = World(rank=0, processes=1, devices=2, platform="cpu", cores=1, rendezvous="")
    runtime.start(world, "fp64", {})
    workload = one_bottleneck()
    batches = Batches(workload.load("train", None), seed=0, transform=workload.transform)
    names = [name for word, name in (("stored", "stored_losses"), ("keys", "xla_step")) if word in way]
    program = build(":".join(["mirrored", *names]), world, workload, "fp64")
    placed = [program.place(batches.batch(step, BATCH)) for step in range(4)]
    handles = [program.step(placed[0]), *program.steps(placed[1:])]
    weights = [np.concatenate([each[name].ravel() for name in sorted(each)]).tolist() for each in program.export()]
    calls = (placed[:1], placed[1:])
    print(json.dumps({
        "losses": [program.loss(handle) for handle in handles],
        "weights": weights,
        "loss_devices": [loss.device[-5:] for loss in of_replicas(program, handles[-1])],
        "waiting": [waiting_for_both(graph) for graph in graphs(program, placed)],
        "numbers": [sum(each.dtype == tf.int32 for each in graph.inputs) for graph in graphs(program, placed)],
        "crossed": [holdings.observe(program, batches).crossed for batches in calls],
    }, separators=(",", ":")))  # fmt: skip
    sys.stdout.flush()
    os._exit(0)
