"""python torch_steps.py: several steps as one graph, on a CPU, where a stand-in for the graph repeats what it captured.

Prints "equal" if steps made three in a replay are those made one by one, bit for bit: losses, weights, momentum and
BatchNorm's statistics. What a real CUDA graph does is for tests/gpu.
"""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from harness import workloads
from harness.contract import Job, World
from harness.datasets import Batches
from torch_impl import runtime, tuning
from torch_impl.strategies import single


class Repeated:
    """Instead of a CUDA graph: a replay calls the steps again, and writes their losses where the capture left them."""

    def __init__(self, steps):
        self.steps, self.losses = steps, [loss.detach().clone() for loss in steps()]

    def replay(self):
        for held, new in zip(self.losses, self.steps(), strict=True):
            held.copy_(new)


def captured(steps):
    with tuning.undone(graphed.module, graphed.optimizer):  # a capture computes nothing
        graph = Repeated(steps)
    return graph, graph.losses


tuning.captured, tuning.on_capture_stream = captured, nullcontext  # pyright: ignore[reportAttributeAccessIssue]
world = World(rank=0, processes=1, devices=1, platform="cpu", cores=1, rendezvous="")
runtime.start(world, "fp64", {})
workload = workloads.get("resnet50", "tiny")
batches = Batches(workload.load("train", None), seed=0, transform=workload.transform)
plain = Job(
    world=world, workload=workload, params=workload.init_params(0), precision="fp64", global_batch=8,
    optimizer=replace(workload.optimizer, momentum=0.9), accumulation_steps=2,
)  # fmt: skip
eager, program = single.build(plain), single.build(replace(plain, settings={"cuda_graphs": True}))
assert eager.steps is None  # without graphs there is no such call
assert program.steps is not None
graphed: Any = program.run
given = [batches.batch(step, 8) for step in range(7)]
right = [eager.loss(eager.step(eager.place(batch))) for batch in given]
handles = [program.step(program.place(given[0]))]
for start in (1, 4):
    handles += program.steps([program.place(batch) for batch in given[start : start + 3]])
found = [program.loss(handle) for handle in handles]
assert found == right, (found, right)
assert program.loss() == right[-1]
assert len(graphed.graphs) == 2  # of one step, and of three
one, other = eager.state(), program.state()
assert one is not None and other is not None and one.keys() == other.keys()
for name, array in one.items():
    np.testing.assert_array_equal(other[name], array, err_msg=name)
print("equal")
