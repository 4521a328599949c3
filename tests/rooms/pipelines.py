"""python pipelines.py: float64 updates of hand-written pipelines at every split size and number of stages.

Prints one JSON line for each (split size, stages, cut): the worst relative error of an update against that from the
reference's gradients with the same micro-batches, and the error of the loss.
"""

import json

import numpy as np

from harness import workloads
from harness.contract import Job, World
from harness.datasets import Batches
from harness.reference import loops
from harness.spec import TrialSpec, optimizers, partition
from torch_impl.strategies import model_parallel, pipeline

workload = workloads.get("resnet50", "tiny")
params = workload.init_params(0)
BATCH = 12
batch = Batches(workload.load("train", None), seed=0, transform=workload.transform).batch(0, BATCH)


def errors(build, stages, options, groups, batch=batch):
    """Worst error of the update, and the loss's."""
    world = World(rank=0, processes=1, devices=stages, platform="cpu", cores=stages, rendezvous="")
    job = Job(
        world=world, workload=workload, params=params, optimizer=workload.optimizer, precision="fp64",
        global_batch=BATCH, options=options,
    )  # fmt: skip
    program = build(job)
    program.step(program.place(batch))
    loss, gradients = groups
    right = optimizers.update(workload.optimizer, params, gradients, {}, step=0)
    (found,) = program.export()
    worst = max(float(np.abs(found[n] - right[n]).max() / np.abs(right[n] - params[n]).max()) for n in right)
    return {
        "update": worst,
        "loss": abs(program.loss() / loss - 1),
        "spans": len(program.trace(program.place(batch))),
    }


for split in range(1, BATCH + 1):
    sizes = partition.micro_batches(BATCH, split)
    right = loops.loss_and_gradients(workload, params, batch, groups=sizes)
    for stages in range(1, 6):
        row = errors(pipeline.build, stages, {"split_size": split, "cut": "parameters"}, right)
        print(json.dumps({"split": split, "stages": stages, "micro_batches": len(sizes)} | row))
for count in (3, 4, 5, 7):  # samples, as in the last batch of an epoch
    short = {name: array[:count] for name, array in batch.items()}
    spec = TrialSpec(
        framework="torch", workload="resnet50", size="tiny", strategy="pipeline", platform="cpu", devices=2,
        global_batch=BATCH, precision="fp64", optimizer=workload.optimizer, seed=0, normalization="per_microbatch",
        options={"micro_batches": 4}, roles={"micro_batches": "micro_batches"},
    )  # fmt: skip
    sizes = partition.normalization_groups(spec, batch=count, options=spec.options)
    right = loops.loss_and_gradients(workload, params, short, groups=sizes)
    row = errors(pipeline.build, 2, {"micro_batches": 4, "cut": "parameters"}, right, batch=short)
    print(json.dumps({"split": 1, "stages": 2, "micro_batches": len(sizes)} | row))
whole = loops.loss_and_gradients(workload, params, batch)
for stages, cut in ((1, "parameters"), (2, "layer2"), (3, "layer1+layer3"), (11, "parameters"), (3, "time")):
    row = errors(model_parallel.build, stages, {"cut": cut}, whole)
    print(json.dumps({"split": BATCH, "stages": stages, "micro_batches": 1, "cut": cut} | row))
