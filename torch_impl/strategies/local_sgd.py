"""Local SGD: every rank trains on its own, and every few steps the ranks average their parameters.

Every rank holds its own parameters and optimizer state, and updates them from its own share of each batch. After every
K = `sync_every` steps the parameters (not the optimizer states) are averaged over the ranks by all-reduce. Compared
with DDP, 1/K of the bytes are sent, and ranks wait for each other 1/K as often.

    rank 0 | step | step | step | step |      | step | ...
    rank 1 | step | step | step | step | mean | step | ...      sync_every=4

It is a different algorithm: between two averages the ranks' parameters drift apart, and their mean is not where the
mean gradient would have led (Stich 2019, arXiv:1805.09767). With sync_every=1 and plain SGD it is the same algorithm.

PyTorch's own classes for this are PeriodicModelAverager and PostLocalSGDOptimizer (torch.distributed). Here the average
is written out: theirs puts new tensors in the place of the parameters, and makes the host wait for the device first.

The loss shown is the mean of the ranks' own losses. Evaluation uses the mean of their parameters, which is what local
SGD returns as its result. A checkpoint holds this mean and, to resume from, each rank's own state.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from harness.contract import Arrays, Job
from torch_impl import optim, tuning
from torch_impl.moments import OF_WORKER
from torch_impl.placement import Batch
from torch_impl.program import Program


class LocalSGD(Program):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.model = self.build_model()
        self.network = tuning.compiled(self.model, job)
        self.optimizer = self.build_optimizer(self.model.parameters())
        self.lr_schedule = optim.build_schedule(job.optimizer, self.optimizer)
        self.steps_made = 0

    def train_step(self, placed: list[Batch]) -> torch.Tensor:
        losses = []
        self.optimizer.zero_grad(set_to_none=True)
        for x, y in placed:  # this rank's share; one part per accumulation step
            with self.autocast():
                loss = self.loss_fn(self.network(x), y)
            if len(placed) > 1:
                loss = loss / len(placed)
            loss.backward()
            losses.append(loss.detach())
        self.optimizer.step()  # from this rank's own gradient
        self.steps_made += 1
        if self.is_averaged:
            self.average_parameters()
        return sum(losses[1:], start=losses[0])

    @property
    def is_averaged(self) -> bool:
        """Whether the parameters are equal on all ranks after this many steps."""
        return self.steps_made % self.job.options["sync_every"] == 0

    @torch.no_grad()
    def average_parameters(self) -> None:
        """Set the parameters to their mean over the ranks. All are sent as one vector, each as it lies in memory: there
        it must be dense."""
        parameters = list(self.model.parameters())
        vector = torch.cat([p.as_strided((p.numel(),), (1,)) for p in parameters])
        dist.all_reduce(vector)  # the sum over the ranks
        vector /= self.job.world.processes
        for parameter, part in zip(parameters, vector.split([p.numel() for p in parameters]), strict=True):
            parameter.copy_(part.as_strided(parameter.shape, parameter.stride()))

    def evaluate(self, placed: list[Batch]) -> tuple[float, float]:
        """Loss and accuracy of the mean of the ranks' parameters; training goes on with each rank's own."""
        if self.is_averaged:
            return super().evaluate(placed)
        own = [p.detach().clone() for p in self.model.parameters()]
        self.average_parameters()
        evaluated = super().evaluate(placed)
        with torch.no_grad():
            for parameter, value in zip(self.model.parameters(), own, strict=True):
                parameter.copy_(value)
        return evaluated

    def state(self) -> Arrays | None:
        own, world = super().state(), self.job.world
        every: list[Any] | None = [None] * world.processes if world.rank == 0 else None
        dist.gather_object(own, every)
        if every is None:
            return None
        gathered: Arrays = {"optimizer/steps": np.array(self.steps_made)}
        for name in every[0]:
            if name.startswith("running/"):
                gathered[name] = every[0][name]  # already averaged
                continue
            if name.startswith("model/"):
                # In float64 the mean of equal float32 numbers is that number.
                mean = np.mean([state[name] for state in every], axis=0, dtype=np.float64)
                gathered[name] = mean.astype(every[0][name].dtype)
            gathered |= {f"{OF_WORKER.format(rank)}{name}": state[name] for rank, state in enumerate(every)}
        return gathered

    def load_state(self, state: Arrays) -> None:
        prefix = OF_WORKER.format(self.job.world.rank)
        own = {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}
        super().load_state(state | own)
        self.steps_made = int(state.get("optimizer/steps", 0))


def build(job: Job) -> LocalSGD:
    return LocalSGD(job)
