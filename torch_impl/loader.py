"""PyTorch's input pipeline: a DataLoader, whose workers make batches while the devices train on earlier ones.

    worker processes    | 0: gather, transform | 2 ...          NumPy on the host's cores, `workers` batches at once
                        | 1: gather, transform | 3 ...
    a thread                     | pin 0 | pin 1 ...            GPUs only: to memory that a device copies from by itself
    this process                          | copy 0, step 0 | copy 1, step 1 ...     both only queued

Each rank has its own loader and workers, and reads only its own rows of every batch (in pipeline_schedules all rows:
its runtime splits the batch). The order comes from harness.datasets.Epochs and not from torch's generator, so that
every framework sees the same samples in the same steps.
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

if TYPE_CHECKING:  # loader workers import this file, and start a second sooner without the program
    from torch_impl.program import Program

Key = tuple[Step, int, int]  # a step, a rank, and the number of ranks


class Shares(Dataset):
    """A rank's share of each step: one Batch per accumulation step. Each worker has a copy of this dataset."""

    def __init__(self, epochs: Epochs, *, parts: int, dtype: torch.dtype, memory_format: torch.memory_format) -> None:
        self.epochs, self.parts, self.dtype, self.memory_format = epochs, parts, dtype, memory_format

    def __getitem__(self, key: Key) -> list[placement.Batch]:
        step, rank, ranks = key
        dtype = np.float64 if self.dtype == torch.float64 else np.float32
        arrays = self.epochs.gather(step, dtype=dtype, rank=rank, ranks=ranks, parts=self.parts)
        return [placement.on_host(part, self.dtype, self.memory_format) for part in arrays]

    def __len__(self) -> int:
        return len(self.epochs.batches)


class StepSampler(DistributedSampler):
    """This rank's share of each step in the epoch that set_epoch chose.

    DistributedSampler yields samples; this yields whole steps, so that a batch is gathered and transformed at once, and
    the last batch of an epoch may be short. The sampler stays in this process, because workers live longer than an
    epoch and are not told about set_epoch.
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
    """See harness.contract.Loader."""

    def __init__(self, program: Program, job: Job, epochs: Epochs, *, workers: int) -> None:
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
            persistent_workers=workers > 0,  # starting them takes seconds
            multiprocessing_context=fork_server() if workers else None,
        )

    def epoch(self, number: int) -> Iterator[list[placement.Batch]]:
        self.sampler.set_epoch(number)
        for parts in self.loader:
            yield self.program.put(parts, wait=False)

    def close(self) -> None:
        # DataLoader has no public close: it leaves that to the garbage collector, and an epoch that was left early may
        # still hold its iterator.
        running = self.loader._iterator
        if running is not None:
            running._shutdown_workers()  # pyright: ignore[reportAttributeAccessIssue]
            self.loader._iterator = None


def fork_server() -> BaseContext:
    """Workers are forked from a server process that has imported what they need, and done nothing else.

    Forking this process would copy the locks that threads of CUDA, NCCL and gloo may hold at that moment; "spawn" would
    import torch again in every worker.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", __name__])
    return context


def make_loader(program: Program, job: Job, epochs: Epochs, *, workers: int) -> TorchLoader:
    """See harness.contract.Loader."""
    return TorchLoader(program, job, epochs, workers=workers)
