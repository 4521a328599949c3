"""One device: no parallelism. The base case that every speed-up is measured against.

Parameters, gradients and the whole batch live on one device; nothing crosses. Data-parallel strategies run this same
step on a part of the batch and then agree on the gradient, so their files differ from this one only where they must.

With gradient accumulation the batch comes in several parts, of which each adds its share to the gradient, so that
activations take the memory of one part only; BatchNorm then sees one part at a time.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch._utils import _flatten_dense_tensors as flatten
from torch._utils import _unflatten_dense_tensors as unflatten

from harness.contract import Arrays, Job
from harness.spec.partition import shares
from torch_impl import losses, models, optim, placement, runtime, tuning, weights


class SingleDevice:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.device = runtime.device(job.world)
        self.dtype = runtime.DTYPES[job.precision]
        self.model = models.build(job.workload)
        self.model.to(self.dtype)  # before loading: float64 weights must not pass through float32
        weights.load(self.model, job.workload, job.params)
        self.model.to(self.device, memory_format=self.kernel_format)  # pyright: ignore[reportCallIssue]
        self.forward = self.parallelize(self.model)
        self.prepare_training()

    def prepare_training(self) -> None:
        """All that a step needs beside the model."""
        self.optimizer = self.build_optimizer()
        self.schedule = optim.build_schedule(self.job.optimizer, self.optimizer)
        self.loss_fn = losses.get(self.job.workload.loss)
        self.last_loss = torch.zeros(())
        self.run = self.train
        if self.job.settings.get("cuda_graphs", False):
            self.run = tuning.Graphed(self.train, self.trained, self.optimizer)

    def build_optimizer(self) -> torch.optim.Optimizer:
        fused = self.job.settings.get("fused_optimizer", False)
        return optim.build(self.job.optimizer, self.trained.parameters(), fused=fused)

    def parallelize(self, model: nn.Module) -> nn.Module:
        """What the step calls instead of the model: here the model itself, compiled if the track has it so."""
        return tuning.compiled(model, self.job)

    @property
    def kernel_format(self) -> torch.memory_format:
        """How the parameters of convolutions lie."""
        return tuning.memory_format(self.job)

    @property
    def share(self) -> tuple[int, int]:
        """Which part of each batch this process takes, and of how many."""
        return self.job.world.rank, self.job.world.processes

    @property
    def trained(self) -> nn.Module:
        """The model whose parameters are updated."""
        return self.model

    def place(self, batch: Arrays) -> list[placement.Batch]:
        """This process's part of each accumulation step."""
        rank, ranks = self.share
        parts = shares(batch, steps=self.job.accumulation_steps, rank=rank, ranks=ranks)
        return self.put([placement.on_host(part, self.dtype, tuning.memory_format(self.job)) for part in parts])

    def put(self, parts: list[placement.Batch], *, wait: bool = True) -> list[placement.Batch]:
        """To the device, what is already this process's part; `wait` as in placement.to_device."""
        return [placement.to_device(part, self.device, wait=wait) for part in parts]

    def step(self, placed: list[placement.Batch]) -> torch.Tensor:
        self.last_loss = self.run(placed)
        return self.last_loss

    def train(self, placed: list[placement.Batch]) -> torch.Tensor:
        """One update; the loss of the whole batch, or of this process's part."""
        total = None
        self.optimizer.zero_grad(set_to_none=True)  # gradients are written, not accumulated, by the next backward
        for number, (x, y) in enumerate(placed, start=1):
            with self.communication(last=number == len(placed)):
                with self.autocast():
                    loss = self.loss_fn(self.forward(x), y)
                if len(placed) > 1:
                    loss = loss / len(placed)
                loss.backward()
            # not .item(): that would wait for the device at every step
            total = loss.detach() if total is None else total + loss.detach()
        self.exchange_gradients()
        self.optimizer.step()
        if self.schedule is not None:
            self.schedule.step()
        assert total is not None
        return total

    def autocast(self) -> torch.autocast:
        """What forward and loss run in: in bf16, PyTorch chooses a type for each operation."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.job.precision == "bf16")

    def communication(self, *, last: bool) -> AbstractContextManager:
        """What an accumulation step runs in. Strategies that communicate in backward do so in the last one only."""
        return nullcontext()

    def exchange_gradients(self) -> None:
        """What happens between backward and update: here nothing."""

    def sync(self) -> None:
        runtime.sync(self.job.world)

    def loss(self, of: torch.Tensor | None = None) -> float:
        return self.agreed(self.last_loss if of is None else of).item()

    def agreed(self, value: torch.Tensor) -> torch.Tensor:
        """Of each rank's value the one that all go by: their mean."""
        return runtime.mean_over_ranks(value, self.job.world)

    # not inference_mode: what FSDP gathers in it for the first time could never be trained with
    @torch.no_grad()
    def evaluate(self, placed: list[placement.Batch]) -> tuple[float, float]:
        """Loss and accuracy. BatchNorm's running statistics become their mean over the ranks, and stay it."""
        self.average_statistics()
        self.model.eval()
        with self.autocast():
            found = [self.judged(self.predict(x), y) for x, y in placed]
        self.model.train()
        loss, accuracy = self.agreed(torch.stack(found).mean(0)).tolist()
        return loss, accuracy

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        """Outputs of a part of a batch, by the model itself: wrappers are there for gradients."""
        return self.model(x)

    def judged(self, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Loss and accuracy of a part of a batch."""
        accuracy = losses.accuracy(self.job.workload.loss, outputs, y)
        return torch.stack([self.loss_fn(outputs, y).double(), accuracy.double()])

    @torch.no_grad()
    def average_statistics(self) -> None:
        """BatchNorm's running statistics to their mean over the ranks, each of which has seen its own samples."""
        _, ranks = self.share
        held = list(weights.statistics(self.model).values())
        if held and ranks > 1:
            # in float64, where the mean of equal float32 numbers is that number: averaging again changes nothing
            mean = runtime.mean_over_ranks(flatten(held), self.job.world)
            for buffer, part in zip(held, unflatten(mean, held), strict=True):
                buffer.copy_(part)

    def state(self) -> Arrays | None:
        """See harness.contract.Program; of BatchNorm's running statistics as `evaluate`."""
        self.average_statistics()
        parameters = self.whole(dict(self.trained.named_parameters()))
        rest = self.whole(weights.statistics(self.model) | optim.state(self.trained, self.optimizer, self.schedule))
        canonical = weights.canonical(self.job.workload, parameters)
        return {f"model/{name}": array for name, array in canonical.items()} | {
            name: tensor.numpy() for name, tensor in rest.items()
        }

    @torch.no_grad()
    def load_state(self, state: Arrays) -> None:
        params = {name.removeprefix("model/"): array for name, array in state.items() if name.startswith("model/")}
        weights.load(self.trained, self.job.workload, params)
        for name, buffer in weights.statistics(self.model).items():
            if not buffer.is_meta:
                buffer.copy_(torch.from_numpy(state[name]))
        optim.load_state(self.trained, self.optimizer, self.schedule, self.job.optimizer, state)

    def gradients(self) -> Arrays | None:
        return weights.canonical(self.job.workload, self.whole(weights.gradients(self.model)))

    def export(self) -> list[Arrays]:
        return [weights.canonical(self.job.workload, self.whole(dict(self.trained.named_parameters())))]

    def whole(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Copies on the host, put together where ranks have parts. A collective."""
        return weights.whole(tensors)


def build(job: Job) -> SingleDevice:
    return SingleDevice(job)
