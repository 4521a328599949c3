"""python torch_buckets.py FOLDER: prints whether DDP has its own default buckets, by default and with another size, and
how many operations copy gradients into a bucket, with gradients as views of it and without."""

import json
import os
import sys

import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from harness import workloads
from harness.contract import Job, World
from harness.spec import registry
from torch_impl.strategies import ddp

workload, strategy = workloads.get("toy", "base"), registry.framework("torch").strategy("ddp")
world = World(rank=0, processes=1, devices=1, platform="cpu", cores=1, rendezvous="")
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/meet", rank=0, world_size=1)


def build(**options):
    return ddp.build(
        Job(
            world=world, workload=workload, params=workload.init_params(0), optimizer=workload.optimizer,
            precision="fp32", global_batch=4, options=strategy.defaults | options,
        )
    )  # fmt: skip


def copies(program):
    """The operations by which DDP divides gradients and copies them, in a later step."""
    batch = {name: array[:4] for name, array in workload.load("train", None).items()}
    program.step(program.place(batch))
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        program.step(program.place(batch))
    names = [event.name for event in recorded.events() or ()]
    return names.count("torch::distributed::reducer::mul_out") + names.count("aten::_foreach_copy_")


found = {
    "25.0": build().network.bucket_bytes_cap_default,
    "10.0": build(bucket_cap_mb=10.0).network.bucket_bytes_cap_default,
    "copies": copies(build()),
    "views": copies(build(gradient_as_bucket_view=True)),
    "together": bool(ddp.COPIED_TOGETHER),
}
print(json.dumps(found), flush=True)
os._exit(0)  # gloo's threads may abort the interpreter's shutdown
