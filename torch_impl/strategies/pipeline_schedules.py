"""Pipeline parallelism by torch.distributed.pipelining: one process per device, and a choice of schedules.

Each rank holds the parameters, gradients and optimizer state of its own stages only. The batch is split into m equal
micro-batches. Activations are sent to the rank of the next stage, their gradients back, point to point, and a rank
waits only for what its next piece of work needs. Gradients are summed over the micro-batches and divided by m, because
each loss is a mean over one of them; then every rank updates its own stages. BatchNorm sees one micro-batch at a time.

The schedule decides what a rank does next. For p = 2 devices and m = 4 micro-batches, in ticks of half a device's
forward: 0123 forward of a micro-batch; abcd its backward, which takes twice as long; with ABCD the part of backward
that computes the gradient of the weights, for which no other stage waits.

    gpipe             device 0 | 00112233......aaaabbbbccccdddd    all forward, then all backward: holds the
                      device 1 | ..00112233aaaabbbbccccdddd....    activations of m micro-batches
    1f1b              device 0 | 0011....aaaa22bbbb33cccc..dddd    backward as soon as there is one to do: the same
                      device 1 | ..00aaaa11bbbb22cccc33dddd....    bubble, the activations of p micro-batches
    interleaved_1f1b  device 0 | 01012.aa3bb2aa3bb.cc.ddccdd       v = 2 stages per device, 0, 2 and 1, 3: they are
                      device 1 | .010aa1bb2aa3bb2cc3ddccdd..       half as long, and fill and drain in half the time
    zero_bubble       device 0 | 0120aA1bB3aA2cCbB3dDcCdD.         ZB-V: 2 stages per device, 0, 3 and 1, 2; weights'
                      device 1 | .0011aA2aA2bB3bB3cCcddCDD         gradients fill the ticks without other work

    the bubble as a share of the time      gpipe and 1f1b     (p - 1) / (m + p - 1): above 6 of 30
                                           interleaved_1f1b   (p - 1) / (v m + p - 1): 3 of 27, for v times the sends
                                           zero_bubble        near 0 if forward and both parts of backward take
                                                              equally long and m >= 2p - 1: 1 of 25

Python launches a schedule's work piece by piece, and small pieces are over before the next one is launched. With the
setting `cuda_graphs` each rank's whole step, with what it sends and receives, is one CUDA graph.

Sources: Huang et al. 2019, GPipe, arXiv:1811.06965; Narayanan et al. 2021, arXiv:2104.04473 (1F1B, interleaving); Qi et
al. 2023, Zero Bubble Pipeline Parallelism, arXiv:2401.10241. zero_bubble pays extra for what torch cannot split in two:
BatchNorm's backward is one kernel, which runs once for the input and again for the weights.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)

from harness.contract import Job
from harness.spec import Span
from torch_impl import optim, pipelining, stages, weights
from torch_impl.placement import Batch
from torch_impl.program import Program, initial_model
from torch_impl.timeline import Timeline, from_the_first

ONE_STAGE = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
TWO_STAGES = {"interleaved_1f1b": ScheduleInterleaved1F1B, "zero_bubble": ScheduleZBVZeroBubble}


def stages_of(rank: int, ranks: int, schedule: str) -> list[int]:
    """The stages that a rank holds, in order: in a V, or every `ranks`-th."""
    if schedule == "zero_bubble":
        return [rank, 2 * ranks - 1 - rank]
    return list(range(rank, ranks * stages_per_device(schedule), ranks))


def stages_per_device(schedule: str) -> int:
    """How many stages each device has."""
    return 2 if schedule in TWO_STAGES else 1


class PipelineSchedules(Program):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        rank, ranks, schedule = job.world.rank, job.world.processes, job.options["schedule"]
        self.model = initial_model(job)
        parts, self.cut_after = stages.cut(self.model, job, per_device=stages_per_device(schedule))
        own = stages_of(rank, ranks, schedule)
        pipelining.place(parts, own=own, device=self.device, job=job)
        self.first, self.last = 0 in own, len(parts) - 1 in own
        self.last_rank = 0 if schedule == "zero_bubble" else ranks - 1  # where the loss is computed
        self.optimizer = self.build_optimizer(p for p in self.model.parameters() if not p.is_meta)
        self.lr_schedule = optim.build_schedule(job.optimizer, self.optimizer)

        edges = {index: {"first": index == 0, "last": index == len(parts) - 1} for index in own}
        self.stages = {index: pipelining.Stage(parts[index], job, **edges[index]) for index in own}
        self.pipeline = self.scheduled(
            [PipelineStage(stage, index, len(parts), self.device) for index, stage in self.stages.items()],
            loss_fn=self.loss_in_precision,
        )
        # Evaluation has a schedule of its own, without a loss and so without backward. With one schedule for both, the
        # runtime would infer all shapes again at every change between them.
        self.forward_only = self.scheduled(
            [pipelining.ForwardStage(stage, index, len(parts), self.device) for index, stage in self.stages.items()]
        )
        if stages_per_device(schedule) == 1 and job.world.hosts == 1:  # hosts have clocks of their own
            self.tracing = Timeline(dict.fromkeys(own, self.device))
            self.trace = self.trace_over_ranks

    def scheduled(self, held: list[PipelineStage], **known: Any) -> Any:
        """The chosen schedule over this rank's stages."""
        schedule, known["n_microbatches"] = self.job.options["schedule"], self.job.options["micro_batches"]
        return ONE_STAGE[schedule](*held, **known) if schedule in ONE_STAGE else TWO_STAGES[schedule](held, **known)

    def train_step(self, placed: list[Batch]) -> torch.Tensor:
        ((x, y),) = placed
        losses: list[torch.Tensor] = []
        self.optimizer.zero_grad(set_to_none=True)
        # The whole schedule: forward, loss, backward and all sends. The first stage takes the inputs, the last one the
        # targets. At the end it divides the gradients by the number of micro-batches (scale_grads, on by default).
        inputs, targets = (x,) if self.first else (), y if self.last else None
        self.pipeline.step(*inputs, target=targets, losses=losses, return_outputs=False)
        if self.job.options["schedule"] == "zero_bubble":
            pipelining.lay_out_gradients(self.model.parameters())
        self.optimizer.step()
        return torch.stack(losses).detach().mean() if self.last else torch.zeros(())

    def trace_over_ranks(self, placed: list[Batch]) -> list[Span]:
        """One step, with the times at which each rank's stage worked: on rank 0 those of all. A collective."""
        self.sync()
        ((index, stage),) = self.stages.items()
        self.tracing.set_zero()
        dist.barrier()
        with stage.recorded(self.tracing, index):
            self.traced_step(placed)
            self.sync()
        found: list[list[Span]] = [[] for _ in range(self.job.world.processes)]
        dist.all_gather_object(found, self.tracing.spans())
        return from_the_first(itertools.chain(*found)) if self.job.world.rank == 0 else []

    def loss_in_precision(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The loss of a micro-batch."""
        with self.autocast():
            return self.loss_fn(outputs, targets)

    @property
    def share(self) -> tuple[int, int]:
        return 0, 1  # every rank gets the whole batch: the runtime splits it into micro-batches

    def over_ranks(self, value: torch.Tensor) -> torch.Tensor:
        """The value of the rank that computes the loss. A collective."""
        value = value.to(self.device, torch.float64, copy=True)
        dist.broadcast(value, src=self.last_rank)
        return value

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward_only.step(*((x,) if self.first else ()))  # None on ranks without the last stage

    def score(self, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return super().score(outputs, y) if self.last else torch.zeros(2)

    def to_host(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The tensors of every rank's own stages, together on every rank."""
        own = weights.to_host({name: tensor for name, tensor in tensors.items() if not tensor.is_meta})
        parts: list[dict[str, torch.Tensor]] = [{} for _ in range(self.job.world.processes)]
        dist.all_gather_object(parts, own)
        return {name: part[name] for part in parts for name in part}


def build(job: Job) -> PipelineSchedules:
    return PipelineSchedules(job)
