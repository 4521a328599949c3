"""Asynchronous SGD: ranks push gradients to shared parameters without waiting for each other.

The parameters and the optimizer state exist once, in host memory that all ranks map (a parameter server without the
server). Over several hosts, whose ranks have no memory in common, rank 0 serves them (shared_store.py). Each rank has a
copy of the parameters on its device. A step computes the gradient of the rank's own share of the batch with that copy.
Then the rank takes a lock, updates the shared parameters with its gradient (push), copies them back to its device
(pull) and goes on. It waits for nothing but the lock.

    shared  | u0 | u1 |    | u0 |    | u1 | u0 | ...     one update per push, in the order of arrival
    rank 0  | share of step 0 | step 1     | step 2 ...  gradient with its copy, then push and pull under the lock
    rank 1  | share of step 0  | step 1       | step 2 ...

While a rank computed, others may have updated the shared parameters, so its gradient belongs to older parameters: it is
stale. How stale depends on who came when.

It is a different algorithm (Dean et al. 2012, "Large scale distributed deep networks"): N ranks make N updates in the
time of one, each from 1/N of the samples, some of them stale. The gate proves it all the same: each push records which
version of the parameters its gradient belongs to, and in the parity phase the golden reference repeats that history.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from harness.contract import Arrays, Job
from harness.reference.loops import Push
from torch_impl import models, optim, tuning
from torch_impl.placement import Batch
from torch_impl.program import Program
from torch_impl.shared_memory import SharedMemory
from torch_impl.shared_store import SharedStore

MOST_PUSHES = 4096  # that are recorded; each one takes the place of the one this many before


class AsyncSGD(Program):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.model = self.build_model()  # this rank's copy
        self.network = tuning.compiled(self.model, job)
        self.memory = SharedStore(job) if job.world.hosts > 1 else SharedMemory(job)
        self.shared = models.build(job.workload).to(self.dtype)
        self.memory.share_parameters(self.shared, initial=self.model)
        self.optimizer = self.build_optimizer(self.shared.parameters())
        self.lr_schedule = None  # each push sets the rate
        self.memory.share_optimizer_state(self.optimizer)
        self.updates = self.memory.tensor(torch.zeros(1, dtype=torch.int64))  # of all ranks
        self.history = self.memory.tensor(torch.zeros(MOST_PUSHES, 3, dtype=torch.int64))
        self.seen = 0  # how many updates this rank's copy includes
        self.steps_made = 0  # of this rank

    def train_step(self, placed: list[Batch]) -> torch.Tensor:
        ((x, y),) = placed
        self.model.zero_grad(set_to_none=True)
        with self.autocast():
            loss = self.loss_fn(self.network(x), y)
        loss.backward()
        # Before the lock: on a GPU this waits for backward, and the other ranks must not wait for that too.
        # Contiguous, as the shared parameters are, whatever the model's own memory format is.
        gradients = [None if p.grad is None else p.grad.to("cpu").contiguous() for p in self.model.parameters()]
        with self.memory.lock():
            self.push(gradients)
            self.pull()
        self.steps_made += 1
        return loss.detach()

    def push(self, gradients: list[torch.Tensor | None]) -> None:
        """Update the shared parameters with this rank's gradients. Call it with the lock held."""
        update = int(self.updates.item())
        for parameter, gradient in zip(self.shared.parameters(), gradients, strict=True):
            parameter.grad = gradient
        for group in self.optimizer.param_groups:
            # The schedule counts the updates of all ranks.
            group["lr"] = self.job.optimizer.learning_rate * optim.rate_factor(self.job.optimizer, update)
        self.optimizer.step()
        self.history[update % MOST_PUSHES] = torch.tensor([self.job.world.rank, self.steps_made, self.seen])
        self.updates += 1

    @torch.no_grad()
    def pull(self) -> None:
        """Copy the shared parameters to this rank's device. Call it with the lock held.

        Without the lock another rank could be in the middle of an update, and the copy would mix two versions.
        """
        for shared, own in zip(self.shared.parameters(), self.model.parameters(), strict=True):
            own.copy_(shared)
        self.seen = int(self.updates.item())

    # What follows needs all ranks at the same version, so it waits for them.

    @property
    def trained(self) -> nn.Module:
        self.memory.refresh()
        return self.shared

    def meet(self) -> None:
        """Bring all ranks to the same version of the parameters. A collective."""
        dist.barrier()  # all pushes are in
        self.memory.refresh()
        self.pull()
        dist.barrier()  # no rank pushes before all have pulled

    def pushes(self) -> list[Push]:
        """All updates in the order in which they came, in a program that began anew. A collective.

        Raises RuntimeError if there were more than are recorded.
        """
        dist.barrier()
        self.memory.refresh()
        count = int(self.updates.item())
        if count > MOST_PUSHES:
            raise RuntimeError(f"{count} updates were made, and the first {count - MOST_PUSHES} are no longer recorded")
        return [Push(*row) for row in self.history[:count].tolist()]

    def evaluate(self, placed: list[Batch]) -> tuple[float, float]:
        """Loss and accuracy of the shared parameters."""
        self.meet()
        return super().evaluate(placed)

    def state(self) -> Arrays | None:
        """The shared parameters and optimizer state."""
        self.meet()
        state = super().state()
        dist.barrier()  # no rank pushes while others still read
        return None if state is None else state | {"optimizer/updates": self.updates.numpy().copy()}

    def load_state(self, state: Arrays) -> None:
        dist.barrier()
        super().load_state(state)  # all ranks write the same values to the same memory
        self.updates.copy_(torch.as_tensor(state.get("optimizer/updates", 0)))
        self.steps_made = int(self.updates.item()) // self.job.world.processes
        if self.job.world.rank == 0:
            self.memory.publish()
        self.meet()

    def export(self) -> list[Arrays]:
        """The shared parameters after all pushes so far. A collective."""
        dist.barrier()
        exported = super().export()
        dist.barrier()  # no rank pushes while others still read
        return exported


def build(job: Job) -> AsyncSGD:
    return AsyncSGD(job)
