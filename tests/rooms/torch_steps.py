"""python torch_steps.py PLATFORM: several steps as one CUDA graph against the same steps one by one, in float64.

Prints one line of JSON: the largest relative error of losses, weights, momentum and BatchNorm's statistics, and the
same with a planted fault: the second step of a call reuses the first batch. On a CPU, a stand-in for the graph repeats
what it captured, so that all code around the graph is tried there too.
"""

import json
import sys
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from harness import workloads
from harness.contract import Job, World
from harness.datasets import Batches
from torch_impl import runtime, tuning
from torch_impl.strategies import single

platform: Any = sys.argv[1]
STEPS, IN_A_CALL = 7, 3


class Repeated:
    """Instead of a CUDA graph: a replay calls the steps again, and writes their losses where the capture left them."""

    def __init__(self, steps):
        self.steps, self.losses = steps, [loss.detach().clone() for loss in steps()]

    def replay(self):
        for held, new in zip(self.losses, self.steps(), strict=True):
            held.copy_(new)


class GraphedOnCpu(tuning.Graphed):
    def capture(self, inputs):
        def captured(steps):
            with tuning.undone(self.module, self.optimizer):  # a capture computes nothing
                graph = Repeated(steps)
            return graph, graph.losses

        tuning.captured, tuning.on_capture_stream = captured, nullcontext  # pyright: ignore
        return super().capture(inputs)


def first_batch_twice(graphed):
    """Plants the fault."""
    original = graphed.several
    graphed.several = lambda batches: original([batches[0], *batches[:1], *batches[2:]][: len(batches)])


def results(losses, program):
    state = program.state()
    assert state is not None
    return {"losses": np.array(losses), **state}


def eager():
    """What steps that are not captured give."""
    program = single.build(plain)
    assert program.steps is None  # without graphs there is no such call
    return results([program.loss(program.step(program.place(batch))) for batch in given], program)


def graphed(*, faulty=False):
    """One step, then calls of IN_A_CALL steps."""
    program = single.build(replace(plain, settings={"cuda_graphs": True}))
    run: Any = program.run
    if faulty:
        first_batch_twice(run)
    assert program.steps is not None
    handles = [program.step(program.place(given[0]))]
    for start in range(1, STEPS, IN_A_CALL):
        handles += program.steps([program.place(batch) for batch in given[start : start + IN_A_CALL]])
    losses = [program.loss(handle) for handle in handles]
    assert program.loss() == losses[-1]
    assert len(run.graphs) == 2  # of one step, and of several
    return results(losses, program)


def error(found, right):
    assert found.keys() == right.keys()
    return max(float(np.abs(found[name] - array).max() / np.abs(array).max()) for name, array in right.items())


if platform == "cpu":
    tuning.Graphed = GraphedOnCpu
world = World(rank=0, processes=1, devices=1, platform=platform, cores=1, rendezvous="")
runtime.start(world, "fp64", {})
workload = workloads.get("resnet50", "tiny")
batches = Batches(workload.load("train", None), seed=0, transform=workload.transform)
plain = Job(
    world=world, workload=workload, params=workload.init_params(0), precision="fp64", global_batch=8,
    # a low rate: at the full one, rounding grows from step to step, and kernels on GPUs round differently each time
    optimizer=replace(workload.optimizer, momentum=0.9, learning_rate=1e-3), accumulation_steps=2,
)  # fmt: skip
given = [batches.batch(step, 8) for step in range(STEPS)]
right = eager()
print(json.dumps({"error": error(graphed(), right), "planted": error(graphed(faulty=True), right)}))
