"""What the fields of a workload may hold.

Workloads are Python code that anybody may write, so nothing else looks at their values before they are used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np

from harness.spec import optimizers
from harness.spec.errors import UsageError
from harness.spec.trial import MOST_SAMPLES, OptimizerSpec

Loss = Literal["mse", "cross_entropy", "nll"]
Unit = Literal["image", "sample"]

OF_A_LAYER = ("parameters", "output_shape", "flops", "forward")
MOST_CHARACTERS = 80  # of a value in an error


def check_fields(workload: Any) -> None:
    """Raises UsageError for the first field of a workload, or of its optimizer, that holds what it cannot."""
    for name, (fits, allowed) in FIELDS.items():
        _check(name, getattr(workload, name), fits, allowed)
    rule = workload.optimizer.name
    _check("optimizer.name", rule, _one_of(*optimizers.RULES), f"one of {', '.join(optimizers.RULES)}")
    schedules = ", ".join(optimizers.SCHEDULES)
    _check("optimizer.schedule", workload.optimizer.schedule, _one_of(*optimizers.SCHEDULES), f"one of {schedules}")
    for name in optimizers.keys(workload.optimizer):
        fits, allowed = OF_OPTIMIZERS.get(name, NOT_NEGATIVE)
        _check(f"optimizer.{name}", getattr(workload.optimizer, name), fits, allowed)
    if workload.optimizer.nesterov and not workload.optimizer.momentum:
        raise UsageError("optimizer.nesterov=True: needs optimizer.momentum above 0")
    if workload.optimizer.schedule == "cosine":
        least = workload.optimizer.warmup_steps + 1
        above = f"above optimizer.warmup_steps, so at least {least}"
        _check("optimizer.total_steps", workload.optimizer.total_steps, _whole(least), above)


def check_arrays(samples: Any, input_shape: tuple[int, ...], *, where: str) -> None:
    """Raises UsageError for what a workload's `load` cannot return, whatever its loss. `where`: the workload."""
    if not isinstance(samples, dict) or samples.keys() != {"x", "y"}:
        keys = f" with the keys {', '.join(map(str, samples)) or '(none)'}" if isinstance(samples, dict) else ""
        returned = f"a {type(samples).__name__}{keys}"
        raise UsageError(f'{where}: its load returns {returned}; it must return a dict {{"x": inputs, "y": targets}}')
    for name, array in samples.items():
        if not isinstance(array, np.ndarray) or not array.ndim:
            raise UsageError(f"{where}: {name} of its samples is {type(array).__name__}; it must be an array of NumPy")
    x, y = samples["x"], samples["y"]
    if len(x) != len(y) or not len(x) or x.shape[1:] != input_shape:
        raise UsageError(
            f"{where}: {len(x)} inputs of shape {x.shape[1:]} with {len(y)} targets; expected are inputs of shape "
            f"{input_shape}, at least one, and a target for each"
        )
    for name, array in samples.items():  # isfinite of all numbers would be another large array
        if array.dtype.kind == "f" and not (np.isfinite(array.min()) and np.isfinite(array.max())):
            raise UsageError(
                f"{where}: some numbers of its samples ({name}) are NaN or infinite; no loss could be finite"
            )


def _check(name: str, value: Any, fits: Callable[[Any], bool], allowed: str) -> None:
    if not fits(value):
        shown = repr(value)
        shown = shown if len(shown) <= MOST_CHARACTERS else f"{shown[:MOST_CHARACTERS]}..."
        raise UsageError(f"{name}={' '.join(shown.split())}: must be {allowed}")


def _one_of(*names: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in names


def _whole(least: int, most: float = math.inf) -> Callable[[Any], bool]:
    """Only Python's own numbers: records are JSON, which takes none of NumPy's."""
    return lambda value: type(value) is int and least <= value <= most


def _number(fits: Callable[[float], bool]) -> Callable[[Any], bool]:
    return lambda value: type(value) in (int, float) and math.isfinite(value) and fits(value)


def _of_type(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind)


def _is_shape(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(isinstance(n, int | np.integer) and n >= 1 for n in value)


def _are_layers(value: Any) -> bool:
    each_is = (all(callable(getattr(layer, name, None)) for name in OF_A_LAYER) for layer in value)
    return isinstance(value, tuple) and bool(value) and all(each_is)


def _are_names(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(name, str) and name for name in value) and _differ(value)


def _differ(values: tuple) -> bool:
    return len(set(values)) == len(values)


def _are_arguments(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(name, str) and name.isidentifier() for name in value)


Rule = tuple[Callable[[Any], bool], str]
TEXT: Rule = (_of_type(str), "a text")
FLAG: Rule = (_of_type(bool), "True or False")
FUNCTION: Rule = (callable, "a function")
COUNT: Rule = (_whole(1), "a whole number of at least 1")
SHARE: Rule = (_number(lambda value: 0 < value < 1), "a number above 0 and below 1")
NOT_NEGATIVE: Rule = (_number(lambda value: value >= 0), "a number of at least 0")
FIELDS: dict[str, Rule] = {
    "summary": TEXT,
    "unit": (_one_of(*get_args(Unit)), f"one of {', '.join(get_args(Unit))}"),
    "input_shape": (_is_shape, "a tuple of whole numbers above 0, such as (12,)"),
    "layers": (_are_layers, f"a tuple of layers, at least one, each with the methods {', '.join(OF_A_LAYER)}"),
    "dims": (_are_arguments, "a dict from the names of the models' arguments to their values"),
    "loss": (_one_of(*get_args(Loss)), f"one of {', '.join(get_args(Loss))}"),
    "global_batch": (_whole(1, MOST_SAMPLES), f"a whole number from 1 to {MOST_SAMPLES}"),
    "optimizer": (_of_type(OptimizerSpec), "an OptimizerSpec"),
    "load": FUNCTION,
    "transform": FUNCTION,
    "samples": TEXT,
    "takes_data": FLAG,
    "needs_data": TEXT,
    "batch_per_device": FLAG,
    "parity_batch": COUNT,
    "parity_steps": COUNT,
    "curve_steps": COUNT,
    "blocks": (_are_names, "a tuple of different names"),
    "default_cut": TEXT,
    "target_accuracy": (
        lambda value: value is None or _number(lambda share: 0 < share <= 1)(value),
        "None, or a number above 0 and at most 1",
    ),
    "validation_share": SHARE,
    "epochs": COUNT,
}
OF_OPTIMIZERS: dict[str, Rule] = {
    "learning_rate": (_number(lambda value: value > 0), "a number above 0"),
    "momentum": (_number(lambda value: 0 <= value < 1), "a number of at least 0 and below 1"),
    "beta1": (_number(lambda value: 0 <= value < 1), "a number of at least 0 and below 1"),
    "beta2": (_number(lambda value: 0 <= value < 1), "a number of at least 0 and below 1"),
    "nesterov": FLAG,
    "warmup_steps": (_whole(0), "a whole number of at least 0"),
    "step_size": COUNT,
    "total_steps": COUNT,
}
