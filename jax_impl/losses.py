"""Losses and accuracy: each takes outputs and targets, and returns the mean over the samples it sees.

Targets come as the workload has them, or as harness.datasets.padded makes them: with one more column, the factor of
each sample's loss. Their shape tells the two apart while the program is traced, so targets without factors cost nothing
extra.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from harness.workloads import Loss

Measure = Callable[[jax.Array, jax.Array], jax.Array]


def _mse(outputs: jax.Array, targets: jax.Array) -> jax.Array:
    return (outputs - targets) ** 2


def _nll(log_probabilities: jax.Array, labels: jax.Array) -> jax.Array:
    return -jnp.take_along_axis(log_probabilities, labels[:, None], axis=1)


def _cross_entropy(outputs: jax.Array, labels: jax.Array) -> jax.Array:
    # The formula of optax.softmax_cross_entropy_with_integer_labels. Optax selects its column in a way whose gradient
    # JAX 0.11 cannot compute where sharding is explicit (ShardingTypeError).
    of_labels = jnp.take_along_axis(outputs, labels[:, None], axis=1)
    return jax.nn.logsumexp(outputs, axis=1) - of_labels[:, 0]


LOSSES: dict[Loss, Measure] = {
    "mse": _mse,
    "cross_entropy": _cross_entropy,
    "nll": _nll,
}
"""The loss of each sample, or of each of its outputs."""


def get(name: Loss) -> Measure:
    """The mean loss by its name."""

    def loss(outputs: jax.Array, targets: jax.Array) -> jax.Array:
        known, factors = _split(name, outputs, targets)
        return _mean(LOSSES[name](outputs, known), factors)

    return loss


def accuracy(name: Loss, outputs: jax.Array, targets: jax.Array) -> jax.Array:
    """The share of samples whose largest output is that of their class. With "mse" the class is that of the largest
    target."""
    known, factors = _split(name, outputs, targets)
    classes = known.argmax(1) if name == "mse" else known
    return _mean((outputs.argmax(1) == classes).astype(outputs.dtype), factors)


def evaluation(name: Loss) -> Measure:
    """Loss and accuracy, as one array of two."""
    loss = get(name)
    return lambda outputs, targets: jnp.stack([loss(outputs, targets), accuracy(name, outputs, targets)])


def _split(name: Loss, outputs: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array | None]:
    """Targets as the workload has them, and each sample's factor or None."""
    if targets.ndim == 1 or (targets.shape == outputs.shape and name == "mse"):
        return targets, None
    known, factors = targets[:, :-1], targets[:, -1]
    return (known if name == "mse" else known[:, 0].astype(jnp.int32)), factors


def _mean(of_samples: jax.Array, factors: jax.Array | None) -> jax.Array:
    # samples come last for the product, because a sample may have a row of losses
    return jnp.mean(of_samples if factors is None else of_samples.T * factors)
