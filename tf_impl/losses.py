"""Losses: each takes outputs and targets and returns the mean over the samples it sees.

Targets may have a last column with a factor for each sample's loss (harness.datasets.padded). Their shape tells whether
they do while the step is traced, so plain targets cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from harness.workloads import Loss

LossFn = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def _nll(log_probabilities: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    return -tf.gather(log_probabilities, labels, axis=1, batch_dims=1)


def _cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)


LOSSES: dict[Loss, LossFn] = {"mse": tf.math.squared_difference, "cross_entropy": _cross_entropy, "nll": _nll}
"""Before the mean is taken: one value per sample, for mse one per output of each sample."""


def get(name: Loss) -> LossFn:
    """The loss called `name`."""

    def loss(outputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        targets, factors = _split(name, outputs, targets)
        found = LOSSES[name](outputs, targets)
        if factors is not None:
            found *= factors[:, tf.newaxis] if name == "mse" else factors
        return tf.reduce_mean(found)

    return loss


def accuracy(name: Loss, outputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """The share of samples whose largest output is that of their class. For mse, the largest target marks the class."""
    targets, factors = _split(name, outputs, targets)
    classes = tf.argmax(targets, axis=1) if name == "mse" else targets
    right = tf.cast(tf.argmax(outputs, axis=1) == classes, outputs.dtype)
    return tf.reduce_mean(right if factors is None else factors * right)


def _split(name: Loss, outputs: tf.Tensor, targets: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
    """The targets as the loss takes them, and each sample's factor or None."""
    if name == "mse":
        plain = targets.shape[1] == outputs.shape[1]
        return (targets, None) if plain else (targets[:, :-1], targets[:, -1])
    return (targets, None) if targets.shape.rank == 1 else (tf.cast(targets[:, 0], tf.int64), targets[:, 1])
