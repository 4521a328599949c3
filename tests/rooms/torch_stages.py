"""What PyTorch does to time the blocks of a network. Prints one JSON object."""

import json

import numpy as np
import torch
from torch import nn

from harness import workloads
from harness.contract import Job, World
from torch_impl import models, stages

workload = workloads.get("resnet50", "tiny")
job = Job(
    world=World(rank=0, processes=1, devices=2, platform="cpu", cores=1, rendezvous=""), workload=workload,
    params=workload.init_params(0), optimizer=workload.optimizer, precision="fp32", global_batch=12,
    options={"micro_batches": 4, "cut": "time"},
)  # fmt: skip
model = models.build(workload, settings={})
before = {name: buffer.clone() for name, buffer in model.named_buffers()}
in_place = [module.inplace for module in model.modules() if isinstance(module, nn.ReLU)]
given = []
runner = stages.runner


def recorded(block, x, job):
    given.append((len(x), x.requires_grad))
    return runner(block, x, job)


stages.runner = recorded
seconds = stages.block_seconds(list(models.blocks(model).values()), job)
print(
    json.dumps(
        {
            "blocks": len(workload.blocks),
            "seconds": seconds,
            "samples": [count for count, _ in given],
            "gradients": [needed for _, needed in given],
            "same": all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers()),
            "left": sum(parameter.grad is not None for parameter in model.parameters()),
            "in_place": in_place == [m.inplace for m in model.modules() if isinstance(m, nn.ReLU)] and any(in_place),
            "finite": bool(np.isfinite(seconds).all()),
        }
    )
)
