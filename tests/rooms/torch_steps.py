"""python torch_steps.py PLATFORM: several steps as one CUDA graph against the same steps one by one.

Prints a line of JSON for each precision and optimizer: how far losses, weights, optimizer state and BatchNorm's
statistics are off, relative to how far they have moved, the largest of these; and the same with a planted fault. On a
CPU, graphs_on_cpu.py stands in for the graph.
"""

import json
import sys
from dataclasses import replace
from typing import Any

import numpy as np
from graphs_on_cpu import GraphedOnCpu

from harness import workloads
from harness.contract import Job, World
from harness.datasets import Batches
from torch_impl import runtime, tuning
from torch_impl.strategies import single

platform: Any = sys.argv[1]
STEPS, IN_A_CALL = 7, 3


def first_batch_twice(graphed):
    """Plants a fault: the second step of a call reuses the first batch."""
    original = graphed.several
    graphed.several = lambda batches: original([batches[0], *batches[:1], *batches[2:]][: len(batches)])


def rate_stands_still(graphed):
    """Plants a fault: every replay has the rates of the first one."""
    original, first = graphed.rates, {}
    graphed.rates = lambda count: first.setdefault(count, original(count))


def results(losses, program):
    state = program.state()
    assert state is not None
    found = {"losses": {"all": np.array(losses)}}
    for name, array in state.items():  # "model/fc.weight", "optimizer/fc.weight/exp_avg"
        kind, _, rest = name.partition("/")
        found.setdefault(rest.rpartition("/")[2] if kind == "optimizer" else kind, {})[name] = array
    return found


def eager(job):
    """What steps that are not captured give."""
    program = single.build(job)
    assert program.steps is None  # without graphs there is no such call
    return results([program.loss(program.step(program.place(batch))) for batch in given], program)


def graphed(job, *, fault=None):
    """One step, then calls of IN_A_CALL steps."""
    program = single.build(replace(job, settings={"cuda_graphs": True}))
    run: Any = program.run
    if fault:
        fault(run)
    assert program.steps is not None
    handles = [program.step(program.place(given[0]))]
    for start in range(1, STEPS, IN_A_CALL):
        handles += program.steps([program.place(batch) for batch in given[start : start + IN_A_CALL]])
    losses = [program.loss(handle) for handle in handles]
    assert program.loss() == losses[-1]
    scheduled = job.optimizer.schedule != "constant"
    assert run.reads_rate == (scheduled and job.precision == "fp32")
    if not scheduled or run.reads_rate:
        assert len(run.graphs) == 2  # of one step, and of several
    return results(losses, program)


def error(found, right, start):
    """Of all numbers of a kind together: Adam moves each by the same amount, in a direction that is rounding where a
    gradient is almost zero. The largest error of a single number on two H200s was 0.2 in float32."""
    off = {kind: norm(found[kind], right[kind]) for kind in right}
    return max(off[kind] / norm(right[kind], start.get(kind, {})) for kind in right)


def norm(arrays, less):
    """Of the difference of two sets of arrays; what the second one lacks is zero."""
    assert not less or arrays.keys() == less.keys()
    return float(np.sqrt(sum((np.abs(array - less.get(name, 0)) ** 2).sum() for name, array in arrays.items())))


if platform == "cpu":
    tuning.Graphed = GraphedOnCpu
world = World(rank=0, processes=1, devices=1, platform=platform, cores=1, rendezvous="")
runtime.start(world, "fp64", {})
workload = workloads.get("resnet50", "tiny")
batches = Batches(workload.load("train", None), seed=0, transform=workload.transform)
given = [batches.batch(step, 8) for step in range(STEPS)]
# a low rate: at the full one, rounding grows from step to step, and kernels on GPUs round differently each time
SGD = replace(workload.optimizer, momentum=0.9, learning_rate=1e-3)
OPTIMIZERS = {
    "sgd": SGD,
    "scheduled": replace(SGD, schedule="step", step_size=2, gamma=0.5),
    "adamw": replace(SGD, name="adamw", momentum=0.0, weight_decay=0.01, schedule="cosine", total_steps=9),
}
for precision in ("fp64", "fp32"):
    for name, optimizer in OPTIMIZERS.items():
        job = Job(
            world=world, workload=workload, params=workload.init_params(0), precision=precision, global_batch=8,
            optimizer=optimizer, accumulation_steps=2,
        )  # fmt: skip
        right, start = eager(job), results([], single.build(job))
        start = {kind: start[kind] for kind in ("model", "running")}  # all else begins at zero
        fault = first_batch_twice if name == "sgd" else rate_stands_still
        errors = {
            "error": error(graphed(job), right, start),
            "planted": error(graphed(job, fault=fault), right, start),
        }
        print(json.dumps({"precision": precision, "optimizer": name, **errors}))
