"""Asynchronous SGD: ranks push gradients to shared parameters without waiting for each other.

The parameters and the optimizer state exist once, in host memory that all ranks map (a parameter server without the
server). Over several hosts, whose ranks have no memory in common, rank 0 serves them (shared_store.py). Each rank has a
copy of the parameters on its device. A step computes the gradient of the rank's own share of the batch with that copy.
Then the rank takes a lock, updates the shared parameters with its gradient (push), copies them back to its device
(pull) and goes on. It waits for nothing but the lock. Parameters and gradients cross between device and host one by one
and through pageable memory, so on GPUs these copies set the pace.

    shared  | u0 | u1 |    | u0 |    | u1 | u0 | ...     one update per push, in the order of arrival
    rank 0  | share of step 0 | step 1     | step 2 ...  gradient with its copy, then push and pull under the lock
    rank 1  | share of step 0  | step 1       | step 2 ...

While a rank computed, others may have updated the shared parameters, so its gradient belongs to older parameters: it is
stale. How stale depends on the order in which ranks arrive.

It is a different algorithm (Dean et al. 2012, "Large scale distributed deep networks"): N ranks make N updates in the
time of one, each from 1/N of the samples, some of them stale. The gate proves it all the same: each push records which
version of the parameters its gradients belong to, and in the parity phase the golden reference repeats that history.

With push_every=K a rank sums the gradients of K steps in a buffer on its device, and pushes and pulls after every K-th
step, so that both cost 1/K. This is DistBelief's n_push (section 4.1; algorithm 7.1 adds up "accrued gradients") with
n_fetch = n_push. As there, the sum is pushed, not the mean: a sample's gradient counts as much whatever K is. But here
the rank's own copy stays as it was pulled until the next pull. What is in the buffer when a phase ends is not pushed.
It is not part of the exported parameters, but it is part of the state, and a training that loads the state goes on with
it.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from harness.contract import Arrays, Job
from harness.reference.asynchronous import Buffer, History
from torch_impl import models, optim, tuning
from torch_impl.placement import Batch
from torch_impl.program import Program
from torch_impl.shared_memory import SharedMemory
from torch_impl.shared_store import SharedStore

MOST_PUSHES = 4096  # pushes of each rank that are recorded; a new one overwrites the one this many before it


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
        self.seen = 0  # how many updates this rank's copy includes
        self.steps_made = 0  # of this rank
        self.buffered: list[tuple[int, int]] = []  # the step of each gradient in the buffer, and the version it saw
        self.pushed: deque[tuple[int, Buffer]] = deque(maxlen=MOST_PUSHES)  # of this rank, with the updates before each

    def train_step(self, placed: list[Batch]) -> torch.Tensor:
        ((x, y),) = placed
        if not self.buffered:
            self.model.zero_grad(set_to_none=True)
        with self.autocast():
            loss = self.loss_fn(self.network(x), y)
        loss.backward()  # adds to the gradients in the buffer
        self.buffered.append((self.steps_made, self.seen))
        if self.is_full:
            self.exchange()
        self.steps_made += 1
        return loss.detach()

    @property
    def is_full(self) -> bool:
        """Whether the buffer is pushed now."""
        return len(self.buffered) >= self.job.options["push_every"]

    def exchange(self) -> None:
        """Push what is in the buffer, and pull."""
        # Before the lock: on a GPU this waits for backward, and the other ranks must not wait for that too.
        # Contiguous, as the shared parameters are, whatever the model's own memory format is.
        gradients = [None if p.grad is None else p.grad.to("cpu").contiguous() for p in self.model.parameters()]
        with self.memory.lock():
            self.push(gradients)
            self.pull()
        self.buffered.clear()  # the next step sets the gradients to zero

    def push(self, gradients: list[torch.Tensor | None]) -> None:
        """Update the shared parameters with this rank's gradients. Call it with the lock held."""
        update = int(self.updates.item())
        for parameter, gradient in zip(self.shared.parameters(), gradients, strict=True):
            parameter.grad = gradient
        for group in self.optimizer.param_groups:
            # The schedule counts the updates of all ranks.
            group["lr"] = self.job.optimizer.learning_rate * optim.rate_factor(self.job.optimizer, update)
        self.optimizer.step()
        self.pushed.append((update, self.buffer()))
        self.updates += 1

    def buffer(self) -> Buffer:
        """What is in the buffer, for the record."""
        steps, versions = zip(*self.buffered, strict=True)
        return Buffer(self.job.world.rank, steps, versions)

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

    def pushes(self) -> History:
        """All updates in the order in which they came, in a program that began anew, and what is left in the buffers.
        A collective.

        Raises RuntimeError if there were more than are recorded.
        """
        pushed: dict[int, Buffer] = {}
        left: list[Buffer] = []
        for of_rank, in_buffer in self.of_all_ranks((list(self.pushed), self.buffer() if self.buffered else None)):
            pushed |= dict(of_rank)
            left += [] if in_buffer is None else [in_buffer]
        self.memory.refresh()
        count = int(self.updates.item())
        if count > len(pushed):
            raise RuntimeError(f"{count} updates were made, and only {len(pushed)} of them are still recorded")
        return History(tuple(pushed[number] for number in range(count)), tuple(left))

    def of_all_ranks(self, own: Any) -> list[Any]:
        """Every rank's `own`, in the order of the ranks. A collective."""
        every: list[Any] = [None] * self.job.world.processes
        dist.all_gather_object(every, own)
        return every

    def evaluate(self, placed: list[Batch]) -> tuple[float, float]:
        """Loss and accuracy of the shared parameters."""
        self.meet()
        return super().evaluate(placed)

    def state(self) -> Arrays | None:
        """The shared parameters and optimizer state, and what is in the ranks' buffers."""
        self.meet()
        state = super().state()
        buffers = self.state_of_buffers()  # no rank pushes while others still read: it waits for all
        return None if state is None else state | {"optimizer/updates": self.updates.numpy().copy()} | buffers

    def state_of_buffers(self) -> Arrays:
        """The sums of gradients in all ranks' buffers, and of how many steps they are. A collective."""
        named = self.model.named_parameters() if self.buffered else ()
        own = {name: p.grad.to("cpu").contiguous().numpy() for name, p in named if p.grad is not None}
        found = {"optimizer/buffered": np.array(len(self.buffered))} if self.buffered else {}
        for rank, buffer in enumerate(self.of_all_ranks(own)):
            found |= {f"optimizer/rank{rank}/buffer/{name}": array for name, array in buffer.items()}
        return found

    def load_state(self, state: Arrays) -> None:
        dist.barrier()
        super().load_state(state)  # all ranks write the same values to the same memory
        self.updates.copy_(torch.as_tensor(state.get("optimizer/updates", 0)))
        if self.job.world.rank == 0:
            self.memory.publish()
        pushes, buffered = int(self.updates.item()) // self.job.world.processes, int(state.get("optimizer/buffered", 0))
        self.steps_made = pushes * self.job.options["push_every"] + buffered
        self.pushed.clear()
        self.meet()
        self.buffered = [(step, self.seen) for step in range(self.steps_made - buffered, self.steps_made)]
        self.model.zero_grad(set_to_none=True)
        for name, parameter in self.model.named_parameters():
            array = state.get(f"optimizer/rank{self.job.world.rank}/buffer/{name}")
            if array is not None:
                parameter.grad = torch.empty_like(parameter).copy_(torch.from_numpy(array))

    def export(self) -> list[Arrays]:
        """The shared parameters after all pushes so far. A collective."""
        dist.barrier()
        exported = super().export()
        dist.barrier()  # no rank pushes while others still read
        return exported


def build(job: Job) -> AsyncSGD:
    return AsyncSGD(job)
