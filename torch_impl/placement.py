"""From NumPy batches to tensors on the host, and from the host to a device."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from harness.contract import Arrays

Batch = tuple[torch.Tensor, torch.Tensor]
"""Inputs and targets of one accumulation step."""


def on_host(batch: Arrays, dtype: torch.dtype, memory_format: torch.memory_format = torch.contiguous_format) -> Batch:
    """Inputs as `dtype`, images NHWC -> NCHW; class labels stay int64, all other targets become `dtype`.

    With torch.channels_last, images stay where they are in memory: only their axes are permuted.
    """
    x, y = batch["x"], batch["y"]
    if x.ndim == 4:
        x = x.transpose(0, 3, 1, 2)
        if memory_format == torch.contiguous_format:
            x = np.array(x, order="C")  # of one channel, ascontiguousarray would keep strides that torch takes for NHWC
    inputs, targets = torch.from_numpy(x), torch.from_numpy(np.ascontiguousarray(y))
    return inputs.to(dtype), targets.to(dtype) if targets.is_floating_point() else targets


def to_device(batch: Batch, device: torch.device, *, targets: torch.device | None = None, wait: bool = True) -> Batch:
    """The batch on `device`, its targets on the device `targets` if given.

    `wait=False` only queues the copies; it is for pinned memory.
    """
    x, y = batch
    return x.to(device, non_blocking=not wait), y.to(targets or device, non_blocking=not wait)


def model_to_device(model: nn.Module, device: torch.device, memory_format: torch.memory_format) -> None:
    """Move a model in place, with its convolution kernels in `memory_format`."""
    model.to(device, memory_format=memory_format)  # pyright: ignore[reportCallIssue]
