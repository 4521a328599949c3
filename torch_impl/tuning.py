"""What the settings of the tracks do here. None changes what is computed: each is proved in float64 like all else.

manifest.py names them with their sources, and says which strategies go without one, and why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from torch import nn

from harness.contract import Job
from torch_impl.placement import Batch

EAGER_STEPS = 3
"""Steps before the capture: in them cuDNN chooses kernels, the compiler compiles and the optimizer makes its state.
None of that can be captured (docs.pytorch.org, "CUDA semantics", CUDA Graphs: warm up with a few eager iterations)."""


def memory_format(job: Job) -> torch.memory_format:
    """How 4-dimensional tensors lie: NHWC is what tensor cores take; in NCHW cuDNN transposes around them."""
    return torch.channels_last if job.settings.get("channels_last", False) else torch.contiguous_format


def compiled(module: nn.Module, job: Job) -> nn.Module:
    """The module compiled, if the track has it so; parameters and their names stay the module's own."""
    # dynamic=False: each shape gets kernels of its own, also that of an epoch's short last batch
    return torch.compile(module, dynamic=False) if job.settings.get("compile", False) else module  # pyright: ignore


class Graphed:
    """A step that is captured as a CUDA graph, and replayed: one launch in place of a thousand.

    A graph reads its batch from tensors of its own, to which each batch is copied, and writes its loss to one that the
    next replay overwrites: so the loss is copied out. Each shape of batch has a graph of its own.
    """

    def __init__(self, step: Callable[[list[Batch]], torch.Tensor]) -> None:
        self.step = step
        self.stream = torch.cuda.Stream()  # the default stream cannot be captured
        self.seen: Counter[tuple] = Counter()
        self.graphs: dict[tuple, tuple[torch.cuda.CUDAGraph, list[Batch], torch.Tensor]] = {}

    def __call__(self, placed: list[Batch]) -> torch.Tensor:
        key = tuple(tensor.shape for part in placed for tensor in part)
        self.seen[key] += 1
        if self.seen[key] <= EAGER_STEPS:
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                loss = self.step(placed)
            torch.cuda.current_stream().wait_stream(self.stream)
            return loss
        if key not in self.graphs:
            inputs = [(x.clone(), y.clone()) for x, y in placed]
            graph = torch.cuda.CUDAGraph()
            # thread_local: a loader's threads may go on calling CUDA meanwhile
            with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
                loss = self.step(inputs)
            self.graphs[key] = graph, inputs, loss
        graph, inputs, loss = self.graphs[key]
        for given, held in zip(placed, inputs, strict=True):
            for source, target in zip(given, held, strict=True):
                target.copy_(source)
        graph.replay()
        return loss.clone()
