"""DistributedDataParallel: one process per device, no leader.

Every rank holds all parameters and optimizer state, and trains on its own equal share of the global batch. While
backward is still running, gradients that are ready are collected in buckets and averaged over the ranks by all-reduce,
so that communication hides behind computation. Every rank then makes the same update from the same averaged gradient,
and the copies of the parameters stay equal without ever being sent again. The slowest rank sets the pace: all wait for
it in the last all-reduce.

    rank 0 | F | B of the last layers | B of the first layers |          | update
    rank 1 | F | B of the last layers | B of the first layers |          | update      F forward, B backward
    links  |                          | all-reduce: last      | first    |

Each rank's gradient is that of the mean loss over its share. Since the shares are equal, the mean of these gradients is
the gradient of the global mean loss. Each rank keeps its own running statistics of BatchNorm, from its own samples, and
evaluation and checkpoints take their mean. (By default DDP would send those of rank 0 to all ranks before each forward,
and the mean would hold little but rank 0's history.) DDP rebuilds its buckets after its first step, in the order in
which gradients arrived. From three ranks on, a training resumed from a checkpoint therefore sums in another order in
its first step, and is equal up to rounding.

Options: `bucket_cap_mb`, the size of a bucket (small ones start earlier, large ones have less overhead);
`gradient_as_bucket_view`, reduced gradients stay in the buckets, which saves the copy back and their memory (each
gradient is still copied into its bucket; newer PyTorch copies all of a bucket at once); `static_graph`, every step uses
the same parameters, so DDP may plan ahead; `find_unused_parameters`, look in every step for parameters without a
gradient, which costs a walk through the graph and is only for networks with such parameters (`toy` in size `unused`:
without this option or `static_graph`, DDP waits for their gradients, and its second step fails); `compression=bf16`,
buckets are sent in half the bytes, rounded to 8 significant bits, so the training is no longer quite the same.
"""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from harness.contract import Job
from torch_impl import optim, tuning
from torch_impl.placement import Batch
from torch_impl.program import Program

# Each rank keeps its own running statistics: buffers are not broadcast before each forward. Older versions of PyTorch
# have only `broadcast_buffers`, which also turns off the broadcast at the start. Here all ranks start with equal ones.
NAMES = inspect.signature(DistributedDataParallel).parameters
OWN_STATISTICS: dict[str, Any] = {
    "forward_sync_buffers" if "forward_sync_buffers" in NAMES else "broadcast_buffers": False
}

# One call copies all gradients of a bucket into it, and one kernel divides them: torch 2.15 has it, 2.11 does not.
COPIED_TOGETHER: dict[str, Any] = {"batched_grad_copy": True} if "batched_grad_copy" in NAMES else {}

DEFAULT_BUCKET_MB = 25.0
"""PyTorch's own default. If it is not passed, DDP begins with a bucket of 1 MiB; if any size is passed, the first one
has that size as well."""


class DDP(Program):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.model = self.build_model()
        if job.normalization == "global":  # all-reduces each BatchNorm layer's sums, in forward and in backward
            self.model = nn.SyncBatchNorm.convert_sync_batchnorm(self.model)
        cap = job.options["bucket_cap_mb"]
        with tuning.building_stream(job):
            # DDP broadcasts rank 0's parameters once, and registers a hook on every parameter's gradient. The network
            # is compiled before it is wrapped, and torch.compile splits it where a bucket ends, so that buckets are
            # still sent while backward runs. It counts on a first bucket of 1 MiB, whatever size is passed, so it
            # splits there even where one bucket holds everything.
            self.network = DistributedDataParallel(
                tuning.compiled(self.model, job),
                device_ids=None if self.device.type == "cpu" else [self.device],
                bucket_cap_mb=None if cap == DEFAULT_BUCKET_MB else cap,
                gradient_as_bucket_view=job.options["gradient_as_bucket_view"],
                static_graph=job.options["static_graph"],
                find_unused_parameters=job.options["find_unused_parameters"],
                **OWN_STATISTICS,
                **(COPIED_TOGETHER if job.options["gradient_as_bucket_view"] else {}),
            )
        if job.options["compression"] == "bf16":
            self.network.register_comm_hook(None, default_hooks.bf16_compress_hook)
        # DDP learns a static graph in its first backward, which must not run under no_sync (its reducer asserts this).
        self.learning_graph = job.options["static_graph"]
        self.optimizer = self.build_optimizer(self.model.parameters())
        self.lr_schedule = optim.build_schedule(job.optimizer, self.optimizer)

    def train_step(self, placed: list[Batch]) -> torch.Tensor:
        losses = []
        self.optimizer.zero_grad(set_to_none=True)
        for number, (x, y) in enumerate(placed, start=1):  # this rank's share; one part per accumulation step
            # Without no_sync every accumulation step would all-reduce, though only the last one needs the result.
            communicates = number == len(placed) or self.learning_graph
            with nullcontext() if communicates else self.network.no_sync():
                with self.autocast():
                    loss = self.loss_fn(self.network(x), y)
                if len(placed) > 1:
                    loss = loss / len(placed)
                loss.backward()  # the all-reduces happen here: each starts as soon as its bucket is full
            losses.append(loss.detach())
        self.learning_graph = False
        self.optimizer.step()
        return sum(losses[1:], start=losses[0])


def build(job: Job) -> DDP:
    return DDP(job)
