"""Optimizers, learning-rate schedules, and their state.

torch.optim defines the optimizers for the whole suite, so here they are simply torch's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from harness.contract import Arrays
from harness.spec import OptimizerSpec, optimizers
from torch_impl import weights


def build(
    spec: OptimizerSpec, parameters: Iterable[torch.nn.Parameter], *, fused: bool = False, captured: bool = False
) -> torch.optim.Optimizer:
    """The optimizer of `spec` over `parameters`.

    `fused`: one kernel, except for Adagrad (torch 2.11 has one for CPUs only); otherwise torch chooses. `captured`: the
    updates are captured in a CUDA graph. What changes from update to update is then in memory on the device, where a
    replay reads it: Adam's step count (capturable) and a scheduled learning rate, if the parameters are float32.
    (torch's kernels read a rate from memory in float32 only, and of SGD only the fused one reads it there. The manifest
    keeps other cells with a schedule from being captured.)
    """
    held, decay = list(parameters), spec.weight_decay
    dtype = held[0].dtype if held else None
    groups = [{"params": held}]  # torch refuses an empty list, which a stage without parameters has, but no group
    rate: float | torch.Tensor = spec.learning_rate
    capturable = captured and all(parameter.is_cuda for parameter in held)  # Adam asks for it even without parameters
    in_memory = captured and optimizers.scheduled(spec) and dtype == torch.float32
    if in_memory:
        rate = torch.tensor(rate, dtype=torch.float32, device=held[0].device)
    # None, not False, which would also switch off foreach, torch's own choice on GPUs
    one_kernel = fused or (in_memory and spec.name == "sgd") or None
    if spec.name == "sgd":
        return torch.optim.SGD(
            groups, rate, spec.momentum, weight_decay=decay, nesterov=spec.nesterov, fused=one_kernel
        )
    if spec.name == "adagrad":
        return torch.optim.Adagrad(groups, rate, weight_decay=decay, eps=spec.epsilon)
    rule = torch.optim.AdamW if spec.name == "adamw" else torch.optim.Adam
    adam = rule(groups, rate, (spec.beta1, spec.beta2), spec.epsilon, decay, fused=one_kernel, capturable=capturable)
    if capturable and not one_kernel and dtype == torch.float64:
        count_in_float64(adam)
    return adam


def count_in_float64(adam: torch.optim.Optimizer) -> None:
    """Let Adam count its steps in float64, before the first one.

    A step count that a CUDA graph reads is a tensor, by default of float32. Then 1 - beta2 ** step is computed in
    float32, which makes the first updates wrong by up to 1e-5.
    """
    for group in adam.param_groups:
        for parameter in group["params"]:
            adam.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float64, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }


def laid_out(gradient: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """A gradient that lies in memory as its parameter does, copied if it does not.

    Fused optimizers walk through both in the order of memory. On GPUs they refuse another order, on the CPU they do not
    check.
    """
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter, requires_grad=False).copy_(gradient)


def build_schedule(spec: OptimizerSpec, optimizer: torch.optim.Optimizer) -> LambdaLR | None:
    """The scheduler that sets the learning rate after each update; None if the rate is constant."""
    if spec.schedule == "constant" and not spec.warmup_steps:
        return None
    schedule = LambdaLR(optimizer, partial(rate_factor, spec))
    # A number: multiplied by a tensor in a GPU's memory, the factor would have to come back to the host in each step.
    schedule.base_lrs = [spec.learning_rate]
    return schedule


def set_rate(optimizer: torch.optim.Optimizer, rate: float | torch.Tensor) -> None:
    """Set the learning rate: in place, where it is in a device's memory."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].copy_(rate) if isinstance(rate, torch.Tensor) else group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def coming_rates(spec: OptimizerSpec, schedule: LambdaLR | None, updates: int) -> list[float]:
    """The learning rates of the next updates."""
    made = schedule.last_epoch if schedule is not None else 0  # a constant rate needs no count
    return [spec.learning_rate * rate_factor(spec, made + each) for each in range(updates)]


def rate_factor(spec: OptimizerSpec, step: int) -> float:
    """The factor of the learning rate in update `step` (from 0): a linear warm-up, then the schedule."""
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
    """The optimizer's state of each parameter that this rank holds, by torch's names and in torch's layout, and the
    number of updates that the schedule has counted.

    Momentum has no state before the first step; torch creates it from the first gradient. torch's own
    get_optimizer_state_dict is not used because, before the first step, it creates momentum by a step at rate 0, which
    includes weight decay.
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
    """Load what `state` returned. State that is missing is set to 0, which is where all these optimizers start."""
    for name, parameter in model.named_parameters():
        if parameter.is_meta:  # another rank's
            continue
        held, begin = optimizer.state[parameter], f"optimizer/{name}/"
        for value in held.values():
            value.zero_()
        for key in (known.removeprefix(begin) for known in arrays if known.startswith(begin)):
            value = torch.from_numpy(arrays[begin + key])
            if value.ndim:
                value = weights.like(parameter, value)
                # In the parameter's memory format: a fused kernel walks through both in the order of memory.
                new = torch.empty_like(parameter, dtype=value.dtype)
            else:  # the step counts of Adam and Adagrad: on the host, except for a kernel that reads them
                on_device = optimizer.defaults.get("fused") or optimizer.defaults.get("capturable")
                counted_in = torch.float32 if optimizer.defaults.get("fused") else value.dtype  # by a kernel's code
                new = torch.empty_like(value, dtype=counted_in, device=parameter.device if on_device else None)
            # In place if there is a tensor, because other processes may map it (async_sgd).
            held[key] = held.get(key, new).copy_(value)
    if schedule is not None:
        schedule.last_epoch = int(arrays.get("optimizer/updates", 0))
        set_rate(optimizer, spec.learning_rate * rate_factor(spec, schedule.last_epoch))
