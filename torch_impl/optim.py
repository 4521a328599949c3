"""Optimizers: torch.optim defines them for the whole suite, so here they are simply torch's."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial

import torch
from torch.optim.lr_scheduler import LambdaLR

from harness.specs import OptimizerSpec


def build(spec: OptimizerSpec, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer of `spec` over `parameters`."""
    rate, decay = spec.learning_rate, spec.weight_decay
    if spec.name == "sgd":
        return torch.optim.SGD(parameters, rate, spec.momentum, weight_decay=decay, nesterov=spec.nesterov)
    if spec.name == "adagrad":
        return torch.optim.Adagrad(parameters, rate, weight_decay=decay, eps=spec.epsilon)
    rule = torch.optim.AdamW if spec.name == "adamw" else torch.optim.Adam
    return rule(parameters, rate, (spec.beta1, spec.beta2), spec.epsilon, decay)


def build_schedule(spec: OptimizerSpec, optimizer: torch.optim.Optimizer) -> LambdaLR | None:
    """What sets the optimizer's rate after each update; None where it never changes."""
    if spec.schedule == "constant" and not spec.warmup_steps:
        return None
    return LambdaLR(optimizer, partial(rate_factor, spec))


def rate_factor(spec: OptimizerSpec, step: int) -> float:
    """What the learning rate of update `step` (from 0) is multiplied with: a linear warm-up, then the schedule."""
    after_warmup = step - spec.warmup_steps
    if after_warmup < 0:
        return (step + 1) / (spec.warmup_steps + 1)
    if spec.schedule == "step":
        return spec.gamma ** (after_warmup // spec.step_size)
    if spec.schedule == "cosine":
        share = min(after_warmup / (spec.total_steps - spec.warmup_steps), 1.0)
        return 0.5 + 0.5 * math.cos(math.pi * share)
    return 1.0
