"""Evaluation by the golden reference: loss and accuracy of weights, without training."""

from __future__ import annotations

import numpy as np

from harness.layers import chain_forward, running_statistics
from harness.reference.losses import loss_and_gradient, split_targets
from harness.spec.arrays import Arrays
from harness.workloads import Workload


def evaluate(
    workload: Workload, params: Arrays, batch: Arrays, *, running: Arrays | None = None
) -> tuple[float, float]:
    """Mean loss and accuracy over a batch. `running`: BatchNorm's running statistics, without which a network that
    normalizes would normalize over the batch."""
    layers = workload.layers if running is None else running_statistics.frozen(workload.layers, running)
    outputs, _ = chain_forward(layers, params, batch["x"])
    targets, factors = split_targets(workload.loss, outputs, batch["y"])
    loss, _ = loss_and_gradient(workload.loss, outputs, batch["y"])
    return loss, float(np.mean(factors * (outputs.argmax(1) == classes_of(targets))))


def classes_of(targets: np.ndarray) -> np.ndarray:
    """The class of each sample, whose targets are labels or one-hot rows."""
    return targets if targets.ndim == 1 else targets.argmax(1)
