"""nn.DataParallel: one process, one Python thread per device.

At every step device 0 copies its parameters to all devices, splits the batch along dim 0 and sends each device a part.
Each thread runs the forward pass on its copy. The outputs are gathered on device 0, which computes the loss. Backward
goes the same way in reverse: the copies' gradients are summed into device 0's parameters, and only these are updated.
All devices wait for device 0 at both ends, and all threads share one interpreter lock: that is why DDP replaced it.

    device 0 | copy, split | F of part 0 | gather, loss | B of part 0 |     | update
    device 1 |             | F of part 1 |              | B of part 1 |     |             F forward, B backward
    links    | parameters  |             | outputs      |             | sum |

A trap: the threads are new at every step, and torch keeps the results of cuDNN's autotuner per thread (`thread_local`
in aten/src/ATen/native/cudnn/Conv_v8.cpp; pytorch/pytorch#191744 would share them). With cudnn.benchmark, which
otherwise tunes once for each shape, every convolution is tuned again at every step. ResNet-50 with 224 x 224 in bf16,
512 images on two H200s (torch 2.11, single launches): 288 images/s with it, 4,508 without; one H200 does 4,734 alone.
So the tuned track leaves it off here; `--setting cudnn_benchmark=true` shows the effect.

The loss is the mean over the gathered outputs, so the summed gradients are already those of the global mean, and
nothing needs to be divided. BatchNorm's running statistics are those of device 0, from its own part of the batch alone:
what the copies record is discarded with them.
"""

from __future__ import annotations

import torch
from torch import nn

from harness.contract import Job
from torch_impl import optim
from torch_impl.placement import Batch
from torch_impl.program import Program


class InBfloat16(nn.Module):
    """Enters autocast itself: autocast is per thread, and DataParallel's threads would fall back to float16."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            return self.model(x)


class DataParallel(Program):
    statistics_of = "first"

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.model = self.build_model()
        replicated = InBfloat16(self.model) if job.precision == "bf16" else self.model
        # device_ids is given because DataParallel would otherwise take every GPU that the process sees.
        self.network = nn.DataParallel(replicated, device_ids=list(range(job.world.devices)))
        self.optimizer = self.build_optimizer(self.model.parameters())
        self.lr_schedule = optim.build_schedule(job.optimizer, self.optimizer)

    def train_step(self, placed: list[Batch]) -> torch.Tensor:
        losses = []
        self.optimizer.zero_grad(set_to_none=True)
        for x, y in placed:  # on device 0; one part per accumulation step
            with self.autocast():
                outputs = self.network(x)  # parameters and inputs out to all devices, outputs back to device 0
                loss = self.loss_fn(outputs, y)
            if len(placed) > 1:
                loss = loss / len(placed)
            loss.backward()  # on all devices; their gradients are summed on device 0
            losses.append(loss.detach())
        self.optimizer.step()
        return sum(losses[1:], start=losses[0])

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x)  # on all devices


def build(job: Job) -> DataParallel:
    return DataParallel(job)
