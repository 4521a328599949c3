"""python tf_replica_step.py FOLDER RANK PROCESSES WAY: MirroredStrategy on two CPU devices, in float64.

WAY is `usual` or `whole`. If `whole`, each replica's step is a tf.function of its own with the all-reduce inside, as on
GPUs with the setting `xla_step`. Only XLA is missing, because TensorFlow does not compile that on CPU devices. Prints
one JSON line: the losses, the replicas' weights, and the bytes that cross in a step. Each way needs a process of its
own, because two programs with collectives in one process would take each other's.
"""

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


if __name__ == "__main__":
    if sys.argv[4] == "whole":
        called_as_on_gpus()
    world = World(rank=0, processes=1, devices=2, platform="cpu", cores=1, rendezvous="")
    runtime.start(world, "fp64", {})
    workload = one_bottleneck()
    batches = Batches(workload.load("train", None), seed=0, transform=workload.transform)
    program = build("mirrored", world, workload, "fp64")
    placed = [program.place(batches.batch(step, BATCH)) for step in range(4)]
    handles = [program.step(placed[0]), *program.steps(placed[1:])]
    weights = [np.concatenate([each[name].ravel() for name in sorted(each)]).tolist() for each in program.export()]
    calls = (placed[:1], placed[1:])
    print(json.dumps({
        "losses": [program.loss(handle) for handle in handles],
        "weights": weights,
        "crossed": [holdings.observe(program, batches).crossed for batches in calls],
    }, separators=(",", ":")))  # fmt: skip
    sys.stdout.flush()
    os._exit(0)
