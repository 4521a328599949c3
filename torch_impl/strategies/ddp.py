"""DistributedDataParallel: one process a device, no leader.

Every rank holds all parameters and optimizer state, and trains on its own equal part of the global batch. While
backward still runs, gradients that are ready are collected in buckets and averaged over the ranks by all-reduce, so
that communication hides behind computation. Every rank then makes the same update from the same averaged gradient, and
the copies stay equal without ever being sent again. The slowest rank sets the pace: all wait for it in the last
all-reduce.

Averaging the ranks' gradients of their mean losses gives the gradient of the global mean, because the parts are equal.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from harness.contract import Arrays, Job
from torch_impl import placement
from torch_impl.strategies.single import SingleDevice


class DDP(SingleDevice):
    def parallelize(self, model: nn.Module) -> nn.Module:
        # The wrapper broadcasts rank 0's parameters once, and hooks every parameter's gradient.
        return DistributedDataParallel(model, device_ids=None if self.device.type == "cpu" else [self.device])

    def place(self, batch: Arrays) -> placement.Batch:
        world = self.job.world
        return placement.to_device(placement.share(batch, world.rank, world.processes), self.device, self.dtype)

    def loss(self) -> float:
        total = self.last_loss.clone().to(torch.float64)
        dist.all_reduce(total)
        return total.item() / self.job.world.processes


def build(job: Job) -> DDP:
    return DDP(job)
