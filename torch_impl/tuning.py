"""What the tracks' settings do in PyTorch: memory format, torch.compile, CUDA graphs.

No setting changes what is computed: each is proved in float64 like everything else. manifest.py names them with their
sources, and says which strategies go without one, and why. The strategies call these functions where they build their
network, so that their training step is plain PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import torch
import torch._dynamo.utils  # torch.compile has no public counter of what it compiled, nor these limits
from torch import nn

from harness.contract import Job
from torch_impl import graphs_over_devices, optim, relu
from torch_impl.placement import Batch

Compilable = TypeVar("Compilable", bound=Callable[..., torch.Tensor])
Result = TypeVar("Result")

SEARCHES = {"max_autotune_pointwise": "max_autotune_pointwise", "coordinate_descent": "coordinate_descent_tuning"}
"""Inductor's option of each setting."""
EAGER_STEPS = 11
"""Steps before the capture. In them cuDNN chooses kernels, the compiler compiles, the optimizer creates its state, and
DistributedDataParallel times itself in ten of them. None of that can be captured. docs.pytorch.org, "CUDA semantics",
CUDA Graphs, asks for a few eager steps, and for 11 of DistributedDataParallel, which must be built on a side stream."""


def memory_format(job: Job) -> torch.memory_format:
    """The memory format of 4-dimensional tensors. Tensor cores take NHWC: cuDNN transposes NCHW before and after."""
    return torch.channels_last if job.settings.get("channels_last", False) else torch.contiguous_format


def compiled(what: Compilable, job: Job) -> Compilable:
    """A module, or a function, compiled if the track says so. A module keeps its parameters and their names."""
    if not job.settings.get("compile", False):
        return what
    # All or nothing. By default dynamo silently runs eagerly what it cannot compile, and also what it has compiled for
    # eight shapes already; it counts every nn.Sequential as the same function.
    torch._dynamo.config.recompile_limit = 256
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    searches = {} if job.precision == "fp64" else job.settings  # see the manifest
    options: dict = {option: searches.get(setting, False) for setting, option in SEARCHES.items()}
    options |= relu.compiler_options(job.settings)
    # dynamic=False: each shape gets its own kernels, also that of an epoch's short last batch.
    return torch.compile(what, dynamic=False, fullgraph=True, options=options)  # pyright: ignore[reportReturnType]


def compile_forward(block: nn.Module, job: Job) -> None:
    """Compile the forward of a module in place if the track says so, but not the hooks around it: FSDP's, which gather
    and free the parameters, cannot be compiled. (nn.Module.compile would include them.)"""
    block.forward = compiled(block.forward, job)


def compiled_nothing() -> bool:
    """Whether torch.compile has compiled nothing in this process."""
    return not torch._dynamo.utils.counters["stats"]["unique_graphs"]


@dataclass(frozen=True)
class Captured:
    """A graph, the batches and learning rates that it reads, and the losses that it writes. It reads no rates where
    they are numbers: these are part of the graph."""

    graph: torch.cuda.CUDAGraph
    inputs: list[list[Batch]]
    rates: list[torch.Tensor]
    losses: list[torch.Tensor]


class Graphed:
    """A step that is captured as a CUDA graph and replayed: one launch instead of a thousand.

    A graph may also hold several steps, one for each of several batches; then one launch makes all of them. It reads
    its batches from its own tensors, so each batch is copied to them. It writes its losses to tensors that the next
    replay overwrites, so the losses are copied out. Each number and form of batches has its own graph. So has each
    learning rate, unless the optimizer reads the rate from memory (optim.build).
    """

    def __init__(
        self,
        step: Callable[[list[Batch]], torch.Tensor],
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        devices: Sequence[torch.device],
        rates: Callable[[int], list[float]],
        copy_streams: Sequence[torch.cuda.Stream] = (),
    ) -> None:
        """`module` and `optimizer` hold all that a step changes; other ranks' parameters are on the meta device.

        `rates`: of the next so many updates. `copy_streams`: those used besides one for each device.
        """
        self.step, self.module, self.optimizer, self.rates = step, module, optimizer, rates
        self.devices, self.copy_streams = list(dict.fromkeys(devices)), copy_streams
        self.reads_rate = isinstance(optimizer.param_groups[0]["lr"], torch.Tensor)
        self.updates_nothing = not optimizer.param_groups[0]["params"]  # a stage without parameters
        self.graphs: dict[tuple, Captured] = {}

    def __call__(self, placed: list[Batch]) -> torch.Tensor:
        """One step. Returns its loss."""
        (loss,) = self.several([placed])
        return loss

    def several(self, batches: Sequence[list[Batch]]) -> list[torch.Tensor]:
        """One step for each batch, all in one replay. Returns their losses."""
        rates = self.rates(len(batches))
        forms = tuple(tuple(_form(tensor) for part in placed for tensor in part) for placed in batches)
        key = (*forms, () if self.reads_rate or self.updates_nothing else tuple(rates))
        if key not in self.graphs:
            self.graphs[key] = self.capture([[(x.clone(), y.clone()) for x, y in placed] for placed in batches], rates)
        captured = self.graphs[key]
        for given, held in zip(batches, captured.inputs, strict=True):
            copy_parts(given, held)
        if self.reads_rate:
            for rate, slot in zip(rates, captured.rates, strict=True):
                slot.fill_(rate)
        self.replay(captured.graph)
        return [loss.clone() for loss in captured.losses]

    def replay(self, graph: torch.cuda.CUDAGraph) -> None:
        """Launch a graph. It comes after what is queued on all its devices, and before what is queued there later."""
        first, *others = self.devices
        for device in others:
            torch.cuda.current_stream(first).wait_stream(torch.cuda.current_stream(device))
        graph.replay()
        for device in others:
            torch.cuda.current_stream(device).wait_stream(torch.cuda.current_stream(first))

    def capture(self, inputs: list[list[Batch]], rates: list[float]) -> Captured:
        """The steps on `inputs` as a graph, after eager steps that are undone. The capture itself computes nothing."""
        with on_capture_streams(self.devices), undone(self.module, self.optimizer):
            for _ in range(math.ceil(EAGER_STEPS / len(inputs))):
                for placed in inputs:
                    self.step(placed)
        slots = [torch.full_like(self.optimizer.param_groups[0]["lr"], rate) for rate in rates if self.reads_rate]
        steps = list(zip(slots or rates, inputs, strict=True))
        graph, losses = captured(
            lambda: [self.step_at(rate, placed) for rate, placed in steps],
            devices=self.devices,
            copy_streams=self.copy_streams,
        )
        return Captured(graph, inputs, slots, losses)

    def step_at(self, rate: float | torch.Tensor, placed: list[Batch]) -> torch.Tensor:
        """One step at this learning rate."""
        optim.set_rate(self.optimizer, rate)
        return self.step(placed)


