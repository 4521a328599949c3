"""Asynchronous SGD: ranks push gradients to shared parameters without waiting for each other.

The parameters and the optimizer's state live once, in host memory that all ranks map (a parameter server without the
server). Each rank has a copy of the parameters on its device. A step computes the gradient of the rank's own part of
the batch with that copy, then takes the lock, makes one update of the shared parameters, copies them back, and goes
on: nobody waits but for the lock. While a rank computed, others may have made updates, so its gradient is of parameters
that are no longer there; how stale it is depends on who came when.

    shared  | u0 | u1 |    | u0 |    | u1 | u0 | ...     one update for each push, in the order of arrival
    rank 0  | part of step 0 | step 1     | step 2 ...   gradient of its copy, then push and pull under the lock
    rank 1  | part of step 0  | step 1       | step 2 ...

It is a different algorithm (Dean et al. 2012, "Large scale distributed deep networks"): N ranks make N updates in the
time of one, each from 1/N of the samples, some of them stale. The suite proves it all the same: in the parity phase
each push notes which version of the parameters it had seen, and the golden reference repeats exactly that history.
"""

from __future__ import annotations

import fcntl
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlparse

import torch
import torch.distributed as dist
from torch import nn

from harness.contract import Arrays, Job
from harness.reference.loops import Push
from torch_impl import losses, models, optim, placement, weights
from torch_impl.strategies.single import SingleDevice

MEMORY = Path("/dev/shm")  # Linux' file system in memory; a container may have little of it
MOST_PUSHES = 4096  # that the parity phase can note


class SharedMemory:
    """Tensors that all ranks map. Rank 0 makes each; the others open it after it is there."""

    def __init__(self, job: Job) -> None:
        folder = Path(urlparse(job.world.rendezvous).path).parent
        self.first, self.count = job.world.rank == 0, 0
        self.lock_file = (folder / "shared-lock").open("w")
        # eight times the float64 parameters: for a copy and two moments, with room to spare
        needed = 8 * sum(array.nbytes for array in job.params.values())
        in_memory = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > needed
        # a disk's file would do, but the kernel would write it back again and again, also in timed blocks
        decided = [str(MEMORY / f"likeforlike-{uuid.uuid4().hex}") if in_memory else str(folder / "shared")]
        dist.broadcast_object_list(decided, src=0)
        self.prefix = decided[0]

    def tensor(self, initial: torch.Tensor) -> torch.Tensor:
        """A shared tensor with `initial`'s values on rank 0. A collective: every rank calls it in the same order."""
        path = Path(f"{self.prefix}-{self.count}")
        self.count += 1
        shape, size = initial.shape, max(initial.numel(), 1)
        if not self.first:
            dist.barrier()
        shared = torch.from_file(str(path), shared=True, size=size, dtype=initial.dtype)[: initial.numel()].view(shape)
        if self.first:
            shared.copy_(initial)
            dist.barrier()
        dist.barrier()
        if self.first:
            path.unlink()  # all have it open: it goes with the last of them, whatever becomes of this trial
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
        self.optimizer = self.build_optimizer()
        self.schedule = None  # its rate is set at each push
        self.share_optimizer_state()
        self.updates = self.memory.tensor(torch.zeros(1, dtype=torch.int64))
        self.history = self.memory.tensor(torch.zeros(MOST_PUSHES, 3, dtype=torch.int64))
        self.seen, self.steps = 0, 0

    @property
    def trained(self) -> nn.Module:
        return self.shared

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

    def step(self, placed: list[placement.Batch]) -> torch.Tensor:
        ((x, y),) = placed
        self.model.zero_grad(set_to_none=True)
        with self.autocast():
            loss = self.loss_fn(self.forward(x), y)
        loss.backward()
        self.last_loss = loss.detach()
        # Before the lock: on a GPU this waits for backward, and others must not wait for that.
        # NCHW, as the shared parameters lie, whatever the model's do.
        gradients = [None if p.grad is None else p.grad.to("cpu").contiguous() for p in self.model.parameters()]
        with self.memory.lock():
            self.push(gradients)
            self.pull()
        self.steps += 1
        return self.last_loss

    def push(self, gradients: list[torch.Tensor | None]) -> None:
        """One update of the shared parameters by this rank's gradients. Call it with the lock."""
        update = int(self.updates.item())
        for parameter, gradient in zip(self.shared.parameters(), gradients, strict=True):
            parameter.grad = gradient
        for group in self.optimizer.param_groups:
            # the schedule counts all ranks' updates
            group["lr"] = self.job.optimizer.learning_rate * optim.rate_factor(self.job.optimizer, update)
        self.optimizer.step()
        if self.job.keep_gradients:
            self.history[update] = torch.tensor([self.job.world.rank, self.steps, self.seen])
        self.updates += 1

    @torch.no_grad()
    def pull(self) -> None:
        """Copy the shared parameters to this rank's device. Call it with the lock: outside it, others' updates would be
        under way, and the copy of no version that ever was."""
        for ours, theirs in zip(self.shared.parameters(), self.model.parameters(), strict=True):
            theirs.copy_(ours)
        self.seen = int(self.updates.item())

    def pushes(self) -> list[Push]:
        """All updates in the order in which they came. A collective."""
        dist.barrier()
        return [Push(*row) for row in self.history[: int(self.updates.item())].tolist()]

    def meet(self) -> None:
        """All ranks come to the same version, and nobody goes on before they have. A collective."""
        dist.barrier()  # all pushes are in
        self.pull()
        dist.barrier()

    def evaluate(self, placed: list[placement.Batch]) -> tuple[float, float]:
        """Of the shared parameters: evaluation is a meeting."""
        self.meet()
        return super().evaluate(placed)

    def state(self) -> Arrays | None:
        """The shared parameters and optimizer state; a state is a meeting."""
        self.meet()
        found = super().state()
        dist.barrier()  # no push while others still read
        return None if found is None else found | {"optimizer/updates": self.updates.numpy().copy()}

    def load_state(self, state: Arrays) -> None:
        dist.barrier()
        super().load_state(state)  # all ranks write the same values to the same memory
        self.updates.copy_(torch.as_tensor(state.get("optimizer/updates", 0)))
        self.meet()

    def gradients(self) -> Arrays | None:
        """The mean of the ranks' first gradients."""
        mean = weights.gradients(self.model, ranks=self.job.world.processes)
        return weights.canonical(self.job.workload, self.whole(mean))

    def export(self) -> list[Arrays]:
        dist.barrier()
        return super().export()


def build(job: Job) -> AsyncSGD:
    return AsyncSGD(job)
