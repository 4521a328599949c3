"""Pipeline parallelism by hand, in one process: micro-batches flow through the stages, so that devices work together.

The batch is cut into m micro-batches of `split_size` samples (the last one may be smaller). In each tick every stage
takes the micro-batch that the stage before it finished a tick ago:

    3 stages, 4 micro-batches          forward                    backward
    device 0 | F0 | F1 | F2 | F3 |    |    |    |    | B3 | B2 | B1 | B0 |
    device 1 |    | F0 | F1 | F2 | F3 |    |    | B3 | B2 | B1 | B0 |
    device 2 |    |    | F0 | F1 | F2 | F3 | B3 | B2 | B1 | B0 |

With p equal stages a device works in m of m + p - 1 ticks; the rest is the bubble, (p - 1) / (m + p - 1). Smaller
micro-batches make it smaller, but each costs a launch of every kernel, and small kernels leave a device half empty:
one Python thread launches the work of all devices here, so it can set the pace itself.

Nothing waits explicitly. Launches return at once, each device works through its own queue, and a copy to the next
device orders the two queues. The outputs are put together on the last device for one loss over the whole batch, and
autograd runs backward with one thread a device, so that the gradients are those of the whole batch: the sum over
micro-batches, each weighted by its samples. BatchNorm sees one micro-batch at a time: with it, no pipeline computes
quite what one device does on the whole batch.
"""

from __future__ import annotations

import torch

from harness.contract import Job
from torch_impl.strategies.model_parallel import ModelParallel


class Pipeline(ModelParallel):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        micro_batches = x.split(self.job.options["split_size"])
        count, stage_count = len(micro_batches), len(self.stages)
        # what each stage will take next: stage 0 takes the batch's parts, the others what is handed on
        waiting: list[dict[int, torch.Tensor]] = [dict(enumerate(micro_batches))] + [{} for _ in self.stages]
        for tick in range(count + stage_count - 1):
            # later stages first: their input was ready before this tick's new micro-batch is even enqueued
            for index in reversed(range(stage_count)):
                number = tick - index
                if 0 <= number < count:
                    taken = waiting[index].pop(number).to(self.devices[index], non_blocking=True)
                    waiting[index + 1][number] = self.run_stage(index, taken, number)
        return torch.cat([waiting[stage_count][number] for number in range(count)])


def build(job: Job) -> Pipeline:
    return Pipeline(job)