def _form(tensor: torch.Tensor) -> tuple:
    """What two tensors share that one graph can read."""
    return tuple(tensor.shape), tensor.stride(), tensor.dtype


def copy_parts(given: list[Batch], held: list[Batch]) -> None:
    """Copy a batch, part by part, to tensors of the same shapes."""
    for sources, targets in zip(given, held, strict=True):
        for source, target in zip(sources, targets, strict=True):
            target.copy_(source)


def captured(
    step: Callable[[], Result],
    *,
    devices: Sequence[torch.device] = (),
    copy_streams: Sequence[torch.cuda.Stream] = (),
) -> tuple[torch.cuda.CUDAGraph, Result]:
    """A call as a graph, and what the call returned: tensors that each replay writes to. This computes nothing.

    `devices`: all on which it computes, by default the current one. `copy_streams`: as in Graphed.
    """
    graph, alone = torch.cuda.CUDAGraph(), len(devices) < 2 and not copy_streams
    beginning, *others = [capture_stream(device) for device in devices] or [capture_stream()]
    with (
        graphs_over_devices.further(others),
        # thread_local: meanwhile, a loader's threads may go on calling CUDA. relaxed: so may this one.
        torch.cuda.graph(graph, stream=beginning, capture_error_mode="thread_local" if alone else "relaxed"),
        graphs_over_devices.taking_part(beginning, [*others, *copy_streams]),
    ):
        result = step()
    return graph, result


def capture_stream(device: torch.device | None = None) -> torch.cuda.Stream:
    """The stream of a device, by default the current one, for captures: the default stream cannot be captured."""
    return _stream(torch.cuda.current_device() if device is None or device.index is None else device.index)


@cache
def _stream(index: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(index)


@contextmanager
def on_capture_stream(device: torch.device | None = None) -> Iterator[None]:
    """Work inside runs on the capture stream, after what was queued before and ahead of what is queued later."""
    stream = capture_stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream(device).wait_stream(stream)


@contextmanager
def on_capture_streams(devices: Sequence[torch.device]) -> Iterator[None]:
    """The same for work on several devices. The first one is the current device inside."""
    with ExitStack() as around:
        for device in reversed(devices):
            around.enter_context(on_capture_stream(device))
        yield


def building_stream(job: Job) -> AbstractContextManager:
    """The stream on which DistributedDataParallel is built: the capture stream, if its steps will be captured.

    Its hooks run on the stream on which they were made, and a capture must find them on its own stream.
    """
    return on_capture_stream() if job.settings.get("cuda_graphs", False) else nullcontext()


@contextmanager
def undone(module: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Restores parameters, buffers, the optimizer's state and the generators of random numbers at the end, whatever
    steps were made inside.

    Optimizer state created inside stays, as zeros. For SGD's momentum this equals no state: in the first step torch
    takes the gradient itself as momentum, and zeros plus the gradient are the same.
    """
    before = [(tensor, tensor.detach().clone()) for tensor in (*module.parameters(), *module.buffers())]
    state = {id(tensor): tensor.clone() for tensor in _state(optimizer)}
    with torch.random.fork_rng(devices=sorted({each.device for each in module.parameters() if each.is_cuda}, key=str)):
        yield
    with torch.no_grad():
        for tensor, value in before:
            tensor.copy_(value)
        for tensor in _state(optimizer):
            tensor.copy_(state[id(tensor)]) if id(tensor) in state else tensor.zero_()


def _state(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """All tensors of an optimizer's state."""
    return [value for each in optimizer.state.values() for value in each.values() if isinstance(value, torch.Tensor)]
