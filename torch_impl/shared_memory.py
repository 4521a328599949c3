"""Where async_sgd keeps the parameters that its ranks share: memory that all ranks of one host map, with a lock.

Over several hosts it is a store: torch_impl/shared_store.py.
"""

from __future__ import annotations

import fcntl
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from urllib.parse import urlparse

import torch
import torch.distributed as dist
from torch import nn

from harness.contract import Job

MEMORY = Path("/dev/shm")  # Linux's file system in memory; a container may have little of it


class Shared(ABC):
    """Tensors that all ranks share. Every method except `lock`, `refresh` and `publish` is a collective: all ranks call
    the same ones in the same order."""

    def __init__(self, job: Job) -> None:
        self.is_first = job.world.rank == 0

    @abstractmethod
    def tensor(self, initial: torch.Tensor) -> torch.Tensor:
        """A shared tensor with the values that `initial` has on rank 0."""

    @abstractmethod
    def lock(self) -> AbstractContextManager[None]:
        """One rank at a time. Within it the tensors are the newest, and what is written to them counts."""

    @abstractmethod
    def refresh(self) -> None:
        """Make the tensors of this rank the newest, while no rank writes."""

    @abstractmethod
    def publish(self) -> None:
        """Make the tensors of this rank those of all, while no other rank writes."""

    def share_parameters(self, model: nn.Module, *, initial: nn.Module) -> None:
        """Move a model's parameters, which must be on the host, to shared memory, with the values of `initial`'s."""
        for shared, given in zip(model.parameters(), initial.parameters(), strict=True):
            shared.data = self.tensor(given.detach().cpu())

    def share_optimizer_state(self, optimizer: torch.optim.Optimizer) -> None:
        """Move the state of an optimizer of shared parameters to shared memory, with zeros in it.

        torch creates this state in the first update, so one is made at learning rate 0.
        """
        groups = optimizer.param_groups
        parameters = [parameter for group in groups for parameter in group["params"]]
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        rates = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] = 0.0
        if not self.is_first:
            dist.barrier()
        optimizer.step()  # at rate 0 it writes the parameters back as they are
        if self.is_first:
            dist.barrier()
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
        for parameter in parameters:
            state = optimizer.state[parameter]
            for name, value in state.items():
                if isinstance(value, torch.Tensor):
                    state[name] = self.tensor(torch.zeros_like(value))


class SharedMemory(Shared):
    """Tensors that all ranks map. Rank 0 creates each; the others then open it. So there is only one of each."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.count = 0
        folder = Path(urlparse(job.world.rendezvous).path).parent
        self.lock_file = (folder / "shared-lock").open("w", encoding="utf-8")
        # Eight times the float64 parameters: enough for a copy and two moments, with room to spare.
        needed = 8 * sum(array.nbytes for array in job.params.values())
        in_memory = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > needed
        # A file on a disk would do, but the kernel would write it back again and again, also in timed blocks.
        decided = [str(MEMORY / f"likeforlike-{uuid.uuid4().hex}") if in_memory else str(folder / "shared")]
        dist.broadcast_object_list(decided, src=0)
        self.prefix = decided[0]

    def tensor(self, initial: torch.Tensor) -> torch.Tensor:
        path = Path(f"{self.prefix}-{self.count}")
        self.count += 1
        shape, size = initial.shape, max(initial.numel(), 1)
        if not self.is_first:
            dist.barrier()
        shared = torch.from_file(str(path), shared=True, size=size, dtype=initial.dtype)[: initial.numel()].view(shape)
        if self.is_first:
            shared.copy_(initial)
            dist.barrier()
        dist.barrier()
        if self.is_first:
            path.unlink()  # all ranks have it open: it vanishes with the last of them, even if the trial crashes
        return shared

    @contextmanager
    def lock(self) -> Iterator[None]:
        fcntl.flock(self.lock_file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self.lock_file, fcntl.LOCK_UN)

    def refresh(self) -> None:
        """They are."""

    def publish(self) -> None:
        """They are."""
