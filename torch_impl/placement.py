"""Numpy batches to tensors on a device."""

from __future__ import annotations

import numpy as np
import torch

from harness.contract import Arrays

Batch = tuple[torch.Tensor, torch.Tensor]


def to_device(batch: Arrays, device: torch.device, dtype: torch.dtype) -> Batch:
    """Inputs as `dtype`, images NHWC -> NCHW; class labels stay int64, regression targets become `dtype`."""
    x, y = batch["x"], batch["y"]
    if x.ndim == 4:
        x = x.transpose(0, 3, 1, 2)
    targets = torch.from_numpy(np.ascontiguousarray(y))
    if targets.is_floating_point():
        targets = targets.to(dtype)
    return torch.from_numpy(np.ascontiguousarray(x)).to(device, dtype), targets.to(device)
