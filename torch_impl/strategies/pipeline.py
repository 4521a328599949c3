"""Pipeline parallelism by hand, in one process: micro-batches flow through the stages, so devices work in parallel.

The layers are cut into stages, one on each device, with its parameters, gradients and optimizer state. The batch is
split into m equal `micro_batches`, or into parts of `split_size` samples, of which the last one may be smaller. (The
last batch of an epoch may have fewer than m samples; each is then a micro-batch.) In each tick every stage takes
the micro-batch that the previous stage finished one tick ago:

    3 stages, 4 micro-batches          forward                    backward
    device 0 | F0 | F1 | F2 | F3 |    |    |    |    | B3 | B2 | B1 | B0 |
    device 1 |    | F0 | F1 | F2 | F3 |    |    | B3 | B2 | B1 | B0 |
    device 2 |    |    | F0 | F1 | F2 | F3 | B3 | B2 | B1 | B0 |

With p equal stages a device works in m of m + p - 1 ticks; the rest is the bubble, (p - 1) / (m + p - 1). More and
smaller micro-batches shrink it, but each costs a launch of every kernel, and small kernels leave a device half empty.
One Python thread launches the work of all devices here, so its speed can limit the whole pipeline.

No line of code waits. Launches return at once, each device works through its own queue, and a copy to the next device
orders the two queues. The outputs are concatenated on the last device for one loss over the whole batch, and autograd
runs backward with one thread per device. So the gradients are those of the whole batch: the sum over micro-batches,
each weighted by its number of samples. BatchNorm sees one micro-batch at a time: in a network with BatchNorm, no
pipeline computes exactly what one device computes on the whole batch.
"""

from __future__ import annotations

import torch

from harness.contract import Job
from torch_impl import optim
from torch_impl.placement import Batch
from torch_impl.stages import StagedProgram


class Pipeline(StagedProgram):
    def __init__(self, job: Job) -> None:
        super().__init__(job)  # self.stages[i] is on self.devices[i]
        self.optimizer = self.build_optimizer(self.model.parameters())  # updates each parameter on its own device
        self.lr_schedule = optim.build_schedule(job.optimizer, self.optimizer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = self.job.options.get("split_size") or max(1, len(x) // self.job.options["micro_batches"])
        micro_batches = x.split(size)
        count, stage_count = len(micro_batches), len(self.stages)
        # What each stage takes next: stage 0 the micro-batches themselves, the others what the previous stage returns.
        waiting: list[dict[int, torch.Tensor]] = [dict(enumerate(micro_batches))] + [{} for _ in self.stages]
        for tick in range(count + stage_count - 1):
            # Later stages first: their input was ready before this tick's new micro-batch is even launched.
            for index in reversed(range(stage_count)):
                number = tick - index
                if 0 <= number < count:
                    taken = waiting[index].pop(number).to(self.devices[index], non_blocking=True)
                    waiting[index + 1][number] = self.run_stage(index, taken, number)
        return torch.cat([waiting[stage_count][number] for number in range(count)])

    def train_step(self, placed: list[Batch]) -> torch.Tensor:
        ((x, y),) = placed  # inputs on the first device, targets on the last
        self.optimizer.zero_grad(set_to_none=True)
        with self.autocast():
            loss = self.loss_fn(self.forward(x), y)
        loss.backward()  # autograd follows the copies back by itself, micro-batch by micro-batch
        self.optimizer.step()
        return loss.detach()


def build(job: Job) -> Pipeline:
    return Pipeline(job)
