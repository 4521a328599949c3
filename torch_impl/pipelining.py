"""Stages in the form that the runtime of torch.distributed.pipelining needs. The schedules are in the strategy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage

from harness.contract import Job
from torch_impl import optim, placement, tuning
from torch_impl.timeline import Timeline


def place(stages: list[nn.Sequential], *, own: Collection[int], device: torch.device, job: Job) -> None:
    """Move this rank's own stages to its device, and those of other ranks to the meta device.

    There they keep names and shapes, and take no memory.
    """
    for index, stage in enumerate(stages):
        where = device if index in own else torch.device("meta")
        placement.model_to_device(stage, where, tuning.memory_format(job))


def lay_out_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Let gradients lie in memory as their parameters do. Autograd does so by itself.

    But a backward in two parts assigns what a kernel returned (stage_backward_weight in torch).
    """
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad = optim.laid_out(parameter.grad, parameter)


@contextmanager
def kept(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """At the end, each tensor holds again what it held before."""
    before = [(tensor, tensor.clone()) for tensor in tensors]
    yield
    for tensor, value in before:
        tensor.copy_(value)


class Stage(nn.Module):
    """A stage that the runtime can send from, and whose backward it can split.

    Autocast is entered here and not around the whole step, where backward would run under it too. What crosses to the
    next rank must be contiguous. With channels_last, images lie in memory as NHWC, so they cross with the axes in this
    order, and nothing is copied.
    """

    def __init__(self, blocks: nn.Sequential, job: Job, *, first: bool, last: bool) -> None:
        super().__init__()
        nhwc = tuning.memory_format(job) == torch.channels_last
        self.takes_nhwc, self.sends_nhwc = nhwc and not first, nhwc and not last
        self.bf16 = job.precision == "bf16"
        self.micro_batches = job.options["micro_batches"]
        self.splits_backward = job.options["schedule"] == "zero_bubble"
        self.blocks, self.network = blocks, tuning.compiled(blocks, job)
        self.recording: Callable[[torch.Tensor], torch.Tensor] | None = None  # runs the network while a step is traced

    @contextmanager
    def recorded(self, timeline: Timeline, stage: int) -> Iterator[None]:
        """While it is open, a timeline records the stage's work. Micro-batches come in their order."""
        numbers = itertools.cycle(range(self.micro_batches))  # several steps run before a capture
        self.recording = lambda x: timeline.run(self.network, x, stage=stage, micro_batch=next(numbers))
        try:
            yield
        finally:
            self.recording = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if any(block.training for block in self.blocks) and not torch.is_grad_enabled():
            # This is no evaluation: the runtime finds out shapes by a forward of zeros, of which BatchNorm must learn
            # nothing. (Newer PyTorch sees to that itself.)
            with kept(self.blocks.buffers()):
                return self.output_of(x)
        return self.output_of(x)

    def output_of(self, x: torch.Tensor) -> torch.Tensor:
        """What the next stage gets."""
        if x.requires_grad:
            x.register_hook(torch.Tensor.contiguous)  # a convolution may choose another layout for gradients
        if self.takes_nhwc and x.ndim == 4:
            x = x.permute(0, 3, 1, 2)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.bf16):
            output = (self.recording or self.network)(x)
        if self.sends_nhwc and output.ndim == 4:
            output = output.permute(0, 2, 3, 1)
        output = output.contiguous()
        # A backward in two parts detaches outputs in place, which torch forbids for views (of a Flatten, for example).
        # There is no public way to ask whether a tensor is one, and a copy of every output would cost time.
        return output.clone() if self.splits_backward and output._is_view() else output


class ForwardStage(PipelineStage):
    """A stage for evaluation, without backward.

    Where a rank holds two neighbouring stages (in a V), torch's runtime passes gradients from one to the other even
    without a backward, and then fails because there are none. So these methods pass nothing.
    """

    def get_local_bwd_output(self, mb_index: int) -> tuple:
        return ()

    def set_local_bwd_input(self, next_stage_bwd_outputs: tuple, mb_index: int) -> None:
        pass
