"""Losses: each takes outputs and targets, and gives the mean over the samples it sees."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from harness.workloads import Loss


def _mse(outputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.math.squared_difference(outputs, targets))


def _cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


def _nll(log_probabilities: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    return -tf.reduce_mean(tf.gather(log_probabilities, labels, axis=1, batch_dims=1))


LOSSES: dict[Loss, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]] = {
    "mse": _mse,
    "cross_entropy": _cross_entropy,
    "nll": _nll,
}


def get(name: Loss) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """The loss of that name."""
    return LOSSES[name]
