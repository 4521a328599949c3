"""Losses and accuracy: each takes outputs and targets, and gives the mean over the samples it sees.

Targets are those of harness.data: class labels or, for "mse", rows like the outputs'. Those of harness.data.padded have
one column more, the factor that each sample's loss is multiplied with before the mean: labels then are a column too.
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
    """The loss of that name."""
    plain = LOSSES[name]

    def mean_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        known, factors = split_targets(name, outputs, targets)
        if factors is None:
            return plain(outputs, known)
        each = plain(outputs, known, reduction="none")
        return torch.mean(factors * (each.mean(1) if name == "mse" else each))

    return mean_loss


def accuracy(name: Loss, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The share of samples whose largest output is their class's: for "mse", that of the largest target."""
    known, factors = split_targets(name, outputs, targets)
    right = outputs.argmax(1) == (known.argmax(1) if name == "mse" else known)
    return torch.mean(right.double() if factors is None else factors * right)


def split_targets(name: Loss, outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Targets as torch's losses take them, and each sample's factor, None where there are none."""
    if name == "mse":
        plain = targets.shape == outputs.shape
        return (targets, None) if plain else (targets[:, :-1], targets[:, -1])
    return (targets, None) if targets.ndim == 1 else (targets[:, 0].long(), targets[:, 1])
