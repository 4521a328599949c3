"""Optimizers by Optax, with the arguments under which they equal torch.optim's definitions."""

from __future__ import annotations

import optax

from harness.specs import OptimizerSpec


def build(spec: OptimizerSpec) -> optax.GradientTransformation:
    """The optimizer of `spec`."""
    if spec.name == "sgd":
        # momentum=None keeps no velocity at all; 0.0 would keep one and cost its memory
        return optax.sgd(spec.learning_rate, momentum=spec.momentum or None)
    return optax.adam(spec.learning_rate, b1=spec.beta1, b2=spec.beta2, eps=spec.epsilon)
