"""Update rules written out, because Keras' optimizers are not torch.optim's.

Keras keeps the learning rate inside the momentum, adds Adam's epsilon before the bias correction, and passes its
hyperparameters through float32 even for float64 variables. Constants here are made in the variables' own dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import tensorflow as tf

from harness.specs import OptimizerSpec


class Optimizer(Protocol):
    def apply(self, gradients: Sequence[tf.Tensor]) -> None:
        """Update the variables in place; call it inside a tf.function."""
        ...


class SGD:
    """v = momentum v + g;  w = w - lr v."""

    def __init__(self, spec: OptimizerSpec, variables: Sequence[tf.Variable]) -> None:
        self.spec, self.variables = spec, variables
        self.velocities = _zeros_like(variables) if spec.momentum else []

    def apply(self, gradients: Sequence[tf.Tensor]) -> None:
        for index, (w, g) in enumerate(zip(self.variables, gradients, strict=True)):
            if self.velocities:
                v = self.velocities[index]
                g = tf.constant(self.spec.momentum, w.dtype) * v + g
                v.assign(g)
            w.assign_sub(tf.constant(self.spec.learning_rate, w.dtype) * g)


class Adam:
    """m = b1 m + (1-b1) g;  s = b2 s + (1-b2) g^2;  w = w - lr m/(1-b1^t) / (sqrt(s/(1-b2^t)) + eps)."""

    def __init__(self, spec: OptimizerSpec, variables: Sequence[tf.Variable]) -> None:
        self.spec, self.variables = spec, variables
        self.m, self.s = _zeros_like(variables), _zeros_like(variables)
        self.steps = tf.Variable(tf.zeros((), tf.float64), trainable=False)

    def apply(self, gradients: Sequence[tf.Tensor]) -> None:
        t = self.steps + tf.constant(1.0, tf.float64)
        self.steps.assign(t)
        b1, b2 = self.spec.beta1, self.spec.beta2
        # float64 scalars, as torch computes them in Python floats
        correction1 = 1 - tf.constant(b1, tf.float64) ** t
        correction2 = 1 - tf.constant(b2, tf.float64) ** t
        for w, g, m_slot, s_slot in zip(self.variables, gradients, self.m, self.s, strict=True):
            m = tf.constant(b1, w.dtype) * m_slot + tf.constant(1 - b1, w.dtype) * g
            s = tf.constant(b2, w.dtype) * s_slot + tf.constant(1 - b2, w.dtype) * g * g
            m_slot.assign(m)
            s_slot.assign(s)
            denominator = tf.sqrt(s / tf.cast(correction2, w.dtype)) + tf.constant(self.spec.epsilon, w.dtype)
            rate = tf.constant(self.spec.learning_rate, w.dtype)
            w.assign_sub(rate * (m / tf.cast(correction1, w.dtype)) / denominator)


def build(spec: OptimizerSpec, variables: Sequence[tf.Variable]) -> Optimizer:
    """The optimizer of `spec`; call it in the scope that `variables` were made in."""
    return SGD(spec, variables) if spec.name == "sgd" else Adam(spec, variables)


def _zeros_like(variables: Sequence[tf.Variable]) -> list[tf.Variable]:
    return [tf.Variable(tf.zeros(w.shape, w.dtype), trainable=False) for w in variables]
