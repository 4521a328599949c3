"""What the settings of the tracks do here. None changes what is computed: each is proved in float64 like all else.

manifest.py names them with their sources, and says which strategies go without one, and why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

import torch
import torch._dynamo.utils
from torch import nn

from harness.contract import Job
from torch_impl.placement import Batch

Compilable = TypeVar("Compilable", bound=Callable[..., torch.Tensor])
Result = TypeVar("Result")

EAGER_STEPS = 11
"""Steps before the capture: in them cuDNN chooses kernels, the compiler compiles, the optimizer makes its state, and
DistributedDataParallel times itself, ten times over. None of that can be captured (docs.pytorch.org, "CUDA semantics",
CUDA Graphs: a few eager iterations, and 11 of DistributedDataParallel, which is made on the stream of the capture; that
NCCL's watchdog must be told not to look in on a capture is over since PyTorch 2.2: docs.nvidia.com/dl-cuda-graph)."""


def memory_format(job: Job) -> torch.memory_format:
    """How 4-dimensional tensors lie: NHWC is what tensor cores take; in NCHW cuDNN transposes around them."""
    return torch.channels_last if job.settings.get("channels_last", False) else torch.contiguous_format


def compiled(what: Compilable, job: Job) -> Compilable:
    """A module, or its forward, compiled, if the track has it so; parameters and their names stay the module's own."""
    if not job.settings.get("compile", False):
        return what
    # All or nothing: what dynamo cannot compile it would leave eager without a word, and so would it after eight shapes
    # of what it takes for the same function (every nn.Sequential).
    torch._dynamo.config.recompile_limit = 256
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    # dynamic=False: each shape gets kernels of its own, also that of an epoch's short last batch
    return torch.compile(what, dynamic=False, fullgraph=True)  # pyright: ignore[reportReturnType]


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

    def __init__(
        self, step: Callable[[list[Batch]], torch.Tensor], module: nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        """`module` and `optimizer`: all that a step changes."""
        self.step, self.module, self.optimizer = step, module, optimizer
        self.graphs: dict[tuple, tuple[torch.cuda.CUDAGraph, list[Batch], torch.Tensor]] = {}

    def __call__(self, placed: list[Batch]) -> torch.Tensor:
        key = tuple(tensor.shape for part in placed for tensor in part)
        if key not in self.graphs:
            self.graphs[key] = self.capture([(x.clone(), y.clone()) for x, y in placed])
        graph, inputs, loss = self.graphs[key]
        for given, held in zip(placed, inputs, strict=True):
            for source, target in zip(given, held, strict=True):
                target.copy_(source)
        graph.replay()
        return loss.clone()

    def capture(self, inputs: list[Batch]) -> tuple[torch.cuda.CUDAGraph, list[Batch], torch.Tensor]:
        """The step on `inputs` as a graph, after some that are undone. Nothing is computed in the capture itself."""
        with on_capture_stream(), undone(self.module, self.optimizer):
            for _ in range(EAGER_STEPS):
                self.step(inputs)
        graph, loss = captured(lambda: self.step(inputs))
        return graph, inputs, loss


def captured(step: Callable[[], Result]) -> tuple[torch.cuda.CUDAGraph, Result]:
    """A call as a graph, and what it returned: tensors that each replay writes to. Nothing is computed here."""
    graph = torch.cuda.CUDAGraph()
    # thread_local: a loader's threads may go on calling CUDA meanwhile
    with torch.cuda.graph(graph, stream=capture_stream(), capture_error_mode="thread_local"):
        result = step()
    return graph, result


@cache
def capture_stream() -> torch.cuda.Stream:
    """Where this process captures its steps: the default stream cannot be captured."""
    return torch.cuda.Stream()


@contextmanager
def on_capture_stream() -> Iterator[None]:
    """What is within runs on the stream of the capture, in order with what comes before and after."""
    stream = capture_stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


@contextmanager
def undone(module: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Parameters, buffers and the optimizer's state are afterwards what they were, whatever steps were made within.

    State that was made within stays, as zeros: for SGD's momentum the same as none (at its first step torch takes the
    gradient itself, which is what zeros and the gradient come to).
    """
    before = [(tensor, tensor.detach().clone()) for tensor in (*module.parameters(), *module.buffers())]
    state = {id(tensor): tensor.clone() for tensor in _state(optimizer)}
    yield
    with torch.no_grad():
        for tensor, value in before:
            tensor.copy_(value)
        for tensor in _state(optimizer):
            tensor.copy_(state[id(tensor)]) if id(tensor) in state else tensor.zero_()


def _state(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """All tensors that an optimizer remembers."""
    return [value for each in optimizer.state.values() for value in each.values() if isinstance(value, torch.Tensor)]
