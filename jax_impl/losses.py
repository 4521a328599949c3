"""Losses: each takes outputs and targets, and gives the mean over the samples it sees."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from harness.workloads import Loss


def _mse(outputs: jax.Array, targets: jax.Array) -> jax.Array:
    return jnp.mean((outputs - targets) ** 2)


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))


def _nll(log_probabilities: jax.Array, labels: jax.Array) -> jax.Array:
    return -jnp.mean(jnp.take_along_axis(log_probabilities, labels[:, None], axis=1))


LOSSES: dict[Loss, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "mse": _mse,
    "cross_entropy": _cross_entropy,
    "nll": _nll,
}


def get(name: Loss) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """The loss of that name."""
    return LOSSES[name]
