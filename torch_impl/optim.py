"""Optimizers: torch.optim defines them for the whole suite, so here they are simply torch's. And what they remember."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from harness.contract import Arrays
from harness.spec import OptimizerSpec
from torch_impl import weights


def build(
    spec: OptimizerSpec, parameters: Iterable[torch.nn.Parameter], *, fused: bool = False
) -> torch.optim.Optimizer:
    """The optimizer of `spec` over `parameters`. `fused`: in one kernel, but for Adagrad; else as torch chooses."""
    rate, decay = spec.learning_rate, spec.weight_decay
    in_one = fused or None  # None, not False: that would also switch foreach off, torch's own choice on GPUs
    if spec.name == "sgd":
        return torch.optim.SGD(
            parameters, rate, spec.momentum, weight_decay=decay, nesterov=spec.nesterov, fused=in_one
        )
    if spec.name == "adagrad":
        return torch.optim.Adagrad(parameters, rate, weight_decay=decay, eps=spec.epsilon)
    rule = torch.optim.AdamW if spec.name == "adamw" else torch.optim.Adam
    return rule(parameters, rate, (spec.beta1, spec.beta2), spec.epsilon, decay, fused=in_one)


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


def state(model: nn.Module, optimizer: torch.optim.Optimizer, schedule: LambdaLR | None) -> dict[str, torch.Tensor]:
    """What the optimizer remembers of each parameter that is held here, by torch's names and in its layout, and how
    many updates the schedule has seen. Of momentum nothing before the first step: torch makes it of a gradient.

    Not torch's get_optimizer_state_dict: before the first step it makes momentum by a step of its own, at rate 0 but
    with weight decay in it.
    """
    found = {
        f"optimizer/{name}/{key}": value
        for name, parameter in model.named_parameters()
        if not parameter.is_meta
        for key, value in optimizer.state.get(parameter, {}).items()
    }
    return found if schedule is None else found | {"optimizer/updates": torch.tensor(schedule.last_epoch)}


@torch.no_grad()
def load_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, schedule: LambdaLR | None, spec: OptimizerSpec, arrays: Arrays
) -> None:
    """Take up what `state` gave. What is missing is as new: all that these optimizers remember begins at 0."""
    for name, parameter in model.named_parameters():
        held, begin = optimizer.state[parameter], f"optimizer/{name}/"
        for value in held.values():
            value.zero_()
        for key in (known.removeprefix(begin) for known in arrays if known.startswith(begin)):
            value = torch.from_numpy(arrays[begin + key])
            if value.ndim:
                value = weights.like(parameter, value)
                # as the parameter lies: a fused kernel takes both in the order of their memory
                new = torch.empty_like(parameter, dtype=value.dtype)
            else:  # Adam's and Adagrad's counts are single numbers, and stay on the host, but for a fused kernel
                new = torch.empty_like(value, device=parameter.device if optimizer.defaults.get("fused") else None)
            # in place where there is a tensor: it may be one that other processes map
            held[key] = held.get(key, new).copy_(value)
    if schedule is not None:
        schedule.last_epoch = int(arrays.get("optimizer/updates", 0))
        for group in optimizer.param_groups:
            group["lr"] = spec.learning_rate * rate_factor(spec, schedule.last_epoch)
