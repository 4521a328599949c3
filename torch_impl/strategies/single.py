"""One device: no parallelism. The base case that every speed-up is measured against.

Parameters, gradients and the whole batch live on one device; nothing crosses. Data-parallel strategies run this same
step on a part of the batch and then agree on the gradient, so their files differ from this one only where they must.
"""

from __future__ import annotations

import torch
from torch import nn

from harness.contract import Arrays, Job
from torch_impl import losses, models, optim, placement, runtime, weights


class SingleDevice:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.device = runtime.device(job.world)
        self.dtype = runtime.DTYPES[job.precision]
        self.model = models.build(job.workload)
        self.model.to(self.dtype)  # before loading: float64 weights must not pass through float32
        weights.load(self.model, job.workload, job.params)
        self.model.to(self.device)
        self.forward = self.parallelize(self.model)
        self.optimizer = optim.build(job.optimizer, self.model.parameters())
        self.loss_fn = losses.get(job.workload.loss)
        self.last_loss = torch.zeros(())

    def parallelize(self, model: nn.Module) -> nn.Module:
        """What the step calls instead of the model: here the model itself."""
        return model

    def place(self, batch: Arrays) -> placement.Batch:
        return placement.to_device(batch, self.device, self.dtype)

    def step(self, placed: placement.Batch) -> None:
        x, y = placed
        self.optimizer.zero_grad(set_to_none=True)  # gradients are written, not accumulated, by the next backward
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.job.precision == "bf16"):
            loss = self.loss_fn(self.forward(x), y)
        loss.backward()
        self.optimizer.step()
        self.last_loss = loss.detach()  # not .item(): that would wait for the device at every step

    def sync(self) -> None:
        runtime.sync(self.job.world)

    def loss(self) -> float:
        return self.last_loss.item()

    def gradients(self) -> Arrays | None:
        return weights.gradients(self.model, self.job.workload)

    def export(self) -> list[Arrays]:
        return [weights.parameters(self.model, self.job.workload)]


def build(job: Job) -> SingleDevice:
    return SingleDevice(job)
