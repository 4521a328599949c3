"""One device: no parallelism. The base case that every speed-up is measured against.

The parameters, their gradients, the optimizer state and the whole batch live on one device; nothing is communicated.
Compare the step below with those of the data-parallel strategies: they run the same step on a share of the batch, and
differ where ranks agree on gradients or parameters.

With gradient accumulation the batch comes in several parts. Each backward adds to the gradient, and one update follows.
Activations then take the memory of one part only, and BatchNorm normalizes over one part at a time.
"""

from __future__ import annotations

import torch

from harness.contract import Job
from torch_impl import optim, tuning
from torch_impl.placement import Batch
from torch_impl.program import Program


class SingleDevice(Program):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.model = self.build_model()
        self.network = tuning.compiled(self.model, job)
        self.optimizer = self.build_optimizer(self.model.parameters())
        self.lr_schedule = optim.build_schedule(job.optimizer, self.optimizer)

    def train_step(self, placed: list[Batch]) -> torch.Tensor:
        losses = []
        self.optimizer.zero_grad(set_to_none=True)  # the first backward then writes gradients instead of adding to them
        for x, y in placed:
            with self.autocast():
                loss = self.loss_fn(self.network(x), y)
            if len(placed) > 1:
                loss = loss / len(placed)  # the gradients add up to that of the mean loss
            loss.backward()
            losses.append(loss.detach())  # not .item(), which would wait for the device in every step
        self.optimizer.step()
        return sum(losses[1:], start=losses[0])


def build(job: Job) -> SingleDevice:
    return SingleDevice(job)
