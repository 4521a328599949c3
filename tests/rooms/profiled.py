"""python profiled.py FOLDER STRATEGY RANK: bytes in collectives of a few steps, as PyTorch's profiler counts them.

Rank 0 of two writes FOLDER/counted.json: {"steps": 4, "bytes": {"all_reduce": ...}}.
"""

import importlib
import json
import math
import os
import sys
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from harness import workloads
from harness.contract import Job, World
from harness.datasets import Batches
from harness.gate.traffic import FLOAT_BYTES
from harness.spec import registry
from torch_impl import runtime

STEPS = 4
folder, name, rank = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
world = World(
    rank=rank, local_rank=rank, processes=2, devices=2, platform="cpu", cores=1,
    rendezvous=f"file://{folder}/rendezvous",
)  # fmt: skip
runtime.start(world, "fp32", {})
workload = workloads.get("mnist_cnn", "tiny")
strategy = registry.framework("torch").strategy(name)
job = Job(
    world=world, workload=workload, params=workload.init_params(0), optimizer=workload.optimizer, precision="fp32",
    global_batch=16, options=strategy.defaults | ({"cut": "flops"} if "cut" in strategy.defaults else {}),
    normalization=strategy.normalization,
)  # fmt: skip
program = importlib.import_module(f"torch_impl.strategies.{name}").build(job)
batch = Batches(workload.load("train", None), seed=0, transform=workload.transform).batch(0, 16)
placed = program.place(batch)
for _ in range(STEPS):
    program.step(placed)  # DDP makes its buckets anew after the first
with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
    for _ in range(STEPS):
        program.step(placed)
counted: dict[str, int] = {}
for event in recorded.events() or ():
    kind, _, collective = event.name.partition(":")
    if kind == "gloo":
        size = FLOAT_BYTES * sum(math.prod(shape) for shape in event.input_shapes if shape)
        counted[collective] = counted.get(collective, 0) + size
if rank == 0:
    (folder / "counted.json").write_text(json.dumps({"steps": STEPS, "batch": 16, "bytes": counted}))
runtime.barrier(world)
os._exit(0)  # gloo's threads may abort the interpreter's shutdown
