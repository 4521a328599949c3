"""python first_layers.py FRAMEWORK: ResNet on one device, without settings and with those of its layers.

Prints JSON: of each, the losses, what the first convolution multiplies, and whether the gradient of max pooling is the
framework's own; the largest difference of the parameters after the steps, beside the largest change of a parameter;
and the error of gathered pooling against NumPy.
"""

import importlib
import json
import os
import sys

import numpy as np

from harness import workloads
from harness.contract import Job, World
from harness.datasets import Batches
from harness.layers import MaxPool2D

BATCH, STEPS = 8, 3
framework = sys.argv[1]
world = World(rank=0, local_rank=0, processes=1, devices=1, platform="cpu", cores=1, rendezvous="")


def program_of(settings):
    """The strategy `single` in float64."""
    workload = workloads.get("resnet50", "tiny")
    job = Job(
        world=world, workload=workload, params=workload.init_params(0), optimizer=workload.optimizer, precision="fp64",
        global_batch=BATCH, normalization="global", options={}, settings=settings,
    )  # fmt: skip
    return importlib.import_module(f"{framework}_impl.strategies.single").build(job)


POOLING = {"torch": "aten::max_pool2d_with_indices_backward", "jax": "select_and_scatter_add", "tf": "MaxPoolGrad"}
"""The framework's own gradient of max pooling."""


def operations(program, placed):
    """The operations of a step, and (height, width, inputs) of the kernel of its first convolution."""
    if framework == "torch":
        from torch.profiler import profile

        with profile(record_shapes=True) as recorded:
            program.step(placed)
        events = recorded.events() or []
        shapes = [event.input_shapes for event in events if event.name == "aten::convolution"]
        _, inputs, height, width = shapes[0][1]
        return {event.name for event in events}, (height, width, inputs)
    if framework == "jax":
        import jax

        (call,) = jax.make_jaxpr(program.compiled)(program.held, *placed).eqns
        equations = call.params["jaxpr"].eqns
        kernels = [each.invars[1].aval.shape for each in equations if each.primitive.name == "conv_general_dilated"]
        return {each.primitive.name for each in equations}, kernels[0][:3]
    found = program.train_step.get_concrete_function(placed).graph.get_operations()
    kernels = [each.inputs[1].shape for each in found if each.type == "Conv2D"]
    return {each.type for each in found}, tuple(kernels[0][:3])


def pooling_error():
    """The largest error of gathered pooling, forward and backward, where many numbers are equal."""
    rng = np.random.default_rng(0)
    x, dy = rng.integers(0, 3, (2, 8, 6, 4)).astype(float), rng.standard_normal((2, 4, 3, 4))
    right, pullback = MaxPool2D(3, 2, padding=1).forward({}, x)
    layer = importlib.import_module(f"{framework}_impl.first_layers")
    if framework == "torch":
        import torch

        given = torch.from_numpy(x).permute(0, 3, 1, 2).requires_grad_()
        y = layer.MaxPool2d(3, 2, 1)(given)
        (dx,) = torch.autograd.grad(y, given, torch.from_numpy(dy).permute(0, 3, 1, 2))
        y, dx = (each.detach().permute(0, 2, 3, 1).numpy() for each in (y, dx))
    elif framework == "jax":
        import jax

        y, back = jax.vjp(layer.max_pool, x)
        (dx,) = back(dy)
    else:
        import tensorflow as tf

        given = tf.constant(x)
        with tf.GradientTape() as tape:
            tape.watch(given)
            y = layer.MaxPool2D(3, 2, "same", dtype="float64")(given)
            wanted = tf.reduce_sum(y * dy)
        dx = tape.gradient(wanted, given)
    return float(max(np.abs(y - right).max(), np.abs(dx - pullback(dy)[0]).max()))


def main():
    importlib.import_module(f"{framework}_impl.runtime").start(world, "fp64", {})
    workload = workloads.get("resnet50", "tiny")
    batches = Batches(workload.load("train", None), seed=0, transform=workload.transform)
    trained: list = []
    found: dict = {"losses": [], "kernels": [], "own_pooling": []}
    # TensorFlow's barriers need XLA: see tf_batch_norm.py
    of_layers = {"space_to_depth": True, "gathered_pooling": True, "batch_norm_relu": framework != "tf"}
    for settings in ({}, of_layers):
        program = program_of(settings)
        placed = [program.place(batches.batch(step, BATCH, dtype=np.float64)) for step in range(STEPS)]
        found["losses"].append([program.loss(program.step(each)) for each in placed])
        trained.append(program.export()[0])
        names, kernel = operations(program, placed[0])
        found["kernels"].append(kernel)
        found["own_pooling"].append(POOLING[framework] in names)
    plain, by_blocks = trained
    start = workload.init_params(0)
    found["pooling_error"] = pooling_error()
    found["apart"] = max(float(np.abs(plain[name] - by_blocks[name]).max()) for name in plain)
    found["moved"] = max(float(np.abs(plain[name] - start[name]).max()) for name in plain)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
