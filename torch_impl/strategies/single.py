"""One device: no parallelism. The base case that every speed-up is measured against.

Parameters, gradients and the whole batch live on one device; nothing crosses. Data-parallel strategies run this same
step on a part of the batch and then agree on the gradient, so their files differ from this one only where they must.

With gradient accumulation the batch comes in several parts, of which each adds its share to the gradient, so that
activations take the memory of one part only; BatchNorm then sees one part at a time.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from harness.contract import Arrays, Job
from harness.partition import shares
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
        self.prepare_training()

    def prepare_training(self) -> None:
        """All that a step needs beside the model."""
        self.optimizer = optim.build(self.job.optimizer, self.model.parameters())
        self.schedule = optim.build_schedule(self.job.optimizer, self.optimizer)
        self.loss_fn = losses.get(self.job.workload.loss)
        self.last_loss = torch.zeros(())

    def parallelize(self, model: nn.Module) -> nn.Module:
        """What the step calls instead of the model: here the model itself."""
        return model

    def place(self, batch: Arrays) -> list[placement.Batch]:
        """This process's part of each accumulation step."""
        world = self.job.world
        parts = shares(batch, steps=self.job.accumulation_steps, rank=world.rank, ranks=world.processes)
        return [placement.to_device(part, self.device, self.dtype) for part in parts]

    def step(self, placed: list[placement.Batch]) -> None:
        self.optimizer.zero_grad(set_to_none=True)  # gradients are written, not accumulated, by the next backward
        for number, (x, y) in enumerate(placed, start=1):
            with self.communication(last=number == len(placed)):
                with torch.autocast(self.device.type, torch.bfloat16, enabled=self.job.precision == "bf16"):
                    loss = self.loss_fn(self.forward(x), y)
                if len(placed) > 1:
                    loss = loss / len(placed)
                loss.backward()
            # not .item(): that would wait for the device at every step
            self.last_loss = loss.detach() if number == 1 else self.last_loss + loss.detach()
        self.exchange_gradients()
        self.optimizer.step()
        if self.schedule is not None:
            self.schedule.step()

    def communication(self, *, last: bool) -> AbstractContextManager:
        """What an accumulation step runs in. Strategies that communicate in backward do so in the last one only."""
        return nullcontext()

    def exchange_gradients(self) -> None:
        """What happens between backward and update: here nothing."""

    def sync(self) -> None:
        runtime.sync(self.job.world)

    def loss(self) -> float:
        return runtime.mean_over_ranks(self.last_loss, self.job.world)

    def gradients(self) -> Arrays | None:
        return weights.gradients(self.model, self.job.workload)

    def export(self) -> list[Arrays]:
        return [weights.parameters(self.model, self.job.workload)]


def build(job: Job) -> SingleDevice:
    return SingleDevice(job)
