"""What each stage of PyTorch's pipeline takes alone: the time that bounds the pipeline."""

from __future__ import annotations

import statistics
import time
from typing import Any

REPLAYS = 10
REPEATS = 5


def stage_milliseconds(program: Any, micro_batches: int, placed: Any) -> list[float]:
    """Forward and backward of one micro-batch in each stage, as one CUDA graph on the stage's own device, in ms.

    The stages are those of the timed program, compiled as they are there. Nothing else runs meanwhile.
    """
    import torch

    from torch_impl import tuning

    ((x, _),) = placed
    given = x[: len(x) // micro_batches].clone(memory_format=torch.preserve_format)
    found = []
    for index, (network, device) in enumerate(zip(program.networks, program.devices, strict=True)):
        taken = given.to(device).detach().requires_grad_(index > 0)

        def visit(network: Any = network, taken: Any = taken) -> Any:
            taken.grad = None
            with program.autocast():
                output = network(taken)
            output.backward(torch.ones_like(output))
            return output.detach()

        with torch.cuda.device(device):
            with tuning.on_capture_stream(device):
                for _ in range(3):
                    given = visit()
            torch.cuda.synchronize(device)
            graph, _ = tuning.captured(visit, devices=[device])
            graph.replay()
            found.append(round(1000 * statistics.median(seconds(graph, device) for _ in range(REPEATS)), 4))
    return found


def seconds(graph: Any, device: Any) -> float:
    """Of one replay, the mean of several."""
    import torch

    torch.cuda.synchronize(device)
    began = time.perf_counter()
    for _ in range(REPLAYS):
        graph.replay()
    torch.cuda.synchronize(device)
    return (time.perf_counter() - began) / REPLAYS
