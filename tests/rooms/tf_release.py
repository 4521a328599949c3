"""python tf_release.py: whether a program's variables are gone once it is released. Prints one JSON object."""

import gc
import json
import weakref

from harness import workloads
from harness.contract import Job, World
from harness.datasets import Batches
from tf_impl import runtime
from tf_impl.strategies import single

workload = workloads.get("mnist_cnn", "tiny")
batches = Batches(workload.load("train", None), seed=0, transform=workload.transform)
found = {}
for settings in ({}, {"xla": True}, {"xla": True, "xla_step": True}):
    job = Job(
        world=World(rank=0, processes=1, devices=1, platform="cpu", cores=1, rendezvous=""), workload=workload,
        params=workload.init_params(0), optimizer=workload.optimizer, precision="fp32", global_batch=4,
        settings=settings,
    )  # fmt: skip
    if not found:
        runtime.start(job.world, job.precision, job.settings)
    program = single.build(job)
    program.step(program.place(batches.batch(0, 4)))
    program.sync()
    handles = [weakref.ref(variable.handle) for variable in program.variables.values()]
    del program
    gc.collect()
    found["+".join(settings)] = sum(handle() is not None for handle in handles)
print(json.dumps(found))
