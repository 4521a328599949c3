"""A model as an ordered list of blocks, cut into stages: what model and pipeline parallelism have in common."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from harness.contract import Job
from harness.spec import Span, partition
from torch_impl import placement, runtime, tuning
from torch_impl.models import blocks
from torch_impl.placement import Batch
from torch_impl.program import Program, initial_model
from torch_impl.timeline import Timeline, from_the_first

TIMED_RUNS = 3  # of each block; its time is the shortest
EAGER_VISITS = 3  # of a block before it is captured
MOST_CYCLES_PER_SECOND = 3.5e9  # of a GPU


def cut(model: nn.Sequential, job: Job, *, per_device: int = 1) -> tuple[list[nn.Sequential], str]:
    """The model as one Sequential per stage, and where it is cut (partition.cut_text). Modules are shared, not copied.

    `per_device`: how many stages each device has. No stage overwrites its input, whose gradient goes back to the stage
    before.

    Raises UsageError if the option `cut` names a block that does not exist.
    """
    points = cut_points(model, job, stages=job.world.devices * per_device)
    modules = list(blocks(model).values())
    stages = [nn.Sequential(*modules[start:end]) for start, end in pairwise([0, *points, len(modules)])]
    for entry in (stage[0] for stage in stages):
        if isinstance(entry, nn.ReLU):
            entry.inplace = False
    return stages, partition.cut_text(points, job.workload.blocks)


def cut_points(model: nn.Sequential, job: Job, *, stages: int) -> tuple[int, ...]:
    """The index of the first block of each stage after the first, according to the option `cut`.

    "time" balances the measured time of forward and backward; for all others see Workload.cut_points.
    """
    if job.options["cut"] == "time":
        return of_rank_0(partition.balance(block_seconds(list(blocks(model).values()), job), stages), job)
    return job.workload.cut_points(job.options["cut"], stages)


def of_rank_0(points: tuple[int, ...], job: Job) -> tuple[int, ...]:
    """Rank 0's points on every rank: each has measured its own times."""
    if job.world.processes == 1:
        return points
    decided = [points]
    dist.broadcast_object_list(decided, src=0)
    return decided[0]


def block_seconds(modules: list[nn.Module], job: Job) -> list[float]:
    """Seconds of forward and backward of each block on its own, on the first device, for a micro-batch of random
    numbers.

    Each runs as it will in a stage: in the job's precision and memory format, compiled and captured as a CUDA graph if
    the track says so. Nobody needs the gradient of the images, so the first block does not compute it.
    """
    device = runtime.device(job.world)
    shape = (partition.micro_batch_size(job.global_batch, job.options), *job.workload.input_shape)
    formats = runtime.DTYPES[job.precision], tuning.memory_format(job)
    x, _ = placement.on_host({"x": np.random.default_rng(0).standard_normal(shape), "y": np.zeros(1)}, *formats)
    x = x.to(device)
    statistics = [(buffer, buffer.clone()) for module in modules for buffer in module.buffers()]
    seconds = []
    for index, module in enumerate(modules):
        placement.model_to_device(module, device, formats[1])
        with keeping_input(module):
            run, x = runner(tuning.compiled(module, job), x.detach().requires_grad_(index > 0), job)
            seconds.append(min(seconds_of(run, job) for _ in range(TIMED_RUNS)))
        module.zero_grad(set_to_none=True)
    for buffer, before in statistics:
        buffer.copy_(before)  # measuring must not change the running statistics
    return seconds


@contextmanager
def keeping_input(module: nn.Module) -> Iterator[None]:
    """Inside, a ReLU that overwrites its input does not."""
    relu = module if isinstance(module, nn.ReLU) and module.inplace else None
    if relu is not None:
        relu.inplace = False
    yield
    if relu is not None:
        relu.inplace = True


def runner(
    block: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, job: Job
) -> tuple[Callable[[], object], torch.Tensor]:
    """What makes a block's forward and backward once, as the job's step makes them; and the block's outputs."""

    def visit() -> torch.Tensor:
        x.grad = None
        with torch.autocast(x.device.type, torch.bfloat16, enabled=job.precision == "bf16"):
            output = block(x)
        if output.requires_grad:
            output.backward(torch.ones_like(output))
        return output.detach()

    if not job.settings.get("cuda_graphs", False):
        return visit, visit()  # the first time, the compiler compiles, and cuDNN chooses kernels
    with tuning.on_capture_stream(x.device):
        for _ in range(EAGER_VISITS):
            visit()
    graph, output = tuning.captured(visit, devices=[x.device])
    graph.replay()
    return graph.replay, output.clone()


def seconds_of(run: Callable[[], object], job: Job) -> float:
    """Seconds of a call, to the end of what it starts on the devices."""
    runtime.sync(job.world)
    start = time.perf_counter()
    run()
    runtime.sync(job.world)
    return time.perf_counter() - start


def wait_on_devices(devices: Iterable[torch.device], seconds: float) -> None:
    """Let the queue of each GPU wait for so long at least. Returns at once."""
    for device in devices:
        if seconds and device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda._sleep(int(seconds * MOST_CYCLES_PER_SECOND))


class StagedProgram(Program):
    """A program whose process holds all stages, one on each of its devices.

    Strategies define `predict` and `train_step`, which call `run_stage`. This class places the model and the batches,
    and traces a step: when each stage worked on which micro-batch.
    """

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.model = initial_model(job)
        self.stages, self.cut_after = cut(self.model, job)
        for stage, device in zip(self.stages, self.devices, strict=True):
            placement.model_to_device(stage, device, tuning.memory_format(job))
        self.networks = [tuning.compiled(stage, job) for stage in self.stages]
        self.tracing = Timeline(dict(enumerate(self.devices)))
        self.timeline: Timeline | None = None  # `tracing`, while a step is traced

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        """Outputs on the last device, for inputs on the first."""
        raise NotImplementedError

    def run_stage(self, index: int, x: torch.Tensor, micro_batch: int = 0) -> torch.Tensor:
        """The output of a stage for inputs on its device. While a step is traced, the timeline records it."""
        if self.timeline is None:
            return self.networks[index](x)
        return self.timeline.run(self.networks[index], x, stage=index, micro_batch=micro_batch)

    def trace(self, placed: list[Batch], *, head_start: float = 0.0) -> list[Span]:
        """One step, with the times at which each stage worked.

        `head_start`: seconds for which GPUs wait first. Meanwhile Python launches as much as their queues take, some
        thousand kernels each, so that their first micro-batches do not wait for it.
        """
        self.sync()
        self.timeline = self.tracing
        self.timeline.set_zero()
        wait_on_devices(self.devices, head_start)
        self.traced_step(placed)
        self.sync()
        self.timeline = None
        return from_the_first(self.tracing.spans())

    def put(self, parts: list[Batch], *, wait: bool = True) -> list[Batch]:
        # Targets go to the last device, where the loss is computed.
        return [placement.to_device(part, self.devices[0], targets=self.devices[-1], wait=wait) for part in parts]
