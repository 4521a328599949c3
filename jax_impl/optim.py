"""Optimizers and learning-rate schedules from Optax, with the arguments that make them equal to torch.optim's.

One optimizer is written here: Optax's adagrad starts from a sum of 0.1 and adds epsilon inside the root.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from harness.spec import OptimizerSpec
from harness.spec.optimizers import scheduled


def build(spec: OptimizerSpec) -> optax.GradientTransformation:
    """The optimizer of `spec`."""
    # a constant rate is folded into the program; as a schedule it would add a useless counter to the state
    rate = schedule(spec) if scheduled(spec) else spec.learning_rate
    if spec.name == "adamw":  # as in torch, weight decay is decoupled and multiplied by the rate
        return optax.adamw(rate, b1=spec.beta1, b2=spec.beta2, eps=spec.epsilon, weight_decay=spec.weight_decay)
    if spec.name == "sgd":
        # momentum=None keeps no velocity; 0.0 would keep one, and cost its memory
        rule = optax.sgd(rate, momentum=spec.momentum or None, nesterov=spec.nesterov)
    elif spec.name == "adam":
        rule = optax.adam(rate, b1=spec.beta1, b2=spec.beta2, eps=spec.epsilon)
    else:
        rule = optax.chain(_scale_by_adagrad(spec.epsilon), optax.scale_by_learning_rate(rate))
    # Before the rule, the decay is coupled: it enters velocities and moments as part of the gradient.
    return optax.chain(optax.add_decayed_weights(spec.weight_decay), rule) if spec.weight_decay else rule


def schedule(spec: OptimizerSpec) -> optax.Schedule:
    """The learning rate of each update, counted from 0: harness.spec.optimizers.rate, built from Optax's schedules."""
    peak, warmup = spec.learning_rate, spec.warmup_steps
    after: optax.Schedule
    if spec.schedule == "step":
        decay = optax.exponential_decay(peak, spec.step_size, spec.gamma, staircase=True)
        # The compiler turns count / 41 into count * (1 / 41), and in floating point 41 * (1 / 41) is less than 1: the
        # rate would fall one step late. Adding half a step keeps the quotient away from whole numbers.
        after = lambda count: decay(count + 0.5)  # noqa: E731
    elif spec.schedule == "cosine":
        after = optax.cosine_decay_schedule(peak, spec.total_steps - warmup)
    else:
        after = optax.constant_schedule(peak)
    joined = optax.join_schedules([optax.linear_schedule(peak / (warmup + 1), peak, warmup), after], [warmup])
    whole = joined if warmup else after
    # Optax counts in int32, and quotients of int32 are float32 even if JAX computes in float64
    return lambda count: whole(jnp.asarray(count, jnp.result_type(float)))


class _Squares(NamedTuple):
    sums: optax.Updates


def _scale_by_adagrad(epsilon: float) -> optax.GradientTransformation:
    """g / (sqrt(s) + epsilon), where s is the sum of g^2, from 0: the definition of torch.optim.Adagrad."""

    def init(params: optax.Params) -> _Squares:
        return _Squares(jax.tree.map(jnp.zeros_like, params))

    def update(updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None):
        assert isinstance(state, _Squares)
        sums = jax.tree.map(lambda s, g: s + g * g, state.sums, updates)
        return jax.tree.map(lambda g, s: g / (jnp.sqrt(s) + epsilon), updates, sums), _Squares(sums)

    return optax.GradientTransformation(init, update)
