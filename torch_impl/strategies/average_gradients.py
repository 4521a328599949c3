"""Data parallelism by hand: what DistributedDataParallel does, in ten lines, without its overlap.

Every rank holds all parameters and optimizer state, and computes the gradient of its own equal part of the batch. When
backward is over, all ranks add up their gradients by all-reduce and divide by their number; then each makes the same
update. Nothing is sent at the start either: all ranks load the same initial weights, and equal updates keep them equal.

All ranks wait for the slowest one in the all-reduce, and no device computes meanwhile: DDP (ddp.py) starts to send the
last layers' gradients while the first ones' are still being computed. `bucket_cap_mb`: gradients are copied together
into buffers of so many MiB, so that many small ones cross as one; 0 sends each by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch._utils import _flatten_dense_tensors as flatten
from torch._utils import _unflatten_dense_tensors as unflatten

from harness.contract import Job
from torch_impl import tuning
from torch_impl.normalization import with_batch_norm_over
from torch_impl.strategies.single import SingleDevice


class AverageGradients(SingleDevice):
    def parallelize(self, model: nn.Module) -> nn.Module:
        return tuning.compiled(with_batch_norm_over(model, self.job.normalization), self.job)

    def exchange_gradients(self) -> None:
        ranks = self.job.world.processes
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        for bucket in buckets(parameters, cap_bytes=self.job.options["bucket_cap_mb"] * 2**20):
            gradients = [p.grad for p in bucket]
            total = flatten(gradients)
            dist.all_reduce(total)  # a sum
            total /= ranks
            for parameter, mean in zip(bucket, unflatten(total, gradients), strict=True):
                # A part of the buffer, without a copy back. But it lies as NCHW, and a gradient must lie as its
                # parameter does: torch's fused optimizers on the CPU take both in the order of memory, and ask nothing.
                alike = mean.stride() == parameter.stride()
                parameter.grad = mean if alike else torch.empty_like(parameter, requires_grad=False).copy_(mean)


def buckets(parameters: list[nn.Parameter], *, cap_bytes: float) -> Iterator[list[nn.Parameter]]:
    """The parameters in order, as many together as fit into `cap_bytes`, but at least one."""
    bucket, size = [], 0
    for parameter in parameters:
        if bucket and size + parameter.nbytes > cap_bytes:
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += parameter.nbytes
    if bucket:
        yield bucket


def build(job: Job) -> AverageGradients:
    return AverageGradients(job)
