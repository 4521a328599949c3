"""python bare.py PACKAGE: does the framework's bare loop make the updates of the program's own steps, bit for bit?"""

import importlib
import sys
from dataclasses import replace

import numpy as np

from harness import workloads
from harness.contract import Job, World
from harness.datasets import Batches

package = sys.argv[1]
runtime = importlib.import_module(f"{package}.runtime")
world = World(rank=0, processes=1, devices=1, platform="cpu", cores=1, rendezvous="")
runtime.start(world, "fp64", {})
workload = workloads.get("mnist_cnn", "tiny")
batches = Batches(workload.load("train", None), seed=0, transform=workload.transform)
adam = replace(workload.optimizer, name="adam", learning_rate=1e-3, momentum=0.0)
plain = Job(
    world=world, workload=workload, params=workload.init_params(0), optimizer=adam, precision="fp64", global_batch=8
)
jobs = [plain]
if package == "torch_impl":  # whose steps are captured on GPUs
    from graphs_on_cpu import GraphedOnCpu

    from torch_impl import tuning

    tuning.Graphed = GraphedOnCpu
    jobs.append(replace(plain, settings={"cuda_graphs": True}))
STEPS = 5  # more than there are batches: they take turns
for job in jobs:
    trained = []
    for by_hand in (False, True):
        program = importlib.import_module(f"{package}.strategies.single").build(job)
        placed = [program.place(batches.batch(step, 8)) for step in range(3)]
        program.step(placed[0])  # as in the curve before the blocks
        if by_hand:
            importlib.import_module(f"{package}.bare").LOOPS["single"](program, placed)(STEPS)
        else:
            for step in range(STEPS):
                program.step(placed[step % 3])
        program.sync()
        trained.append(program.state())  # with the count of updates
    for name, array in trained[0].items():
        if name.startswith("model/"):
            begun = job.params[name.removeprefix("model/")]
            assert not np.array_equal(array, begun), f"{name} was not trained"
        np.testing.assert_array_equal(array, trained[1][name], err_msg=name)
print("equal")
