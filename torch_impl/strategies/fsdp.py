"""Fully sharded data parallelism (FSDP2): one process a device, and no device holds the whole model for long.

Every parameter is cut along dim 0 over the ranks, and with it its gradient and its optimizer state: each rank holds,
and updates, its own part. A block of the network borrows the rest when it needs it:

    forward of a block    all-gather its parameters, compute, free what was borrowed
    backward of a block   all-gather them again, compute, reduce-scatter: each rank keeps its part of the mean gradient

The ranks train on equal parts of the global batch, as in DDP, and all wait for the slowest in every block's
collectives; the next block's all-gather runs while this one computes. That is half as much traffic again as DDP's
all-reduce, and 1/n of its memory. With reshard_after_forward=false a block keeps what it borrowed until its backward:
DDP's traffic, and whole parameters between forward and backward, but still 1/n of the optimizer state.

dim 0 need not be divisible: the parts are those of torch.chunk, and a rank whose part is empty still takes part in the
collectives. The whole tensors that gradients() and export() give are gathered too, so all ranks call them together.

bf16 is autocast over float32 parameters, as in every other strategy here, so that it is the same computation.
MixedPrecisionPolicy(param_dtype=bfloat16) is FSDP's own way and another computation: BatchNorm and the loss would take
bfloat16 too. It would gather half the bytes, and free what autocast keeps for backward: a bfloat16 copy of each weight.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from harness.contract import Job
from torch_impl import placement, stages, tuning
from torch_impl.normalization import with_batch_norm_over
from torch_impl.strategies.single import SingleDevice


class FSDP(SingleDevice):
    def parallelize(self, model: nn.Module) -> nn.Module:
        with_batch_norm_over(model, self.job.normalization)  # in place, as fully_shard: self.model is this model
        # a mesh of our own: the default mesh is of GPUs wherever torch was built for them
        mesh = init_device_mesh(self.device.type, (self.job.world.processes,))
        keep = self.job.options["reshard_after_forward"]
        for block in stages.blocks(self.model).values():
            if any(True for _ in block.parameters()):
                # each by itself: the hooks around it, which borrow and give back its parameters, cannot be compiled
                block.forward = tuning.compiled(block.forward, self.job)
                fully_shard(block, mesh=mesh, reshard_after_forward=keep)
        fully_shard(model, mesh=mesh, reshard_after_forward=keep)  # the root last: it orders its blocks' collectives
        return model

    @property
    def kernel_format(self) -> torch.memory_format:
        # fully_shard takes parameters that lie in their own order alone. Images as NHWC are enough: cuDNN then computes
        # in NHWC, and lays the kernels out anew in each step.
        return torch.contiguous_format

    def communication(self, *, last: bool) -> AbstractContextManager:
        # Else every accumulation step would reduce-scatter. Until the last, each rank adds up whole gradients.
        assert isinstance(self.model, FSDPModule)  # fully_shard has made it one
        self.model.set_requires_gradient_sync(last)
        return nullcontext()

    def evaluate(self, placed: list[placement.Batch]) -> tuple[float, float]:
        found = super().evaluate(placed)
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()  # with reshard_after_forward=false that is left to a backward, and there is none
        return found


def build(job: Job) -> FSDP:
    return FSDP(job)
