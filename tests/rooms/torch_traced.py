"""python torch_traced.py PLATFORM: what a pipeline's timeline shows if its steps are CUDA graphs.

Prints a line of JSON: whether a traced step has all spans in their order, and no two have the same times; and the
largest relative error of the weights against as many steps that are neither captured nor traced. On a CPU,
graphs_on_cpu.py stands in for the graph.
"""

import json
import sys
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from graphs_on_cpu import GraphedOnCpu

from harness import workloads
from harness.contract import Job, World
from harness.datasets import Batches
from torch_impl import runtime, tuning
from torch_impl.strategies import pipeline

platform: Any = sys.argv[1]
STAGES, PARTS = 2, 3
if platform == "cpu":
    tuning.Graphed = GraphedOnCpu
world = World(rank=0, processes=1, devices=STAGES, platform=platform, cores=2, rendezvous="")
runtime.start(world, "fp64", {})
workload = workloads.get("mnist_cnn", "tiny")
job = Job(
    world=world, workload=workload, params=workload.init_params(0), optimizer=workload.optimizer, precision="fp64",
    global_batch=12, options={"micro_batches": PARTS, "cut": "parameters"},
)  # fmt: skip
CLOCKS_APART = 1e-4  # seconds that the zeros of two GPUs may be apart
TRACED = 8
"""Steps, of which one must be in order. While other tests use the same GPUs, one GPU may take its zero a slice of time
later than the other."""
batch = Batches(workload.load("train", None), seed=0, transform=workload.transform).batch(0, 12)


def in_order(spans):
    """Whether each stage did all of its work one by one, and took each micro-batch after the stage before."""
    at = {(span.phase, span.stage, span.micro_batch): span for span in spans}
    for stage in range(STAGES):
        order = [("forward", stage, part) for part in range(PARTS)]
        order += [("backward", stage, part) for part in reversed(range(PARTS))]
        if any(at[one].end > at[then].start for one, then in pairwise(order)):
            return False
    between = [(at["forward", 0, part], at["forward", 1, part]) for part in range(PARTS)]
    between += [(at["backward", 1, part], at["backward", 0, part]) for part in range(PARTS)]
    return len(at) == 2 * STAGES * PARTS and all(one.end < then.start + CLOCKS_APART for one, then in between)


def weights(program):
    (found,) = program.export()
    return found


plain = pipeline.build(job)
for _ in range(TRACED + 3):
    plain.step(plain.place(batch))

program = pipeline.build(replace(job, settings={"cuda_graphs": True}))
program.step(program.place(batch))
traced = [program.trace(program.place(batch)) for _ in range(TRACED)]
for _ in range(2):
    program.step(program.place(batch))  # by the graph without marks

right = weights(plain)
errors = {name: np.abs(found - right[name]).max() for name, found in weights(program).items()}
apart = max(float(error / np.abs(right[name]).max()) for name, error in errors.items())
different = all(one != then for one, then in pairwise(traced))
found = {"in_order": sum(in_order(spans) for spans in traced), "marked_again": different}
print(json.dumps(found | {"apart": apart}))
