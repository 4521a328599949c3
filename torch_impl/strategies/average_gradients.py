"""Data parallelism by hand: what DistributedDataParallel does, without its overlap of communication and computation.

Every rank holds all parameters and optimizer state, and computes the gradient of its own equal share of the batch. When
backward is over, all ranks sum their gradients by all-reduce and divide by the number of ranks; then each makes the
same update. Nothing is sent at the start: all ranks load the same initial weights, and equal updates keep them equal.

    rank 0 | F | B of the last layers | B of the first layers |            | update
    rank 1 | F | B of the last layers | B of the first layers |            | update      F forward, B backward
    links  |                                                  | all-reduce |

All ranks wait for the slowest one in the all-reduce, and no device computes meanwhile. DDP (ddp.py) starts to send the
last layers' gradients while those of the first layers are still being computed. `bucket_cap_mb`: gradients are copied
into buckets of up to this many MiB, so that many small ones are sent as one; with 0 each is sent by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn

from harness.contract import Job
from torch_impl import optim, tuning
from torch_impl.placement import Batch
from torch_impl.program import Program


class AverageGradients(Program):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.model = self.build_model()
        if job.normalization == "global":  # all-reduces each BatchNorm layer's sums, in forward and in backward
            self.model = nn.SyncBatchNorm.convert_sync_batchnorm(self.model)
        self.network = tuning.compiled(self.model, job)
        self.optimizer = self.build_optimizer(self.model.parameters())
        self.lr_schedule = optim.build_schedule(job.optimizer, self.optimizer)

    def train_step(self, placed: list[Batch]) -> torch.Tensor:
        losses = []
        self.optimizer.zero_grad(set_to_none=True)
        for x, y in placed:  # this rank's share; one part per accumulation step
            with self.autocast():
                loss = self.loss_fn(self.network(x), y)
            if len(placed) > 1:
                loss = loss / len(placed)
            loss.backward()
            losses.append(loss.detach())

        trained = [p for p in self.model.parameters() if p.grad is not None]
        for bucket in buckets(trained, cap_bytes=self.job.options["bucket_cap_mb"] * 2**20):
            gradients = as_vector(bucket)
            dist.all_reduce(gradients)  # the sum over the ranks
            gradients /= self.job.world.processes
            set_gradients(bucket, gradients)

        self.optimizer.step()
        return sum(losses[1:], start=losses[0])


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


def as_vector(bucket: list[nn.Parameter]) -> torch.Tensor:
    """The gradients of a bucket in one vector, each in the order in which its parameter lies in memory: as NHWC, if
    that is how it is stored. A single gradient is not copied.
    """
    gradients = [optim.laid_out(p.grad, p).as_strided((p.numel(),), (1,)) for p in bucket if p.grad is not None]
    return gradients[0] if len(gradients) == 1 else torch.cat(gradients)


def set_gradients(bucket: list[nn.Parameter], gradients: torch.Tensor) -> None:
    """Make the parts of such a vector the gradients of a bucket's parameters, without a copy."""
    parts = gradients.split([p.numel() for p in bucket])
    for parameter, part in zip(bucket, parts, strict=True):
        parameter.grad = part.as_strided(parameter.shape, parameter.stride())


def build(job: Job) -> AverageGradients:
    return AverageGradients(job)
