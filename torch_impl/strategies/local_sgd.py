"""Local SGD: every rank trains on its own, and now and then all take the mean of their parameters.

Every rank holds parameters and optimizer state of its own and updates them from its own part of each batch alone. After
every `sync_every` steps the parameters, not the optimizers' states, are averaged over the ranks by all-reduce: K times
fewer bytes than DDP, and ranks wait for each other K times less often.

It is a different algorithm: between two meetings the ranks walk apart, and the mean of their places is not where one
walker with the mean gradient would be (Stich 2019, arXiv:1805.09767). With sync_every=1 and plain SGD it is the same.
The loss that is shown is the mean of the ranks' own; what is evaluated is the mean of their parameters, which is what
training is for. A state has these, and for going on each rank's own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch._utils import _flatten_dense_tensors as flatten
from torch._utils import _unflatten_dense_tensors as unflatten

from harness.contract import Arrays, Job
from torch_impl import placement, weights
from torch_impl.strategies.single import SingleDevice


class LocalSGD(SingleDevice):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.steps = 0

    def step(self, placed: list[placement.Batch]) -> torch.Tensor:
        loss = super().step(placed)
        self.steps += 1
        if self.just_met:
            self.average_parameters()
        return loss

    @property
    def just_met(self) -> bool:
        return self.steps % self.job.options["sync_every"] == 0

    @torch.no_grad()
    def average_parameters(self) -> None:
        parameters = list(self.model.parameters())
        together = flatten(parameters)
        dist.all_reduce(together)
        fill(parameters, together / self.job.world.processes)

    def gradients(self) -> Arrays | None:
        """The mean of the ranks' gradients; equal to the global one as long as their parameters are."""
        mean = weights.gradients(self.model, ranks=self.job.world.processes)
        return weights.canonical(self.job.workload, self.whole(mean))

    def evaluate(self, placed: list[placement.Batch]) -> tuple[float, float]:
        if self.just_met:
            return super().evaluate(placed)
        with torch.no_grad():
            own = flatten(list(self.model.parameters()))
        self.average_parameters()
        found = super().evaluate(placed)
        fill(list(self.model.parameters()), own)
        return found

    def state(self) -> Arrays | None:
        own, world = super().state(), self.job.world
        every: list[Any] | None = [None] * world.processes if world.rank == 0 else None
        dist.gather_object(own, every)
        if every is None:
            return None
        found: Arrays = {"optimizer/steps": np.array(self.steps)}
        for name in every[0]:
            if name.startswith("running/"):
                found[name] = every[0][name]  # averaged already
                continue
            if name.startswith("model/"):
                # in float64, where the mean of equal float32 numbers is that number
                mean = np.mean([state[name] for state in every], axis=0, dtype=np.float64)
                found[name] = mean.astype(every[0][name].dtype)
            found |= {f"optimizer/rank{rank}/{name}": state[name] for rank, state in enumerate(every)}
        return found

    def load_state(self, state: Arrays) -> None:
        mark = f"optimizer/rank{self.job.world.rank}/"
        own = {name.removeprefix(mark): array for name, array in state.items() if name.startswith(mark)}
        super().load_state(state | own)
        self.steps = int(state.get("optimizer/steps", 0))


@torch.no_grad()
def fill(parameters: list[nn.Parameter], together: torch.Tensor) -> None:
    """The parameters' values from a vector of all, each where and as it lies (vector_to_parameters would put parts of
    the vector there, which lie as NCHW)."""
    for parameter, values in zip(parameters, unflatten(together, parameters), strict=True):
        parameter.copy_(values)


def build(job: Job) -> LocalSGD:
    return LocalSGD(job)
