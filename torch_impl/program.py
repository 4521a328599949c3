"""What every strategy has besides its training step: state, batches, evaluation, checkpoints.

A strategy inherits from Program. Its `__init__` builds the model and the optimizer, and its `train_step` is the whole
training step. The methods here are those that the harness calls: see harness.contract.Program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from harness.contract import Arrays, Job
from harness.spec.partition import shares
from torch_impl import losses, models, optim, placement, runtime, tuning, weights
from torch_impl.placement import Batch


class Program:
    """A model in training on this process's devices.

    A strategy sets these attributes. By convention it calls `network` what its step calls: the model as it compiles or
    wraps it.
    """

    model: nn.Module  # the plain network
    optimizer: torch.optim.Optimizer
    lr_schedule: LambdaLR | None  # None: the learning rate is constant
    copy_streams: Sequence[torch.cuda.Stream] = ()  # that its step uses for copies between devices

    def __init__(self, job: Job) -> None:
        self.job = job
        self.devices = [runtime.device(job.world, index) for index in range(job.world.local_devices)]  # this process's
        self.device = self.devices[0]
        self.dtype = runtime.DTYPES[job.precision]
        self.loss_fn = tuning.compiled(losses.get(job.workload.loss), job)
        self.last_loss = torch.zeros(())

    # What a strategy builds itself from.

    def build_model(self, *, memory_format: torch.memory_format | None = None) -> nn.Sequential:
        """The network with its initial weights on this process's device.

        `memory_format` is that of the convolution kernels, by default the one that the track sets.
        """
        model = initial_model(self.job)
        placement.model_to_device(model, self.device, memory_format or tuning.memory_format(self.job))
        return model

    def build_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The job's optimizer over `parameters`, fused and captured if the track says so."""
        fused, captured = (self.job.settings.get(name, False) for name in ("fused_optimizer", "cuda_graphs"))
        return optim.build(self.job.optimizer, parameters, fused=fused, captured=captured)

    def autocast(self) -> torch.autocast:
        """The context of forward and loss. In bf16, PyTorch chooses a type for each operation; else it does nothing."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.job.precision == "bf16")

    @property
    def share(self) -> tuple[int, int]:
        """Which share of each batch this process trains on, and of how many."""
        return self.job.world.rank, self.job.world.processes

    @property
    def trained(self) -> nn.Module:
        """The model whose parameters the optimizer updates."""
        return self.model

    # Batches.

    def place(self, batch: Arrays) -> list[Batch]:
        """This process's share of a global batch on its devices: one Batch for each accumulation step."""
        rank, ranks = self.share
        parts = shares(batch, steps=self.job.accumulation_steps, rank=rank, ranks=ranks)
        return self.put([placement.on_host(part, self.dtype, tuning.memory_format(self.job)) for part in parts])

    def put(self, parts: list[Batch], *, wait: bool = True) -> list[Batch]:
        """Copy what is already this process's share from the host to its devices; `wait` as in placement.to_device."""
        return [placement.to_device(part, self.device, wait=wait) for part in parts]

    # Training.

    def train_step(self, placed: list[Batch]) -> torch.Tensor:
        """One update at the present learning rate. Returns the loss of this process's share of the batch, without
        waiting for it."""
        raise NotImplementedError

    @cached_property
    def run(self) -> Callable[[list[Batch]], torch.Tensor]:
        """`train_step`, captured as a CUDA graph if the track says so."""
        return self.build_run()

    @cached_property
    def run_traced(self) -> Callable[[list[Batch]], torch.Tensor]:
        """The same for traced steps. Its graph is captured while one is traced, so it holds the marks of the timeline.

        A replay calls no Python, so the graph of `run` cannot have any.
        """
        return self.build_run()

    def build_run(self) -> Callable[[list[Batch]], torch.Tensor]:
        """`train_step`, or what captures it as a CUDA graph when it is first called."""
        if self.job.settings.get("cuda_graphs", False):
            known: dict[str, Any] = {"rates": self.coming_rates, "copy_streams": self.copy_streams}
            return tuning.Graphed(self.train_step, self.trained, self.optimizer, devices=self.devices, **known)
        return self.train_step

    def coming_rates(self, updates: int) -> list[float]:
        """The learning rates of the next updates."""
        return optim.coming_rates(self.job.optimizer, self.lr_schedule, updates)

    def step(self, placed: list[Batch]) -> torch.Tensor:
        self.last_loss = self.run(placed)
        self.step_schedule()
        return self.last_loss

    def traced_step(self, placed: list[Batch]) -> None:
        """What `step` does, while a timeline records it."""
        self.last_loss = self.run_traced(placed)
        self.step_schedule()

    def step_schedule(self, updates: int = 1) -> None:
        """Set the learning rate of the update after these."""
        if self.lr_schedule is not None:
            for _ in range(updates):
                self.lr_schedule.step()

    def uncaptured_step(self, placed: list[Batch]) -> None:
        """What `step` does, but launched by Python where `step` replays a CUDA graph."""
        if not isinstance(self.run, tuning.Graphed):
            self.step(placed)
            return
        with tuning.on_capture_streams(self.run.devices):
            self.run.step(placed)
        self.step_schedule()

    @property
    def steps(self) -> Callable[[Sequence[list[Batch]]], list[torch.Tensor]] | None:
        """One update for each placed batch, all in one replay of a CUDA graph; None if steps are not captured.

        Without a graph, PyTorch launches every operation by itself, and k steps in one call would be k calls.
        """
        return self.replay_several if isinstance(self.run, tuning.Graphed) else None

    def replay_several(self, batches: Sequence[list[Batch]]) -> list[torch.Tensor]:
        assert isinstance(self.run, tuning.Graphed)
        losses = self.run.several(batches)
        self.step_schedule(len(batches))
        self.last_loss = losses[-1]
        return losses

    def sync(self) -> None:
        runtime.sync(self.job.world)

    def loss(self, of: torch.Tensor | None = None) -> float:
        return self.over_ranks(self.last_loss if of is None else of).item()

    def over_ranks(self, value: torch.Tensor) -> torch.Tensor:
        """The mean of every rank's `value`, in float64. A collective."""
        return runtime.mean_over_ranks(value, self.job.world)

    # Evaluation.

    # Not inference_mode: parameters that FSDP gathers for the first time inside it could never be trained.
    @torch.no_grad()
    def evaluate(self, placed: list[Batch]) -> tuple[float, float]:
        """Loss and accuracy. This sets BatchNorm's running statistics to their mean over the ranks for good."""
        self.average_statistics()
        self.model.eval()
        with self.autocast():
            scores = [self.score(self.predict(x), y) for x, y in placed]
        self.model.train()
        loss, accuracy = self.over_ranks(torch.stack(scores).mean(0)).tolist()
        return loss, accuracy

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        """The model's outputs for a part of a batch. Evaluation needs no gradients, hence none of the wrappers."""
        return self.model(x)

    def score(self, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Loss and accuracy of a part of a batch, as a tensor of shape (2,)."""
        kind = self.job.workload.loss
        loss, accuracy = losses.get(kind)(outputs, y), losses.accuracy(kind, outputs, y)
        return torch.stack([loss.double(), accuracy.double()])

    @torch.no_grad()
    def average_statistics(self) -> None:
        """Set BatchNorm's running statistics to their mean over the ranks: each rank has seen its own samples."""
        _, ranks = self.share
        statistics = list(weights.statistics(self.model).values())
        if not statistics or ranks == 1:
            return
        # In float64 the mean of equal float32 numbers is that number, so averaging twice changes nothing.
        mean = runtime.mean_over_ranks(torch.cat(statistics), self.job.world)
        for statistic, part in zip(statistics, mean.split([len(each) for each in statistics]), strict=True):
            statistic.copy_(part)

    # State: for checkpoints, and for the gate.

    def state(self) -> Arrays | None:
        """See harness.contract.Program. Averages the running statistics as `evaluate` does."""
        self.average_statistics()
        parameters = self.to_host(dict(self.trained.named_parameters()))
        optimizer = optim.state(self.trained, self.optimizer, self.lr_schedule)
        rest = self.to_host(weights.statistics(self.model) | optimizer)
        canonical = weights.canonical(self.job.workload, parameters)
        model = {f"model/{name}": array for name, array in canonical.items()}
        wide = {name: each.float() if each.dtype == torch.bfloat16 else each for name, each in rest.items()}
        return model | {name: each.numpy() for name, each in wide.items()}  # NumPy has no bfloat16

    @torch.no_grad()
    def load_state(self, state: Arrays) -> None:
        params = {name.removeprefix("model/"): array for name, array in state.items() if name.startswith("model/")}
        weights.load(self.trained, self.job.workload, params)
        for name, buffer in weights.statistics(self.model).items():
            if not buffer.is_meta:
                buffer.copy_(torch.from_numpy(state[name]))
        optim.load_state(self.trained, self.optimizer, self.lr_schedule, self.job.optimizer, state)

    def export(self) -> list[Arrays]:
        return [weights.canonical(self.job.workload, self.to_host(dict(self.trained.named_parameters())))]

    def to_host(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Whole copies on the host. A collective, because ranks may hold parts of them."""
        return weights.to_host(tensors)


def initial_model(job: Job) -> nn.Sequential:
    """The job's network with its initial weights, on the host."""
    model = untrained_model(job)
    weights.load(model, job.workload, job.params)
    return model


def untrained_model(job: Job) -> nn.Sequential:
    """The job's network in its number format, with PyTorch's own initial weights."""
    model = models.build(job.workload, settings=job.settings)
    model.to(runtime.DTYPES[job.precision])  # before weights are loaded: float64 must not pass through float32
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1 - job.statistics_momentum  # torch's momentum is the share of what is new
    return model
