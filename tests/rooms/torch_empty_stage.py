"""python torch_empty_stage.py: what a captured stage without parameters needs, and what BatchNorm keeps while the
runtime of pipelines finds out shapes. Prints one line of JSON."""

import json
from dataclasses import replace

import torch
from graphs_on_cpu import GraphedOnCpu
from torch import nn

from harness import workloads
from harness.contract import Job, World
from torch_impl import models, optim, pipelining

workload = workloads.get("resnet50", "tiny")
built = []
for name in ("sgd", "adam", "adamw", "adagrad"):
    spec = replace(workload.optimizer, name=name, momentum=0.0, schedule="cosine", total_steps=9)
    optimizer = optim.build(spec, [], fused=True, captured=True)
    optimizer.step()
    if optimizer.defaults.get("capturable", True):  # Adam refuses a capture without, whatever it updates
        built.append(name)

spec = replace(workload.optimizer, schedule="cosine", total_steps=9)
rates = iter([0.3, 0.2, 0.1])
stage = GraphedOnCpu(
    lambda placed: torch.relu(placed[0][0]).sum(), nn.ReLU(), optim.build(spec, [], fused=True, captured=True),
    devices=[torch.device("cpu")], rates=lambda count: [next(rates)] * count,
)  # fmt: skip
losses = [float(stage([(torch.full((2,), value), torch.zeros(2))])) for value in (1.0, 2.0, 3.0)]

job = Job(
    world=World(rank=0, processes=1, devices=1, platform="cpu", cores=1, rendezvous=""), workload=workload,
    params=workload.init_params(0), optimizer=workload.optimizer, precision="fp32", global_batch=4,
    options={"micro_batches": 2, "schedule": "1f1b"},
)  # fmt: skip
blocks = nn.Sequential(*list(models.build(workload).children())[:2])
first = pipelining.Stage(blocks, job, first=True, last=False)
images = torch.randn(4, 3, *workload.input_shape[:2])
before = [buffer.clone() for buffer in blocks.buffers()]
moved, copied = [], []
usual = pipelining.kept
pipelining.kept = lambda tensors: copied.append(len(moved)) or usual(tensors)
for training, with_gradients in ((False, False), (True, False), (True, True)):
    for block in blocks:  # as the whole model does, which does not hold `blocks` itself
        block.train(training)
    with torch.set_grad_enabled(with_gradients):
        first(images)
    moved.append(any(not torch.equal(old, new) for old, new in zip(before, blocks.buffers(), strict=True)))
found = {"built": built, "graphs": len(stage.graphs), "losses": losses, "moved": moved, "copied": copied}
print(json.dumps(found))
