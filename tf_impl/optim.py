"""Update rules written out, because the optimizers of Keras differ from those of torch.optim.

Keras keeps the learning rate inside the momentum, adds Adam's epsilon before the bias correction, and rounds momentum,
betas and schedules to float32 even for float64 variables. Here constants have the variables' own dtype. Whatever
depends on the number of updates is computed in the graph in float64, as torch computes it in Python floats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from harness.spec import OptimizerSpec, optimizers

Rule = Callable[[OptimizerSpec, tf.Tensor, Sequence[tf.Variable], Any], tf.Tensor]
"""(spec, gradient, slots of its variable, number of this update) to the direction d of the update w = w - rate d.

A rule also assigns the slots: the tensors that it remembers for each variable from one update to the next."""


def _sgd(spec: OptimizerSpec, g: tf.Tensor, slots: Sequence[tf.Variable], t: Any) -> tf.Tensor:
    """v = momentum v + g; direction v, or g + momentum v with Nesterov."""
    if not slots:
        return g
    momentum = tf.constant(spec.momentum, g.dtype)
    v = momentum * slots[0] + g
    slots[0].assign(v)
    return g + momentum * v if spec.nesterov else v


def _adam(spec: OptimizerSpec, g: tf.Tensor, slots: Sequence[tf.Variable], t: Any) -> tf.Tensor:
    """m = b1 m + (1-b1) g;  s = b2 s + (1-b2) g^2;  direction m/(1-b1^t) / (sqrt(s/(1-b2^t)) + epsilon)."""
    m = tf.constant(spec.beta1, g.dtype) * slots[0] + tf.constant(1 - spec.beta1, g.dtype) * g
    s = tf.constant(spec.beta2, g.dtype) * slots[1] + tf.constant(1 - spec.beta2, g.dtype) * g * g
    slots[0].assign(m)
    slots[1].assign(s)
    correction1, correction2 = (tf.cast(1 - tf.constant(b, tf.float64) ** t, g.dtype) for b in (spec.beta1, spec.beta2))
    return m / correction1 / (tf.sqrt(s / correction2) + tf.constant(spec.epsilon, g.dtype))


def _adagrad(spec: OptimizerSpec, g: tf.Tensor, slots: Sequence[tf.Variable], t: Any) -> tf.Tensor:
    """s = s + g^2; direction g / (sqrt(s) + epsilon)."""
    s = slots[0] + g * g
    slots[0].assign(s)
    return g / (tf.sqrt(s) + tf.constant(spec.epsilon, g.dtype))


RULES: dict[str, Rule] = {"sgd": _sgd, "adam": _adam, "adamw": _adam, "adagrad": _adagrad}
SLOTS = {"sgd": ("velocity",), "adam": ("mean", "square"), "adamw": ("mean", "square"), "adagrad": ("sum",)}


class Optimizer:
    """The update rule of `spec` for `variables`. Create it in the scope in which they were created."""

    def __init__(self, spec: OptimizerSpec, variables: Sequence[tf.Variable], *, fused: bool) -> None:
        self.spec, self.variables = spec, variables
        self.fused = fused and spec.name == "sgd"
        self.kinds = SLOTS[spec.name] if spec.momentum or spec.name != "sgd" else ()
        self.slots = [[_zeros_like(w) for _ in self.kinds] for w in variables]
        self.updates: tf.Variable | None = None
        if optimizers.scheduled(spec) or spec.name.startswith("adam"):  # nothing else depends on the number of updates
            self.updates = tf.Variable(tf.zeros((), tf.float64), trainable=False)

    def state(self) -> list[tf.Variable]:
        """All variables that an update assigns."""
        counter = [] if self.updates is None else [self.updates]
        return [*self.variables, *(slot for slots in self.slots for slot in slots), *counter]

    def remembered(self, names: Sequence[str]) -> dict[str, tf.Variable]:
        """What passes from one update to the next: "fc.weight/velocity", by the variables' `names`; "updates"."""
        slots = {
            f"{name}/{kind}": slot
            for name, own in zip(names, self.slots, strict=True)
            for kind, slot in zip(self.kinds, own, strict=True)
        }
        return slots if self.updates is None else slots | {"updates": self.updates}

    def apply(self, gradients: Sequence[tf.Tensor]) -> None:
        """Update the variables in place, each on its own device. Call it inside a tf.function."""
        t, rate = None, tf.constant(self.spec.learning_rate, tf.float64)
        if self.updates is not None:
            with tf.device(self.updates.device):
                t = self.updates + tf.constant(1.0, tf.float64)
                self.updates.assign(t)
                rate = scheduled_rate(self.spec, t - 1)
        for w, g, slots in zip(self.variables, gradients, self.slots, strict=True):
            with tf.device(w.device):
                decay = tf.constant(self.spec.weight_decay, w.dtype) * w if self.spec.weight_decay else None
                if decay is not None and self.spec.name != "adamw":
                    g = g + decay
                if self.fused:
                    _sgd_at_once(self.spec, w, g, slots, rate)
                    continue
                direction = RULES[self.spec.name](self.spec, g, slots, t)
                if decay is not None and self.spec.name == "adamw":
                    direction = direction + decay
                w.assign_sub(tf.cast(rate, w.dtype) * direction)


def build(spec: OptimizerSpec, variables: Sequence[tf.Variable], *, fused: bool = False) -> Optimizer:
    """The optimizer of `spec`. Call it in the scope of `variables`. `fused`: the setting `fused_update`."""
    return Optimizer(spec, variables, fused=fused)


def _sgd_at_once(spec: OptimizerSpec, w: tf.Variable, g: tf.Tensor, slots: Sequence[tf.Variable], rate: Any) -> None:
    """_sgd and its update as one operation: v = momentum v + g; w -= rate v, or with Nesterov rate (g + momentum v).

    In replica context, a mirrored variable's `handle` is that of this replica's copy.
    """
    known = {"var": w.handle, "delta" if not slots else "grad": g, "use_locking": False}
    rate = tf.cast(rate, g.dtype)
    if not slots:
        tf.raw_ops.ResourceApplyGradientDescent(alpha=rate, **known)
        return
    momentum, velocity = tf.constant(spec.momentum, g.dtype), slots[0].handle
    tf.raw_ops.ResourceApplyMomentum(accum=velocity, lr=rate, momentum=momentum, use_nesterov=spec.nesterov, **known)


def scheduled_rate(spec: OptimizerSpec, step: tf.Tensor) -> tf.Tensor:
    """The learning rate of update `step`, counted from 0: harness.spec.optimizers.rate as a graph, in float64."""
    if not optimizers.scheduled(spec):
        return tf.constant(spec.learning_rate, tf.float64)
    one = tf.constant(1.0, tf.float64)
    after = step - spec.warmup_steps
    factor = one
    if spec.schedule == "step":
        # Half a step is added because a graph may multiply by 1 / step_size instead, and 49 * (1 / 49) is below 1.
        factor = tf.constant(spec.gamma, tf.float64) ** tf.floor((after + 0.5) / spec.step_size)
    elif spec.schedule == "cosine":
        share = tf.minimum(after / (spec.total_steps - spec.warmup_steps), one)
        factor = (one + tf.cos(tf.constant(math.pi, tf.float64) * share)) / 2
    warming = (step + one) / (spec.warmup_steps + 1)
    return tf.constant(spec.learning_rate, tf.float64) * tf.where(after < 0, warming, factor)


def _zeros_like(w: tf.Variable) -> tf.Variable:
    with tf.device(w.device):
        return tf.Variable(tf.zeros(w.shape, w.dtype), trainable=False)
