"""Numpy batches to tensors, on the host and then on a device."""

from __future__ import annotations

import numpy as np
import torch

from harness.contract import Arrays

Batch = tuple[torch.Tensor, torch.Tensor]


def on_host(batch: Arrays, dtype: torch.dtype, memory_format: torch.memory_format = torch.contiguous_format) -> Batch:
    """Inputs as `dtype`, images NHWC -> NCHW; class labels stay int64, all other targets become `dtype`.

    In torch.channels_last images keep their place in memory, and only their axes get other names.
    """
    x, y = batch["x"], batch["y"]
    if x.ndim == 4:
        x = x.transpose(0, 3, 1, 2)
        if memory_format == torch.contiguous_format:
            x = np.ascontiguousarray(x)
    inputs, targets = torch.from_numpy(x), torch.from_numpy(np.ascontiguousarray(y))
    return inputs.to(dtype), targets.to(dtype) if targets.is_floating_point() else targets


def to_device(batch: Batch, device: torch.device, *, targets: torch.device | None = None, wait: bool = True) -> Batch:
    """The batch on a device, its targets on another if given. `wait=False` is for pinned memory: copies are queued."""
    x, y = batch
    return x.to(device, non_blocking=not wait), y.to(targets or device, non_blocking=not wait)
