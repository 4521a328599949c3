"""nn.DataParallel: one process, one Python thread a device.

At every step device 0 copies its parameters to all devices, cuts the batch along dim 0 and sends each device a part;
each thread runs the forward pass on its copy; the outputs are gathered on device 0, where the loss is taken. Backward
runs the same way in reverse, and the copies' gradients are summed into device 0's parameters, which alone are updated.
The others wait for device 0 at both ends, and all threads share one interpreter lock: that is why DDP replaced it.

A trap: the threads are new at every step, and torch keeps what cuDNN's autotuner has found for each thread by itself
(`thread_local` in aten/src/ATen/native/cudnn/Conv_v8.cpp; pytorch/pytorch#191744 would share it). With
cudnn.benchmark, which elsewhere tunes once for each shape, each convolution is tuned anew at every step. ResNet-50 with
224 x 224 in bf16, 512 images on two H200s (torch 2.11, single launches): 288 images/s with it, 4,508 without; one H200
does 4,734 alone. So the tuned track leaves it off here; `--setting cudnn_benchmark=true` shows it.

The loss is the mean over the gathered outputs, so the summed gradients are those of the global mean: nothing to divide.
BatchNorm's running statistics are device 0's, of its own part alone: what the copies have seen goes with the copies.
"""

from __future__ import annotations

import torch
from torch import nn

from harness.contract import Job
from torch_impl.strategies.single import SingleDevice


class InBfloat16(nn.Module):
    """Enters autocast by itself: autocast is per thread, and DataParallel's threads fall back to float16."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            return self.model(x)


class DataParallel(SingleDevice):
    def parallelize(self, model: nn.Module) -> nn.Module:
        replicated = InBfloat16(model) if self.job.precision == "bf16" else model
        # device_ids given: with the default, DataParallel would take every GPU that the process sees
        return nn.DataParallel(replicated, device_ids=list(range(self.job.world.devices)))

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward(x)  # on all devices


def build(job: Job) -> DataParallel:
    return DataParallel(job)
