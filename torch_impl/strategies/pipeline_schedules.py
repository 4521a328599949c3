"""Pipeline parallelism by torch.distributed.pipelining: one process a device, and a choice of schedules.

Each rank holds the parameters, gradients and optimizer state of its own stages only. The batch is cut into m equal
micro-batches; activations are sent to the rank of the next stage, their gradients back, point to point, and a rank
waits for nothing but what its next piece of work needs. Gradients add up over the micro-batches and are divided by m,
for each loss is a mean over one of them; then every rank updates its own. BatchNorm sees one micro-batch at a time.

What a rank does next is the schedule. For p = 2 devices and m = 4 micro-batches, in ticks of half a device's forward:
0123 forward of a micro-batch, abcd its backward, which takes twice as long; with ABCD that part of backward that only
the weights' gradient needs, for nobody waits for it.

    gpipe             device 0 | 00112233......aaaabbbbccccdddd    all forward, then all backward: holds the
                      device 1 | ..00112233aaaabbbbccccdddd....    activations of m micro-batches
    1f1b              device 0 | 0011....aaaa22bbbb33cccc..dddd    backward as soon as there is one to do: the same
                      device 1 | ..00aaaa11bbbb22cccc33dddd....    bubble, the activations of p micro-batches
    interleaved_1f1b  device 0 | 01012.aa3bb2aa3bb.cc.ddccdd       v = 2 stages a device, 0 and 2, 1 and 3: they are
                      device 1 | .010aa1bb2aa3bb2cc3ddccdd..       half as long, and fill and drain in half the time
    zero_bubble       device 0 | 0120aA1bB3aA2cCbB3dDcCdD.         ZB-V: 2 stages a device, 0 and 3, 1 and 2; weights'
                      device 1 | .0011aA2aA2bB3bB3cCcddCDD         gradients fill the ticks without other work

    the bubble, as a part of all time      gpipe and 1f1b     (p - 1) / (m + p - 1): above 6 of 30
                                           interleaved_1f1b   (p - 1) / (v m + p - 1): 3 of 27, for v times the sends
                                           zero_bubble        near 0 if forward and both parts of backward take
                                                              equally long and m >= 2p - 1: 1 of 25

Sources: Huang et al. 2019, GPipe, arXiv:1811.06965; Narayanan et al. 2021, arXiv:2104.04473 (1F1B, interleaving); Qi et
al. 2023, Zero Bubble Pipeline Parallelism, arXiv:2401.10241. What torch cannot split in two costs zero_bubble extra:
BatchNorm's backward is one kernel, and runs once for the input and once more for the weights.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)

from harness.contract import Job
from harness.spec import partition
from harness.spec.partition import stages_per_device
from torch_impl import models, placement, runtime, stages, tuning, weights
from torch_impl.strategies.single import SingleDevice

ONE_STAGE = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
TWO_STAGES = {"interleaved_1f1b": ScheduleInterleaved1F1B, "zero_bubble": ScheduleZBVZeroBubble}


def stages_of(rank: int, ranks: int, schedule: str) -> list[int]:
    """The stages that a rank holds, in order: in a V, or every `ranks`-th."""
    if schedule == "zero_bubble":
        return [rank, 2 * ranks - 1 - rank]
    return list(range(rank, ranks * stages_per_device(schedule), ranks))


class Stage(nn.Module):
    """A stage in a form that the runtime can send from and cut the backward of.

    Autocast is entered here and not around the whole step, where backward would run under it too.
    """

    def __init__(self, blocks: nn.Sequential, *, bf16: bool) -> None:
        super().__init__()
        self.blocks, self.bf16 = blocks, bf16
        first = blocks[0]
        if isinstance(first, nn.ReLU):
            first.inplace = False  # it would write over what was received, and there the gradient to send back ends

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # What is sent must be contiguous, and a convolution may choose another layout for outputs and gradients.
        if x.requires_grad:
            x.register_hook(torch.Tensor.contiguous)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.bf16):
            output = self.blocks(x).contiguous()
        return output.clone() if output._is_view() else output  # zero_bubble detaches outputs, which no view allows


class ForwardStage(PipelineStage):
    """A stage for evaluation. In a V, torch's runtime hands gradients from one stage of a rank to the other even where
    there is no backward, and then finds that there are none."""

    def get_local_bwd_output(self, mb_index: int) -> tuple:
        return ()

    def set_local_bwd_input(self, next_stage_bwd_outputs: tuple, mb_index: int) -> None:
        pass


class PipelineSchedules(SingleDevice):
    def __init__(self, job: Job) -> None:
        world, schedule = job.world, job.options["schedule"]
        self.job = job
        self.device = runtime.device(world)
        self.dtype = runtime.DTYPES[job.precision]
        self.model = models.build(job.workload).to(self.dtype)
        weights.load(self.model, job.workload, job.params)
        points = stages.cut_points(self.model, job)
        self.cut_after = partition.cut_text(points, job.workload.blocks)
        parts = stages.split(self.model, points)
        own = stages_of(world.rank, world.processes, schedule)
        for index, part in enumerate(parts):
            # the other ranks' stages keep their shapes, and no memory
            where = self.device if index in own else torch.device("meta")
            part.to(where, memory_format=tuning.memory_format(job))  # pyright: ignore[reportCallIssue]
        self.first, self.last = 0 in own, len(parts) - 1 in own
        self.last_rank = 0 if schedule == "zero_bubble" else world.processes - 1  # where the loss is taken
        self.prepare_training()  # over all parameters: those elsewhere never get a gradient, so no state and no update
        held = {index: Stage(parts[index], bf16=job.precision == "bf16") for index in own}
        self.pipeline = self.scheduled(
            [PipelineStage(stage, index, len(parts), self.device) for index, stage in held.items()],
            loss_fn=self.loss_in_precision,
        )
        # one of its own, without a loss and so without backward: the other would measure all shapes anew at each change
        self.forward_only = self.scheduled(
            [ForwardStage(stage, index, len(parts), self.device) for index, stage in held.items()]
        )

    def scheduled(self, held: list[PipelineStage], **known):
        """The schedule over this rank's stages."""
        schedule, known["n_microbatches"] = self.job.options["schedule"], self.job.options["micro_batches"]
        return ONE_STAGE[schedule](*held, **known) if schedule in ONE_STAGE else TWO_STAGES[schedule](held, **known)

    def loss_in_precision(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with self.autocast():
            return self.loss_fn(outputs, targets)

    @property
    def share(self) -> tuple[int, int]:
        return 0, 1  # uncut on every rank: the runtime cuts it itself

    def step(self, placed: list[placement.Batch]) -> torch.Tensor:
        ((x, y),) = placed
        self.optimizer.zero_grad(set_to_none=True)
        found: list[torch.Tensor] = []
        # scale_grads, on by default, divides the gradients by the number of micro-batches at the end
        inputs, targets = (x,) if self.first else (), y if self.last else None
        self.pipeline.step(*inputs, target=targets, losses=found, return_outputs=False)
        self.optimizer.step()
        if self.schedule is not None:
            self.schedule.step()
        if self.last:
            self.last_loss = torch.stack(found).detach().mean()
        return self.last_loss

    def agreed(self, value: torch.Tensor) -> torch.Tensor:
        """That of the rank where the loss is taken."""
        value = value.to(self.device, torch.float64, copy=True)
        dist.broadcast(value, src=self.last_rank)
        return value

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward_only.step(*((x,) if self.first else ()))  # None on ranks without the last stage

    def judged(self, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return super().judged(outputs, y) if self.last else torch.zeros(2)

    def whole(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Every rank's own of these, put together on every rank."""
        own = weights.whole({name: tensor for name, tensor in tensors.items() if not tensor.is_meta})
        parts: list[dict[str, torch.Tensor]] = [{} for _ in range(self.job.world.processes)]
        dist.all_gather_object(parts, own)
        return {name: part[name] for part in parts for name in part}


def build(job: Job) -> PipelineSchedules:
    return PipelineSchedules(job)
