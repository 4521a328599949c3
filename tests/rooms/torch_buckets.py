"""python torch_buckets.py FOLDER: prints whether DDP has its own default buckets, by default and with another size."""

import json
import os
import sys

import torch.distributed as dist

from harness import workloads
from harness.contract import Job, World
from harness.spec import registry
from torch_impl.strategies import ddp

workload, strategy = workloads.get("toy", "base"), registry.framework("torch").strategy("ddp")
world = World(rank=0, processes=1, devices=1, platform="cpu", cores=1, rendezvous="")
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/meet", rank=0, world_size=1)
found = {}
for options in ({}, {"bucket_cap_mb": 10.0}):
    job = Job(
        world=world, workload=workload, params=workload.init_params(0), optimizer=workload.optimizer, precision="fp32",
        global_batch=4, options=strategy.defaults | options,
    )  # fmt: skip
    found[str(job.options["bucket_cap_mb"])] = ddp.build(job).network.bucket_bytes_cap_default
print(json.dumps(found), flush=True)
os._exit(0)  # gloo's threads may abort the interpreter's shutdown
