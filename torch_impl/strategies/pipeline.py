"""Pipeline parallelism by hand, in one process: micro-batches flow through the stages, so devices work in parallel.

The layers are cut into stages, one on each device, with its parameters, gradients and optimizer state. The batch is
split into m equal `micro_batches`, or into parts of `split_size` samples, of which the last one may be smaller. (The
last batch of an epoch may have fewer than m samples; each is then a micro-batch.) In each tick every stage takes
the micro-batch that the previous stage finished one tick ago:

    3 stages, 4 micro-batches          forward                    backward
    device 0 | F0 | F1 | F2 | F3 |    |    |    |    | B3 | B2 | B1 | B0 |
    device 1 |    | F0 | F1 | F2 | F3 |    |    | B3 | B2 | B1 | B0 |
    device 2 |    |    | F0 | F1 | F2 | F3 | B3 | B2 | B1 | B0 |

With p equal stages a device works in m of m + p - 1 ticks; the rest is the bubble, (p - 1) / (m + p - 1). More and
smaller micro-batches shrink it, but each costs a launch of every kernel, and small kernels leave a device half empty.
One Python thread launches the work of all devices here, so its speed can limit the whole pipeline. The setting
`cuda_graphs` takes Python out of it: the whole step, over all devices, is one CUDA graph.

No line of code waits. Launches return at once, each device works through its own queue, and activations and their
gradients cross between the queues by copies that hold up nothing else (transfers.py). Each stage is differentiated by
itself: autograd sees what arrives as an input, and backward goes on from the gradient that the next stage sends back.

The outputs are concatenated on the last device for one loss over the whole batch. So the gradients are those of the
whole batch: the sum over micro-batches, each weighted by its number of samples. BatchNorm sees one micro-batch at a
time: in a network with BatchNorm, no pipeline computes exactly what one device computes on the whole batch.
"""

from __future__ import annotations

import torch

from harness.contract import Job
from harness.spec import partition
from torch_impl import optim, transfers
from torch_impl.placement import Batch
from torch_impl.stages import StagedProgram

Work = tuple[int, int]
"""A stage and a micro-batch, by their numbers."""


def launch_order(stages: int, micro_batches: int) -> list[Work]:
    """The order in which the forward work of a step is launched. Its backward work is launched in the reverse order.

    Within a tick later stages come first: their input was ready before this tick's new micro-batch is even launched.
    """
    ticks = range(micro_batches + stages - 1)
    every = [(stage, tick - stage) for tick in ticks for stage in reversed(range(stages))]
    return [(stage, number) for stage, number in every if 0 <= number < micro_batches]


class Pipeline(StagedProgram):
    def __init__(self, job: Job) -> None:
        super().__init__(job)  # self.stages[i] is on self.devices[i]
        self.onward, self.back = transfers.chain(self.devices)  # between stage i and the next one
        self.copy_streams = [stream for link in (*self.onward, *self.back) for stream in link.streams]
        self.optimizer = self.build_optimizer(self.model.parameters())  # updates each parameter on its own device
        self.lr_schedule = optim.build_schedule(job.optimizer, self.optimizer)

    def forward(self, x: torch.Tensor) -> tuple[dict[Work, torch.Tensor], dict[Work, torch.Tensor]]:
        """Each stage's input and its output, for each micro-batch."""
        micro_batches = x.split(partition.micro_batch_size(len(x), self.job.options))
        taken: dict[Work, torch.Tensor] = {(0, number): part for number, part in enumerate(micro_batches)}
        made: dict[Work, torch.Tensor] = {}
        sent: dict[Work, transfers.Arrival] = {}  # to whom
        for stage, number in launch_order(len(self.stages), len(micro_batches)):
            if stage > 0:
                taken[stage, number] = sent.pop((stage, number))().requires_grad_(torch.is_grad_enabled())
            output = made[stage, number] = self.run_stage(stage, taken[stage, number], number)
            if stage < len(self.stages) - 1:
                sent[stage + 1, number] = self.onward[stage].send(output.detach())
        return taken, made

    def backward(
        self, taken: dict[Work, torch.Tensor], made: dict[Work, torch.Tensor], gradients: list[torch.Tensor]
    ) -> None:
        """Add up the gradients of all parameters. `gradients`: those of the last stage's outputs."""
        last = len(self.stages) - 1
        sent: dict[Work, transfers.Arrival] = {}  # to whom
        for stage, number in reversed(launch_order(len(self.stages), len(gradients))):
            gradient = gradients[number] if stage == last else sent.pop((stage, number))()
            output, arrived = made.pop((stage, number)), taken.pop((stage, number))
            if output.requires_grad:  # unless it is that of a first stage without parameters
                output.backward(gradient)
            if stage > 0:
                assert arrived.grad is not None
                sent[stage - 1, number] = self.back[stage - 1].send(arrived.grad)

    def train_step(self, placed: list[Batch]) -> torch.Tensor:
        ((x, y),) = placed  # inputs on the first device, targets on the last
        self.optimizer.zero_grad(set_to_none=True)
        with self.autocast():
            taken, made = self.forward(x)
            last = self.outputs(made)
            outputs = torch.cat(last).detach().requires_grad_()
            loss = self.loss_fn(outputs, y)
        loss.backward()  # to the outputs, and no further
        assert outputs.grad is not None
        self.backward(taken, made, list(outputs.grad.split([len(each) for each in last])))
        self.optimizer.step()
        return loss.detach()

    def outputs(self, made: dict[Work, torch.Tensor]) -> list[torch.Tensor]:
        """The last stage's, in the order of the micro-batches."""
        return [output for (stage, _), output in made.items() if stage == len(self.stages) - 1]

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        _, made = self.forward(x)
        return torch.cat(self.outputs(made))


def build(job: Job) -> Pipeline:
    return Pipeline(job)
