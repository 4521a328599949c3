"""Model parallelism by hand: the layers are cut into stages, one on each device; the whole batch visits them in turn.

    device 0 | F0 |    |    | B0 |          F forward, B backward; one device works, the others wait
    device 1 |    | F1 | B1 |    |

Each device holds the parameters, gradients and optimizer state of its own stage, so a network can be larger than one
device's memory. That is what this strategy gains. It gains no speed: activations cross to the next device in forward,
their gradients cross back in backward, and only one device works at a time, so a step takes the sum of all stages and
copies. The copies need no streams of their own, as those of the pipeline do: here nothing runs beside them. BatchNorm
sees the whole batch. The pipeline (pipeline.py) splits the batch so that devices work together.
"""

from __future__ import annotations

import torch

from harness.contract import Job
from torch_impl import optim
from torch_impl.placement import Batch
from torch_impl.stages import StagedProgram


class ModelParallel(StagedProgram):
    def __init__(self, job: Job) -> None:
        super().__init__(job)  # self.stages[i] is on self.devices[i]
        self.optimizer = self.build_optimizer(self.model.parameters())  # updates each parameter on its own device
        self.lr_schedule = optim.build_schedule(job.optimizer, self.optimizer)

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        for index, device in enumerate(self.devices):
            # The copy waits for the previous stage, and this stage waits for the copy: nothing overlaps.
            x = self.run_stage(index, x.to(device, non_blocking=True))
        return x

    def train_step(self, placed: list[Batch]) -> torch.Tensor:
        ((x, y),) = placed  # inputs on the first device, targets on the last
        self.optimizer.zero_grad(set_to_none=True)
        with self.autocast():
            loss = self.loss_fn(self.predict(x), y)
        loss.backward()  # autograd follows the copies back by itself, from the last device to the first
        self.optimizer.step()
        return loss.detach()


def build(job: Job) -> ModelParallel:
    return ModelParallel(job)
