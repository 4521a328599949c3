"""The losses of the golden reference, and the targets that they take."""

from __future__ import annotations

import numpy as np

from harness.layers import log_softmax
from harness.workloads import Loss


def loss_and_gradient(loss: Loss, outputs: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
    """The mean loss of a batch, and its gradient with respect to the outputs.

    "mse" averages over samples and output elements. "cross_entropy" takes logits, "nll" log-probabilities; both average
    over samples. With the targets of harness.datasets.padded, each sample's loss is first multiplied by its factor.
    """
    targets, factors = split_targets(loss, outputs, targets)
    if loss == "mse":
        difference = outputs - targets
        weighted = difference * factors[:, None]
        return float(np.mean(weighted * difference)), 2 * weighted / difference.size
    rows, count = np.arange(len(targets)), len(targets)
    log_probabilities = log_softmax(outputs) if loss == "cross_entropy" else outputs
    one_hot = np.zeros_like(outputs)
    one_hot[rows, targets] = 1
    gradient = np.exp(log_probabilities) - one_hot if loss == "cross_entropy" else -one_hot
    return float(-np.mean(factors * log_probabilities[rows, targets])), factors[:, None] * gradient / count


def split_targets(loss: Loss, outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The targets as the loss takes them, and each sample's factor: 1, except in targets of harness.datasets.padded.

    Raises ValueError for targets that are neither, such as a row of labels for each sample.
    """
    labels = loss != "mse"
    plain = (len(outputs),) if labels else outputs.shape
    if targets.shape == plain:
        return targets, np.ones(len(targets), outputs.dtype)
    with_factors = (len(outputs), 2 if labels else outputs.shape[1] + 1)
    if targets.shape != with_factors or targets.dtype.kind != "f":
        raise ValueError(
            f"{loss}: targets of shape {targets.shape} and type {targets.dtype}; allowed are {plain}, or floats "
            f"of shape {with_factors} whose last column is a factor"
        )
    known, factors = targets[:, :-1], targets[:, -1]
    return (known[:, 0].astype(np.int64) if labels else known), factors
