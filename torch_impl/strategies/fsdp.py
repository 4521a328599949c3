"""Fully sharded data parallelism (FSDP2): one process per device, each of which keeps a part of the model.

Every parameter is split along dim 0 over the ranks, and with it its gradient and its optimizer state: each rank holds
and updates its own shard. A block of the network gathers the missing shards when it needs them:

    forward of a block    all-gather its parameters, compute, free what was gathered
    backward of a block   all-gather them again, compute, reduce-scatter: each rank keeps its shard of the mean gradient

    rank 0 |          | F of block 1 | F of block 2 |          | B of block 2 | B of block 1 |          | update
    rank 1 |          | F of block 1 | F of block 2 |          | B of block 2 | B of block 1 |          | update
    links  | gather 1 | gather 2     |              | gather 2 | gather 1     | reduce 2     | reduce 1 |

A block of a stack, such as a bottleneck of ResNet-50, is gathered by itself. All other layers, the first and the last
ones, are gathered together at the beginning of forward: a collective for each small layer would cost more than it
saves. A network without stacks is gathered as a whole. With unit=stack, a stack is gathered, and compiled, as a whole.
Each unit costs Python time in forward and in backward, for small blocks more time than the blocks themselves take.

The ranks train on equal shares of the global batch, as in DDP, and all wait for the slowest in every block's
collectives. The next block's all-gather runs while this block computes. In forward Python launches it after this
block's work or, with prefetch=true, before it; in backward always before it. This takes 1.5 times the traffic of DDP's
all-reduce, and 1/n of the memory that DDP needs for parameters, gradients and optimizer state. With
reshard_after_forward=false a block keeps its gathered parameters until its backward, or, with accumulation, that of the
last part: the traffic is that of DDP, and whole parameters stay in memory between forward and backward, but each rank
still holds only 1/n of the optimizer state. Otherwise every part of a batch gathers them again.

dim 0 need not be divisible: the shards are those of torch.chunk, and a rank with an empty shard still takes part in the
collectives. export() gathers whole tensors too, so all ranks call it together.

In bf16, with mixed_precision_policy, convolutions and linear layers are gathered as bfloat16, which halves the traffic,
and autocast finds them rounded already. Gradients are reduced in float32. Everything else stays float32, in a group of
its own, because autocast would not round BatchNorm's parameters either. So the numbers are the same as without the
policy, where float32 is gathered and autocast rounds it for each operation. But under torch.compile, the hooks that
gather BatchNorm's parameters would cut a block into pieces. (From torch 2.15 on, param_dtype_override_fn needs no group
of its own.)
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from harness.contract import Job
from torch_impl import optim, tuning, weights
from torch_impl.placement import Batch
from torch_impl.program import Program, untrained_model

ROUNDED = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
"""Inputs are left to autocast."""


def stays_float32(module: nn.Module) -> bool:
    """Whether a module has parameters that autocast would not round."""
    return not isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d) and any(
        True for _ in module.parameters(recurse=False)
    )


def stacks_of(model: nn.Module) -> list[nn.Sequential]:
    """The stacks of blocks in a network: the Sequentials among its parts."""
    return [part for part in model if isinstance(part, nn.Sequential)] if isinstance(model, nn.Sequential) else []


def units(model: nn.Module, *, whole_stacks: bool) -> list[nn.Module]:
    """What is gathered by itself: whole stacks, or each block of a stack."""
    stacks = stacks_of(model)
    return [*stacks] if whole_stacks else [block for stack in stacks for block in stack]


class FSDP(Program):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        # On the meta device, which has shapes and no memory: no device holds the whole model while it is built.
        # Parameters stay contiguous, as fully_shard wants them. Images in NHWC are enough: cuDNN then computes in NHWC,
        # and converts the kernels in each step.
        with torch.device("meta"):
            model = untrained_model(job)
        if job.normalization == "global":  # all-reduces each BatchNorm layer's sums, in forward and in backward
            nn.SyncBatchNorm.convert_sync_batchnorm(model)
        # An explicit mesh: by default fully_shard makes one of GPUs whenever torch was built with GPU support.
        mesh = init_device_mesh(self.device.type, (job.world.processes,))
        reshard = job.options["reshard_after_forward"]
        own = units(model, whole_stacks=job.options["unit"] == "stack")
        others = [part for part in model.children() if part not in stacks_of(model)] if own else [model]
        for part in (*own, *others):
            tuning.compile_forward(part, job)  # what is called between the hooks that gather and free parameters
        policy = MixedPrecisionPolicy()  # the parameters' own format
        if job.precision == "bf16" and job.options["mixed_precision_policy"]:
            policy = ROUNDED
            if wide := [module for module in model.modules() if stays_float32(module)]:
                fully_shard(wide, mesh=mesh, reshard_after_forward=False, mp_policy=MixedPrecisionPolicy())
        gathered = [fully_shard(unit, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy) for unit in own]
        fully_shard(model, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)  # last, with all that is left
        if job.options["prefetch"]:
            for unit, following in pairwise(gathered):
                unit.set_modules_to_forward_prefetch([following])
        model.to_empty(device=self.device)  # memory for this rank's shards
        weights.reset_statistics(model)
        weights.load(model, job.workload, job.params)  # each rank cuts its shards out of the weights on the host
        self.model = self.network = model  # sharded in place
        self.optimizer = self.build_optimizer(model.parameters())  # over shards, so its state is sharded too
        self.lr_schedule = optim.build_schedule(job.optimizer, self.optimizer)

    def train_step(self, placed: list[Batch]) -> torch.Tensor:
        assert isinstance(self.model, FSDPModule)  # fully_shard has made it one
        losses = []
        self.optimizer.zero_grad(set_to_none=True)
        for number, (x, y) in enumerate(placed, start=1):  # this rank's share; one part per accumulation step
            last = number == len(placed)
            # Otherwise every accumulation step would reduce-scatter. Until the last, each rank sums whole gradients.
            self.model.set_requires_gradient_sync(last)
            if not self.job.options["reshard_after_forward"]:  # nor are the parameters gathered again for the next one
                self.model.set_reshard_after_backward(last)
            with self.autocast():
                loss = self.loss_fn(self.network(x), y)  # an all-gather before each block
            if len(placed) > 1:
                loss = loss / len(placed)
            loss.backward()  # an all-gather before each block, a reduce-scatter after it
            losses.append(loss.detach())
        self.optimizer.step()  # each rank updates its shards
        return sum(losses[1:], start=losses[0])

    def evaluate(self, placed: list[Batch]) -> tuple[float, float]:
        evaluated = super().evaluate(placed)
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()  # with reshard_after_forward=false backward would do this, but an evaluation has none
        return evaluated


def build(job: Job) -> FSDP:
    return FSDP(job)
