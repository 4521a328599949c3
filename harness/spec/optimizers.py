"""Optimizers and learning-rate schedules: one definition for all, as torch.optim has it (2.11 documentation).

`rate` and `update` are the mathematics in NumPy, of which the golden reference consists; `parse` reads --optimizer.

    g   the gradient, plus weight_decay w unless the rule is adamw (whose decay is decoupled: w = w - rate decay w)
    sgd:     v = momentum v + g;  w = w - rate v           (nesterov: w = w - rate (g + momentum v))
    adam:    m = b1 m + (1-b1) g;  s = b2 s + (1-b2) g^2;  w = w - rate m/(1-b1^t) / (sqrt(s/(1-b2^t)) + epsilon)
    adamw:   w = w - rate decay w, then as adam           (Loshchilov & Hutter 2019, arXiv:1711.05101)
    adagrad: s = s + g^2;  w = w - rate g / (sqrt(s) + epsilon)           (Duchi et al. 2011, JMLR 12)

The rate stays outside the velocity, and Adam's epsilon is added after the bias correction (Kingma & Ba 2015,
arXiv:1412.6980, algorithm 1): Keras does neither. t counts updates from 1.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, get_args

import numpy as np

from harness.spec import OptimizerSpec, Schedule
from harness.spec.arrays import Arrays
from harness.spec.errors import UsageError, check_name
from harness.spec.limits import MOST_COUNTED

RULES: dict[str, tuple[str, ...]] = {
    "sgd": ("momentum", "nesterov", "weight_decay"),
    "adam": ("beta1", "beta2", "epsilon", "weight_decay"),
    "adamw": ("beta1", "beta2", "epsilon", "weight_decay"),
    "adagrad": ("epsilon", "weight_decay"),
}
SCHEDULES: dict[str, tuple[str, ...]] = {
    "constant": (),
    "step": ("step_size", "gamma"),
    "cosine": ("total_steps",),
}
DEFAULTS: dict[str, dict[str, float]] = {  # torch's, where they are not OptimizerSpec's
    "sgd": {"learning_rate": 1e-3},
    "adam": {"learning_rate": 1e-3},
    "adamw": {"learning_rate": 1e-3, "weight_decay": 0.01},
    "adagrad": {"learning_rate": 1e-2, "epsilon": 1e-10},
}


def rate(optimizer: OptimizerSpec, step: int) -> float:
    """The learning rate of update `step`, counted from 0.

    In the first W = warmup_steps updates it rises linearly, learning_rate (step + 1) / (W + 1) (Goyal et al. 2017,
    arXiv:1706.02677, section 2.2). After them, with t = step - W: constant; "step", times gamma^floor(t / step_size)
    (torch's StepLR); "cosine", times (1 + cos(pi t / (total_steps - W))) / 2, and 0 from total_steps on (Loshchilov &
    Hutter 2017, arXiv:1608.03983, equation 5).
    """
    peak, t = optimizer.learning_rate, step - optimizer.warmup_steps
    if t < 0:
        return peak * (step + 1) / (optimizer.warmup_steps + 1)
    if optimizer.schedule == "step":
        return peak * optimizer.gamma ** (t // optimizer.step_size)
    if optimizer.schedule == "cosine":
        share = min(t / (optimizer.total_steps - optimizer.warmup_steps), 1.0)
        return peak * (1 + math.cos(math.pi * share)) / 2
    return peak


def scheduled(optimizer: OptimizerSpec) -> bool:
    """Whether the rate ever changes."""
    return optimizer.schedule != "constant" or optimizer.warmup_steps > 0


def update(optimizer: OptimizerSpec, params: Arrays, gradients: Arrays, state: dict, *, step: int) -> Arrays:
    """Parameters after update `step`, counted from 0; `state` keeps the moments from call to call."""
    new: Arrays = {}
    lr = rate(optimizer, step)
    b1, b2, t = optimizer.beta1, optimizer.beta2, step + 1
    for name, w in params.items():
        g = gradients[name]
        if optimizer.name == "adamw":
            w = w - lr * optimizer.weight_decay * w
        else:
            g = g + optimizer.weight_decay * w
        if optimizer.name == "sgd":
            v = state[name, "v"] = optimizer.momentum * state.get((name, "v"), 0.0) + g
            new[name] = w - lr * (g + optimizer.momentum * v if optimizer.nesterov else v)
        elif optimizer.name == "adagrad":
            s = state[name, "s"] = state.get((name, "s"), 0.0) + g * g
            new[name] = w - lr * g / (np.sqrt(s) + optimizer.epsilon)
        else:
            m = state[name, "m"] = b1 * state.get((name, "m"), 0.0) + (1 - b1) * g
            s = state[name, "s"] = b2 * state.get((name, "s"), 0.0) + (1 - b2) * g * g
            new[name] = w - lr * (m / (1 - b1**t)) / (np.sqrt(s / (1 - b2**t)) + optimizer.epsilon)
    return new


def scaled(optimizer: OptimizerSpec, devices: int) -> OptimizerSpec:
    """The optimizer with its rate multiplied by the number of devices: the linear scaling rule (Goyal et al. 2017)."""
    return replace(optimizer, learning_rate=optimizer.learning_rate * devices, scaled_by=devices)


def keys(optimizer: OptimizerSpec) -> tuple[str, ...]:
    """The fields that this optimizer reads, beside name and schedule."""
    return ("learning_rate", *RULES[optimizer.name], "warmup_steps", *SCHEDULES[optimizer.schedule])


def words(optimizer: OptimizerSpec) -> str:
    """ "sgd (learning_rate 0.01, momentum 0.5)", with what differs from a plain rule at a constant rate."""
    optional = ("nesterov", "weight_decay", "warmup_steps")
    named = [name for name in keys(optimizer) if name not in optional or getattr(optimizer, name)]
    parts = [f"{name} {getattr(optimizer, name):g}" for name in named]
    if optimizer.schedule != "constant":
        parts.append(f"schedule {optimizer.schedule}")
    if optimizer.scaled_by > 1:
        parts.append(f"the rate scaled by {optimizer.scaled_by} devices")
    return f"{optimizer.name} ({', '.join(parts)})"


def parse(text: str | None, default: OptimizerSpec) -> OptimizerSpec:
    """An optimizer from "NAME" or "NAME:key=value,key=value"; without text, the workload's own.

    What is not named keeps the workload's value where its optimizer is the same one, else torch's default. Raises
    UsageError.
    """
    if text is None:
        return default
    name, _, rest = text.partition(":")
    check_name("--optimizer", name, RULES, extra=", as NAME or NAME:key=value,...")
    given: dict[str, str] = {}
    for key, value in (_pair(text, part) for part in rest.split(",") if part):
        if key in given:
            raise UsageError(f"--optimizer {text!r}: {key} is given twice")
        given[key] = value
    schedule = given.get("schedule", "constant")
    check_name(f"--optimizer {text!r}: schedule", schedule, get_args(Schedule))
    allowed = ("learning_rate", *RULES[name], "schedule", "warmup_steps", *SCHEDULES[schedule])
    known: dict[str, Any] = dict(DEFAULTS[name])
    if name == default.name:
        known = {key: getattr(default, key) for key in ("learning_rate", *RULES[name])}
    for key, value in given.items():
        owner = next((other for other, own in SCHEDULES.items() if key in own), schedule)
        if owner != schedule:
            raise UsageError(f"--optimizer {text!r}: {key} is a key of schedule={owner}; add that, or leave it out")
        check_name(f"--optimizer {name}", key, allowed)
        known[key] = value if key == "schedule" else _number(text, key, value)
    found = OptimizerSpec(name=name, **known)  # pyright: ignore[reportArgumentType]
    if found.nesterov and not found.momentum:
        raise UsageError(f"--optimizer {text!r}: nesterov needs a momentum above 0")
    if schedule == "step" and "step_size" not in given:
        raise UsageError(
            f"--optimizer {text!r}: schedule=step needs step_size, the updates between two falls of the rate"
        )
    if schedule == "cosine" and found.total_steps <= found.warmup_steps:
        raise UsageError(f"--optimizer {text!r}: cosine needs total_steps above warmup_steps ({found.warmup_steps})")
    return found


def _pair(text: str, part: str) -> tuple[str, str]:
    key, equals, value = part.partition("=")
    if not equals:
        raise UsageError(f"--optimizer {text!r}: {part!r} must be key=value")
    return key.strip(), value.strip()


def _number(text: str, key: str, value: str) -> float | int | bool:
    """One value of the type that its key has. Raises UsageError."""
    kind = type(getattr(OptimizerSpec(name="sgd", learning_rate=0.0), key))
    if kind is bool:
        check_name(f"--optimizer {text!r}: {key}", value, ("true", "false"))
        return value == "true"
    try:
        number = kind(value)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise UsageError(f"--optimizer {text!r}: {key} must be {what}, not {value!r}") from None
    least = 1 if key in ("step_size", "total_steps") else 0
    limit = 1.0 if key in ("momentum", "beta1", "beta2") else MOST_COUNTED if kind is int else math.inf
    if key in ("learning_rate", "epsilon") and not 0 < number < limit:
        raise UsageError(f"--optimizer {text!r}: {key} must be a number above 0, not {value}")
    if not least <= number < limit:
        below = f" and less than {limit:.16g}" if limit < math.inf else " and finite"
        raise UsageError(f"--optimizer {text!r}: {key} must be at least {least}{below}, not {value}")
    return number
