"""Losses: each takes outputs and targets, and gives the mean over the samples it sees."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from harness.workloads import Loss

LOSSES: dict[Loss, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mse": functional.mse_loss,
    "cross_entropy": functional.cross_entropy,
    "nll": functional.nll_loss,
}


def get(name: Loss) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """The loss of that name."""
    return LOSSES[name]
