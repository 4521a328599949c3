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

from harness.contract import Job
from harness.spec import Span, partition
from torch_impl import models, placement, runtime, stages, tuning, weights
from torch_impl.strategies.single import SingleDevice
from torch_impl.timeline import Timeline


class ModelParallel(SingleDevice):
    """The step is the single device's, from zero_grad to update: only where things live and how forward goes differ.

    Backward retraces the copies by itself, from the last device to the first; each parameter is updated where it lives.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.dtype = runtime.DTYPES[job.precision]
        self.model = models.build(job.workload).to(self.dtype)
        weights.load(self.model, job.workload, job.params)
        points = stages.cut_points(self.model, job)
        self.cut_after = partition.cut_text(points, job.workload.blocks)
        self.stages = stages.split(self.model, points)
        self.devices = stages.to_devices(self.stages, job)
        self.run_stages = [tuning.compiled(stage, job) for stage in self.stages]
        self.device = self.devices[0]
        self.prepare_training()
        self.timeline: Timeline | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index, device in enumerate(self.devices):
            # The copy waits for the stage before, and this stage for the copy: nothing overlaps.
            x = self.run_stage(index, x.to(device, non_blocking=True))
        return x

    def run_stage(self, index: int, x: torch.Tensor, micro_batch: int = 0) -> torch.Tensor:
        if self.timeline is None:
            return self.run_stages[index](x)
        return self.traced(self.timeline, index, x, micro_batch)

    def traced(self, timeline: Timeline, index: int, x: torch.Tensor, micro_batch: int) -> torch.Tensor:
        """Run a stage with marks around it. Its backward lasts from its output's gradient to its input's."""
        device, key = self.devices[index], (index, micro_batch)
        if not x.requires_grad:  # the first stage's input: its gradient, else not needed, ends the stage's backward
            x = x.detach().requires_grad_()
        timeline.mark(*key, "forward", "start", device)
        output = self.run_stages[index](x)
        timeline.mark(*key, "forward", "end", device)
        output.register_hook(lambda _: timeline.mark(*key, "backward", "start", device))
        x.register_hook(lambda _: timeline.mark(*key, "backward", "end", device))
        return output

    def trace(self, placed: list[placement.Batch]) -> list[Span]:
        """One step with the times at which each stage worked."""
        self.sync()
        self.timeline = Timeline(self.devices)
        self.step(placed)
        self.sync()
        spans, self.timeline = self.timeline.spans(), None
        return spans

    def put(self, parts: list[placement.Batch], *, wait: bool = True) -> list[placement.Batch]:
        # targets wait where the loss is taken
        return [placement.to_device(part, self.devices[0], targets=self.devices[-1], wait=wait) for part in parts]

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward(x)


def build(job: Job) -> ModelParallel:
    return ModelParallel(job)
