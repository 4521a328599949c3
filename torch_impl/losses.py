"""Losses and accuracy: functions of outputs and targets that return the mean over the samples they are given.

Targets are those of harness.datasets: class labels of shape (batch,) or, for "mse", rows like the outputs. Padded
targets (harness.datasets.padded) have one more column, a factor for each sample's loss before the mean is taken; labels
are then a column too, so the shape is (batch, 2).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from harness.workloads import Loss

LOSSES: dict[Loss, Callable[..., torch.Tensor]] = {
    "mse": functional.mse_loss,
    "cross_entropy": functional.cross_entropy,
    "nll": functional.nll_loss,
}


def get(name: Loss) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """The loss `name`, for targets with or without factors."""
    plain = LOSSES[name]

    def mean_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        known, factors = split_targets(name, outputs, targets)
        if factors is None:
            return plain(outputs, known)
        each = plain(outputs, known, reduction="none")
        return torch.mean(factors * (each.mean(1) if name == "mse" else each))

    return mean_loss


def accuracy(name: Loss, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The share of samples whose largest output is that of their class; for "mse", of their largest target."""
    known, factors = split_targets(name, outputs, targets)
    right = outputs.argmax(1) == (known.argmax(1) if name == "mse" else known)
    return torch.mean(right.double() if factors is None else factors * right)


def split_targets(name: Loss, outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Targets as torch's losses take them, and each sample's factor, or None if there are none."""
    if name == "mse":
        plain = targets.shape == outputs.shape
        return (targets, None) if plain else (targets[:, :-1], targets[:, -1])
    return (targets, None) if targets.ndim == 1 else (targets[:, 0].long(), targets[:, 1])
