"""What the settings of the tracks do here. None changes what is computed: each is proved in float64 like all else.

manifest.py names them with their sources, and says which strategies go without one, and why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import torch
import torch._dynamo.utils
from torch import nn

from harness.contract import Job
from torch_impl.placement import Batch

EAGER_STEPS = 2  # the parity phase has three steps or more: at least one of them is replayed
"""Steps before the capture: in them cuDNN chooses kernels, the compiler compiles and the optimizer makes its state.
None of that can be captured (docs.pytorch.org, "CUDA semantics", CUDA Graphs: warm up with a few eager iterations)."""


def memory_format(job: Job) -> torch.memory_format:
    """How 4-dimensional tensors lie: NHWC is what tensor cores take; in NCHW cuDNN transposes around them."""
    return torch.channels_last if job.settings.get("channels_last", False) else torch.contiguous_format


def compiled(module: nn.Module, job: Job) -> nn.Module:
    """The module compiled, if the track has it so; parameters and their names stay the module's own."""
    if not job.settings.get("compile", False):
        return module
    # All or nothing: what dynamo cannot compile it would leave eager without a word, and so would it after eight shapes
    # of what it takes for the same function (every nn.Sequential).
    torch._dynamo.config.recompile_limit = 256
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    # dynamic=False: each shape gets kernels of its own, also that of an epoch's short last batch
    return torch.compile(module, dynamic=False, fullgraph=True)  # pyright: ignore[reportReturnType]


def idle(settings: Mapping[str, bool]) -> str:
    """Which setting is on and did nothing, or ""."""
    if settings.get("compile") and not torch._dynamo.utils.counters["stats"]["unique_graphs"]:
        return "compile is on, and torch.compile compiled nothing"
    return ""


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
