"""python torch_order.py PLATFORM DEVICES: is the order of a pipeline's stages found right, and a wrong one wrong?

Prints a line of JSON. In the wrong one each micro-batch passes through all stages before the next one begins.
"""

import json
import sys
import time
from types import SimpleNamespace
from typing import Any

from harness import workloads
from harness.contract import Job, World
from harness.datasets import Batches
from harness.gate import crossing, placement
from harness.spec import TrialSpec, registry
from harness.worker.context import StepCount
from harness.worker.placement import order_of_stages
from torch_impl import runtime
from torch_impl.strategies import pipeline

platform: Any = sys.argv[1]
devices = int(sys.argv[2])
BATCH, OPTIONS = 64, {"micro_batches": 4, "cut": "parameters"}
workload = workloads.get("mnist_cnn", "tiny")
world = World(rank=0, processes=1, devices=devices, platform=platform, cores=devices, rendezvous="")
runtime.start(world, "fp32", {})
spec = TrialSpec(
    framework="torch", workload="mnist_cnn", size="tiny", strategy="pipeline", platform=platform, devices=devices,
    global_batch=BATCH, precision="fp32", optimizer=workload.optimizer, seed=0, normalization="per_microbatch",
    options=OPTIONS, roles={"micro_batches": "micro_batches", "cut": "cut"},
)  # fmt: skip
strategy = registry.framework("torch").strategy("pipeline")
cell = placement.Cell(strategy=strategy, spec=spec, workload=workload, rank=0, processes=1)


def found_right() -> bool:
    job = Job(
        world=world, workload=workload, params=workload.init_params(0), optimizer=workload.optimizer, precision="fp32",
        global_batch=BATCH, options=OPTIONS,
    )  # fmt: skip
    program = pipeline.build(job)
    placed = program.place(Batches(workload.load("train", None), seed=0, transform=workload.transform).batch(0, BATCH))
    program.step(placed)
    program.trace(placed)  # the first trace compiles kernels that no step needed
    timing = SimpleNamespace(spans=program.trace(placed))
    context: Any = SimpleNamespace(draft=SimpleNamespace(timing=timing), spec=spec, program=program, made=StepCount())
    (check,) = crossing.check_order(order_of_stages(context, placed, cell, ()), (), cell)
    return check.passed


class Waiting(list):
    """Each micro-batch waits for the one before. The order of launches alone would not make GPUs wait.

    It waits for a millisecond more, because the clocks of two GPUs are compared to some tens of microseconds.
    """

    def __iter__(self):
        for stage, number in super().__iter__():
            runtime.sync(world)
            time.sleep(1e-3)
            yield stage, number


def one_by_one(stages: int, micro_batches: int) -> list[tuple[int, int]]:
    return Waiting((stage, number) for number in range(micro_batches) for stage in range(stages))


right = found_right()
pipeline.launch_order = one_by_one
print(json.dumps({"right": right, "wrong": found_right()}))
