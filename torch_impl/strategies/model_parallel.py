"""Model parallelism by hand: the layers are cut into stages, one on each device; the whole batch visits them in turn.

    device 0 | F0 |    |    | B0 |          F forward, B backward; one device works, the others wait
    device 1 |    | F1 | B1 |    |

Each device holds its own stage's parameters, gradients and optimizer state, so a network can be larger than one
device's memory: that is what this buys. It buys no speed: activations cross to the next device on the way forward,
their gradients on the way back, and at any time one device works, so the step takes the sum of all stages and the
copies. BatchNorm sees the whole batch. The pipeline (pipeline.py) cuts the batch so that devices work at the same time.
"""

from __future__ import annotations

import torch
from torch import nn

from harness.contract import Arrays, Job
from torch_impl import losses, models, optim, placement, runtime, stages, weights


class ModelParallel:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.dtype = runtime.DTYPES[job.precision]
        self.model = models.build(job.workload).to(self.dtype)
        weights.load(self.model, job.workload, job.params)
        self.stages = stages.cut(self.model, job)
        self.devices = stages.to_devices(self.stages, job)
        # one optimizer over all stages: each parameter is updated where it lives
        self.optimizer = optim.build(job.optimizer, self.model.parameters())
        self.loss_fn = losses.get(job.workload.loss)
        self.last_loss = torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for stage, device in zip(self.stages, self.devices, strict=True):
            # The copy waits for the stage before, and this stage for the copy: nothing overlaps.
            x = self.run_stage(stage, x.to(device, non_blocking=True))
        return x

    def run_stage(self, stage: nn.Sequential, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.job.precision == "bf16"):
            return stage(x)

    def place(self, batch: Arrays) -> placement.Batch:
        x, y = placement.to_device(batch, self.devices[0], self.dtype)
        return x, y.to(self.devices[-1])  # targets wait where the loss is taken

    def step(self, placed: placement.Batch) -> None:
        x, y = placed
        self.optimizer.zero_grad(set_to_none=True)
        outputs = self.forward(x)
        with torch.autocast(outputs.device.type, torch.bfloat16, enabled=self.job.precision == "bf16"):
            loss = self.loss_fn(outputs, y)
        loss.backward()  # autograd retraces the copies backwards, from the last device to the first
        self.optimizer.step()
        self.last_loss = loss.detach()

    def sync(self) -> None:
        runtime.sync(self.job.world)

    def loss(self) -> float:
        return self.last_loss.item()

    def gradients(self) -> Arrays | None:
        return weights.gradients(self.model, self.job.workload)

    def export(self) -> list[Arrays]:
        return [weights.parameters(self.model, self.job.workload)]


def build(job: Job) -> ModelParallel:
    return ModelParallel(job)
