"""PyTorch's input pipeline: a DataLoader, whose workers make batches while the devices train on those before.

    worker processes    | 0: gather, transform | 2 ...          numpy on the host's cores, `workers` batches at once
                        | 1: gather, transform | 3 ...
    a thread                     | pin 0 | pin 1 ...            GPUs only: into memory that a device can copy from alone
    this process                          | copy 0, step 0 | copy 1, step 1 ...     both only queued

Each rank has a loader and workers of its own, and reads its own rows of every batch and no others (a rank of
pipeline_schedules reads all: micro-batches are cut later). The order comes from harness.data.Epochs and not from
torch's generator, so that every framework sees the same samples in the same steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import multiprocessing
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from harness.contract import Job
from harness.datasets import Epochs, Step
from torch_impl import placement, tuning

if TYPE_CHECKING:  # workers import this file, and a second less without the strategies
    from torch_impl.strategies.single import SingleDevice

Key = tuple[Step, int, int]  # a step, and which rank's share of how many


class Shares(Dataset):
    """A rank's share of a step, a batch for each accumulation step: workers get a copy of this."""

    def __init__(self, epochs: Epochs, *, parts: int, dtype: torch.dtype, memory_format: torch.memory_format) -> None:
        self.epochs, self.parts, self.dtype, self.memory_format = epochs, parts, dtype, memory_format

    def __getitem__(self, key: Key) -> list[placement.Batch]:
        step, rank, ranks = key
        dtype = np.float64 if self.dtype == torch.float64 else np.float32
        found = self.epochs.gather(step, dtype=dtype, rank=rank, ranks=ranks, parts=self.parts)
        return [placement.on_host(part, self.dtype, self.memory_format) for part in found]

    def __len__(self) -> int:
        return len(self.epochs.batches)


class StepSampler(DistributedSampler):
    """This rank's share of each step of the epoch that set_epoch named.

    Where DistributedSampler gives samples one by one, this gives whole steps: a batch is then gathered and transformed
    at once, and the last one of an epoch may be short. It stays in this process: workers that outlive an epoch would
    never hear of set_epoch.
    """

    def __init__(self, shares: Shares, *, rank: int, ranks: int) -> None:
        super().__init__(shares, num_replicas=ranks, rank=rank)
        self.epochs = shares.epochs

    def __iter__(self) -> Iterator[Key]:
        for step in self.epochs.steps(self.epoch):
            yield step, self.rank, self.num_replicas

    def __len__(self) -> int:
        return len(self.epochs.steps(self.epoch))


class TorchLoader:
    def __init__(self, program: SingleDevice, job: Job, epochs: Epochs, *, workers: int) -> None:
        rank, ranks = program.share
        formats: Any = {"dtype": program.dtype, "memory_format": tuning.memory_format(job)}
        shares = Shares(epochs, parts=job.accumulation_steps, **formats)
        self.program, self.sampler = program, StepSampler(shares, rank=rank, ranks=ranks)
        self.loader = DataLoader(
            shares,
            batch_size=None,  # a key is a whole step
            sampler=self.sampler,
            num_workers=workers,
            pin_memory=job.world.platform == "gpu",
            persistent_workers=workers > 0,  # starting them at every epoch would cost seconds each time
            multiprocessing_context=fork_server() if workers else None,
        )

    def epoch(self, number: int) -> Iterator[list[placement.Batch]]:
        self.sampler.set_epoch(number)
        for parts in self.loader:
            yield self.program.put(parts, wait=False)

    def close(self) -> None:
        # DataLoader has no close of its own: it leaves that to the garbage collector, and an epoch that was left early
        # may still hold its iterator.
        running = self.loader._iterator
        if running is not None:
            running._shutdown_workers()  # pyright: ignore[reportAttributeAccessIssue]
            self.loader._iterator = None


def fork_server() -> BaseContext:
    """Workers are forked from a process that has imported all they need, once, and done nothing else.

    The default, forking this process, would copy the locks of the threads of CUDA, NCCL and gloo in whatever state they
    are; "spawn" would import torch anew in every worker.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", __name__])
    return context


def make_loader(program: SingleDevice, job: Job, epochs: Epochs, *, workers: int) -> TorchLoader:
    """See harness.contract.Loader."""
    return TorchLoader(program, job, epochs, workers=workers)
