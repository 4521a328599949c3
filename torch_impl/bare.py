"""The training loop as a script would have it, over a program's own network and optimizer: without the suite's code.

Run between the timed blocks on GPUs, it shows what the suite's own code costs: harness/phases.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice
from typing import Any

import torch
from torch.nn import functional

from torch_impl.placement import Batch

LOSSES: dict[str, Any] = {
    "mse": functional.mse_loss,
    "nll": functional.nll_loss,
    "cross_entropy": functional.cross_entropy,
}


def loop(program: Any, batches: Sequence[list[Batch]], steps: int) -> None:
    """`steps` updates on the batches in turn. The program's state is changed as by its own steps."""
    model, optimizer = program.forward, program.optimizer
    loss_fn = LOSSES[program.job.workload.loss]
    device, bf16 = program.device.type, program.job.precision == "bf16"
    for ((x, y),) in islice(cycle(batches), steps):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=bf16):
            loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()


def replay(program: Any, batches: Sequence[list[Batch]], steps: int) -> None:
    """The same where the step is a CUDA graph, already captured for batches of this shape."""
    ((graph, inputs, _),) = program.run.graphs.values()
    for placed in islice(cycle(batches), steps):
        for (x, y), (own_x, own_y) in zip(placed, inputs, strict=True):
            own_x.copy_(x)
            own_y.copy_(y)
        graph.replay()


def as_set(program: Any, batches: Sequence[list[Batch]], steps: int) -> None:
    """By graph or step by step, as the track has it."""
    (replay if program.job.settings.get("cuda_graphs") else loop)(program, batches, steps)


LOOPS = {"single": as_set, "ddp": as_set, "data_parallel": loop}
"""By strategy."""
