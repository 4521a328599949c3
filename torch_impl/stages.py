"""A model as an ordered list of blocks, cut into stages: what model and pipeline parallelism have in common."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from harness.contract import Job
from harness.spec import partition
from torch_impl import placement, runtime, tuning

TIMED_RUNS = 3  # each block's time is the smallest of so many


def blocks(model: nn.Sequential) -> dict[str, nn.Module]:
    """The model's blocks by name, in order: its children, where a child that is a Sequential counts by its own."""
    found: dict[str, nn.Module] = {}
    for name, child in model.named_children():
        if isinstance(child, nn.Sequential):
            found |= {f"{name}.{inner}": block for inner, block in child.named_children()}
        else:
            found[name] = child
    return found


def cut_points(model: nn.Sequential, job: Job) -> tuple[int, ...]:
    """The index of the first block of each stage after the first, as the option `cut` says.

    "parameters" balances the number of parameters, "time" the measured time of forward and backward; else names, as in
    harness.partition.cut_points. Raises UsageError for names that are none.
    """
    found = blocks(model)
    stages = job.world.devices * partition.stages_per_device(job.options.get("schedule", ""))
    how = job.options["cut"]
    if how == "parameters":
        return partition.balance([sum(p.numel() for p in block.parameters()) for block in found.values()], stages)
    if how == "time":
        return agreed(partition.balance(block_seconds(list(found.values()), job), stages), job)
    return partition.cut_points(how, list(found), stages)


def split(model: nn.Sequential, points: tuple[int, ...]) -> list[nn.Sequential]:
    """The model as one Sequential for each stage. Modules are shared, not copied."""
    modules = list(blocks(model).values())
    return [nn.Sequential(*modules[start:end]) for start, end in pairwise([0, *points, len(modules)])]


def agreed(points: tuple[int, ...], job: Job) -> tuple[int, ...]:
    """Rank 0's points on every rank: each has measured its own times."""
    if job.world.processes == 1:
        return points
    decided = [points]
    dist.broadcast_object_list(decided, src=0)
    return decided[0]


def block_seconds(modules: list[nn.Module], job: Job) -> list[float]:
    """Seconds of forward and backward of each block, by itself, on the first device, for one whole batch of zeros."""
    device = runtime.device(job.world)
    shape = (job.global_batch, *job.workload.input_shape)
    known = runtime.DTYPES[job.precision], tuning.memory_format(job)
    x, _ = placement.on_host({"x": np.zeros(shape), "y": np.zeros(1)}, *known)
    x = x.to(device)
    statistics = [(buffer, buffer.clone()) for module in modules for buffer in module.buffers()]
    seconds = []
    for module in modules:
        module.to(device)
        times = []
        for _ in range(TIMED_RUNS):
            given = x.detach().clone().requires_grad_()
            runtime.sync(job.world)
            start = time.perf_counter()
            output = module(given * 1)  # * 1: an in-place block must not write over a leaf
            output.sum().backward()
            runtime.sync(job.world)
            times.append(time.perf_counter() - start)
        seconds.append(min(times))
        module.zero_grad(set_to_none=True)
        with torch.no_grad():
            x = module(x)
    for buffer, before in statistics:
        buffer.copy_(before)  # measuring must not leave a trace
    return seconds


def to_devices(stages: list[nn.Sequential], job: Job) -> list[torch.device]:
    """Put each stage on its device; returns the devices."""
    devices = [runtime.device(job.world, index) for index in range(len(stages))]
    for stage, device in zip(stages, devices, strict=True):
        stage.to(device, memory_format=tuning.memory_format(job))  # pyright: ignore[reportCallIssue]
    return devices
