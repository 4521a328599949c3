"""The training loop as a plain script would have it, over a program's own network and optimizer.

It runs between the timed blocks on GPUs (harness/worker/measure.py), and shows what the suite's own code costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle, islice
from typing import Any

import torch

from torch_impl import tuning
from torch_impl.losses import LOSSES
from torch_impl.placement import Batch


def loop(program: Any, batches: Sequence[list[Batch]]) -> Callable[[int], None]:
    """A function that makes the given number of updates, on the batches in turn.

    It changes the program's state just as the program's own steps do. Where steps are captured, the loss is compiled
    if the program's is; elsewhere it would be compiled within the first block.
    """
    network, optimizer, captured = program.network, program.optimizer, program.job.settings.get("cuda_graphs")
    plain_loss = LOSSES[program.job.workload.loss]

    def loss_of(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return plain_loss(outputs, y)

    loss_fn = tuning.compiled(loss_of, program.job) if captured else plain_loss
    device, bf16 = program.device.type, program.job.precision == "bf16"

    def update(x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=bf16):
            loss = loss_fn(network(x), y)
        loss.backward()
        optimizer.step()

    def eager(steps: int) -> None:
        for ((x, y),) in islice(cycle(batches), steps):
            update(x, y)

    if not captured:
        return eager

    # The graph that a script would capture of its update. It reads the batch from the program's graph's own tensors.
    ((batch,),) = [captured.inputs for captured in program.run.graphs.values()]
    ((own_x, own_y),) = batch
    with tuning.on_capture_stream(), tuning.undone(program.trained, optimizer):
        update(own_x, own_y)
    graph, _ = tuning.captured(lambda: update(own_x, own_y))

    def replayed(steps: int) -> None:
        for ((x, y),) in islice(cycle(batches), steps):
            own_x.copy_(x)
            own_y.copy_(y)
            graph.replay()

    return replayed


LOOPS = {"single": loop, "ddp": loop, "data_parallel": loop}
"""By strategy."""
