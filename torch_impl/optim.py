"""Optimizers: torch.optim defines them for the whole suite, so here they are simply torch's."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from harness.specs import OptimizerSpec


def build(spec: OptimizerSpec, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer of `spec` over `parameters`."""
    if spec.name == "sgd":
        return torch.optim.SGD(parameters, lr=spec.learning_rate, momentum=spec.momentum)
    return torch.optim.Adam(parameters, lr=spec.learning_rate, betas=(spec.beta1, spec.beta2), eps=spec.epsilon)
