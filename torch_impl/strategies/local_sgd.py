"""Local SGD: every rank trains on its own, and now and then all take the mean of their parameters.

Every rank holds parameters and optimizer state of its own and updates them from its own part of each batch alone. After
every `sync_every` steps the parameters, not the optimizers' states, are averaged over the ranks by all-reduce: K times
fewer bytes than DDP, and ranks wait for each other K times less often.

It is a different algorithm: between two meetings the ranks walk apart, and the mean of their places is not where one
walker with the mean gradient would be (Stich 2019, arXiv:1805.09767). With sync_every=1 and plain SGD it is the same.
The loss that is shown is the mean of the ranks' own.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn import utils as nn_utils

from harness.contract import Arrays, Job
from torch_impl import placement, weights
from torch_impl.strategies.single import SingleDevice


class LocalSGD(SingleDevice):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.steps = 0

    def step(self, placed: list[placement.Batch]) -> None:
        super().step(placed)
        self.steps += 1
        if self.steps % self.job.options["sync_every"] == 0:
            self.average_parameters()

    @torch.no_grad()
    def average_parameters(self) -> None:
        parameters = list(self.model.parameters())
        together = nn_utils.parameters_to_vector(parameters)
        dist.all_reduce(together)
        nn_utils.vector_to_parameters(together / self.job.world.processes, parameters)

    def gradients(self) -> Arrays | None:
        """The mean of the ranks' gradients; equal to the global one as long as their parameters are."""
        return weights.gradients(self.model, self.job.workload, ranks=self.job.world.processes)


def build(job: Job) -> LocalSGD:
    return LocalSGD(job)
