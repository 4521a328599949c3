"""Asynchronous SGD: ranks push gradients to shared parameters without waiting for each other.

The parameters and the optimizer's state live once, in host memory that all ranks map (a parameter server without the
server). Each rank has a copy of the parameters on its device. A step computes the gradient of the rank's own part of
the batch with that copy, then takes the lock, makes one update of the shared parameters, copies them back, and goes
on: nobody waits but for the lock. While a rank computed, others may have made updates, so its gradient is of parameters
that are no longer there; how stale it is depends on who came when.

It is a different algorithm (Dean et al. 2012, "Large scale distributed deep networks"): N ranks make N updates in the
time of one, each from 1/N of the samples, some of them stale. The suite proves it all the same: in the parity phase
each push notes which version of the parameters it had seen, and the golden reference repeats exactly that history.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlparse

import torch
import torch.distributed as dist

from harness.contract import Arrays, Job
from harness.golden import Push
from torch_impl import losses, models, optim, placement, weights
from torch_impl.strategies.single import SingleDevice

MOST_PUSHES = 4096  # that the parity phase can note


class SharedMemory:
    """Tensors in files that all ranks map. Rank 0 makes each; the others open it after it is there."""

    def __init__(self, job: Job) -> None:
        self.folder, self.first, self.count = Path(urlparse(job.world.rendezvous).path).parent, job.world.rank == 0, 0
        self.lock_file = (self.folder / "shared-lock").open("w")

    def tensor(self, initial: torch.Tensor) -> torch.Tensor:
        """A shared tensor with `initial`'s values on rank 0. A collective: every rank calls it in the same order."""
        path = str(self.folder / f"shared-{self.count}")
        self.count += 1
        shape, size = initial.shape, max(initial.numel(), 1)
        if not self.first:
            dist.barrier()
        shared = torch.from_file(path, shared=True, size=size, dtype=initial.dtype)[: initial.numel()].view(shape)
        if self.first:
            shared.copy_(initial)
            dist.barrier()
        return shared

    @contextmanager
    def lock(self) -> Iterator[None]:
        """One rank at a time."""
        fcntl.flock(self.lock_file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self.lock_file, fcntl.LOCK_UN)


class AsyncSGD(SingleDevice):
    def prepare_training(self) -> None:
        self.loss_fn = losses.get(self.job.workload.loss)
        self.last_loss = torch.zeros(())
        self.memory = SharedMemory(self.job)
        self.shared = models.build(self.job.workload).to(self.dtype)
        for ours, theirs in zip(self.shared.parameters(), self.model.parameters(), strict=True):
            ours.data = self.memory.tensor(theirs.detach().cpu())
        self.optimizer = optim.build(self.job.optimizer, self.shared.parameters())
        self.share_optimizer_state()
        self.updates = self.memory.tensor(torch.zeros(1, dtype=torch.int64))
        self.history = self.memory.tensor(torch.zeros(MOST_PUSHES, 3, dtype=torch.int64))
        self.seen, self.steps = 0, 0

    def share_optimizer_state(self) -> None:
        """Have torch make the state by an update at rate 0, then move it, cleared, to shared memory."""
        for parameter in self.shared.parameters():
            parameter.grad = torch.zeros_like(parameter)
        rates = [group["lr"] for group in self.optimizer.param_groups]
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0
        if self.memory.first:
            self.optimizer.step()
            dist.barrier()
        else:
            dist.barrier()
            self.optimizer.step()  # at rate 0 it writes back what is there
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        for parameter in self.shared.parameters():
            state = self.optimizer.state[parameter]
            for name, value in state.items():
                if isinstance(value, torch.Tensor):
                    state[name] = self.memory.tensor(torch.zeros_like(value))

    def step(self, placed: list[placement.Batch]) -> None:
        ((x, y),) = placed
        self.model.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.job.precision == "bf16"):
            loss = self.loss_fn(self.forward(x), y)
        loss.backward()
        self.last_loss = loss.detach()
        with self.memory.lock():
            self.push()
            self.pull()
        self.steps += 1

    def push(self) -> None:
        """One update of the shared parameters by this rank's gradient. Call it with the lock."""
        update = int(self.updates.item())
        for ours, theirs in zip(self.shared.parameters(), self.model.parameters(), strict=True):
            ours.grad = None if theirs.grad is None else theirs.grad.to("cpu")
        for group in self.optimizer.param_groups:
            # the schedule counts all ranks' updates
            group["lr"] = self.job.optimizer.learning_rate * optim.rate_factor(self.job.optimizer, update)
        self.optimizer.step()
        if self.job.keep_gradients:
            self.history[update] = torch.tensor([self.job.world.rank, self.steps, self.seen])
        self.updates += 1

    @torch.no_grad()
    def pull(self) -> None:
        """Copy the shared parameters to this rank's device. Call it with the lock."""
        for ours, theirs in zip(self.shared.parameters(), self.model.parameters(), strict=True):
            theirs.copy_(ours)
        self.seen = int(self.updates.item())

    def pushes(self) -> list[Push]:
        """All updates in the order in which they came. A collective."""
        dist.barrier()
        return [Push(*row) for row in self.history[: int(self.updates.item())].tolist()]

    def gradients(self) -> Arrays | None:
        """The mean of the ranks' first gradients."""
        return weights.gradients(self.model, self.job.workload, ranks=self.job.world.processes)

    def export(self) -> list[Arrays]:
        dist.barrier()
        return [weights.parameters(self.shared, self.job.workload)]


def build(job: Job) -> AsyncSGD:
    return AsyncSGD(job)
