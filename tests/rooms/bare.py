"""python bare.py PACKAGE: does the framework's bare loop make the updates of the program's own steps, bit for bit?"""

import importlib
import sys

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
job = Job(
    world=world, workload=workload, params=workload.init_params(0), optimizer=workload.optimizer, precision="fp64",
    global_batch=8,
)  # fmt: skip
STEPS = 5  # more than there are batches: they take turns
trained = []
for by_hand in (False, True):
    program = importlib.import_module(f"{package}.strategies.single").build(job)
    placed = [program.place(batches.batch(step, 8)) for step in range(3)]
    if by_hand:
        importlib.import_module(f"{package}.bare").LOOPS["single"](program, placed)(STEPS)
    else:
        for step in range(STEPS):
            program.step(placed[step % 3])
    program.sync()
    (params,) = program.export()
    trained.append(params)
for name, array in trained[0].items():
    assert not np.array_equal(array, job.params[name]), f"{name} was not trained"
    np.testing.assert_array_equal(array, trained[1][name])
print("equal")
