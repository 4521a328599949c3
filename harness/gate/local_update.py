"""Local training after its last block: the update of each worker, and the mean that an averaging gives.

A worker's step is that of a single device on the worker's share of the batch. So NumPy makes the same step from each
worker's own weights and moments, and takes the mean where the workers average.

Where NumPy cannot afford the gradients, and where BatchNorm makes noise of them, averaging can still be seen. The
program makes the step before an averaging twice: once as it is, and once so that each worker keeps its own weights. The
first must give each worker the mean of what the second gives them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from harness.contract import Moments
from harness.gate import further_direction, further_update, without_gradients
from harness.gate.distances import beyond_rounding, distance, worst_of
from harness.gate.further_update import Right
from harness.reference import loops
from harness.spec import Check, OptimizerSpec, Precision, Quantity, optimizers
from harness.spec.arrays import Arrays
from harness.workloads import Workload

Worker = tuple[Arrays, Moments]
"""A worker's own parameters and moments."""

AVERAGING = 0.1
"""How far a worker's weights may be from the mean after an averaging, relative to the largest distance of a worker's
own weights from it. Right programs were off by nothing beyond the rounding of what is stored: 35 of PyTorch's local_sgd
on 2 and 3 CPU devices, mnist_cnn tiny and ResNet-50 tiny in fp32 and bf16, averaging after 1 to 25 steps. On GPUs two
runs of a step may differ: there it was not measured, and this is what harness/gate/replay.py allows. The weights of one
rank in place of the mean are off by 1."""
ROUNDINGS = 3
"""How often weights are rounded that are updated, summed and divided."""


def compute(
    workload: Workload,
    optimizer: OptimizerSpec,
    workers: Sequence[Worker],
    batch: Arrays,
    *,
    groups: Callable[[int], Sequence[int]],
    accumulation_steps: int,
    made: int,
    rounding: Precision | None = None,
    by_winograd: bool = False,
) -> list[Right]:
    """What each worker must do with its share of a batch, after `made` updates. `groups`, `rounding` and `by_winograd`:
    as in further_update.compute, of the whole batch."""
    of_all = groups(len(batch["x"])) if workload.normalizes else None
    found = []
    for number, (params, moments) in enumerate(workers):
        known = {"workers": len(workers), "accumulation_steps": accumulation_steps, "groups": of_all}
        own, own_groups = loops.part_of_worker(batch, number, **known)
        parts = tuple(own_groups or (len(own["x"]),))
        known = {"groups": lambda _, parts=parts: parts, "made": made, "rounding": rounding, "by_winograd": by_winograd}
        found.append(further_update.compute(workload, optimizer, params, moments, [own], **known))
    return found


def mean_of(rights: Sequence[Right]) -> Right:
    """What each worker must have after these updates and an averaging."""
    golden = rights[0].golden
    named = {
        field: loops.mean([getattr(right.golden, field) for right in rights])
        for field in ("initial", "params", "running")
    }
    rounded = [right.rounded for right in rights if right.rounded is not None]
    return replace(
        rights[0],
        golden=replace(golden, **named),
        without=loops.mean([right.without for right in rights]),
        rounded=loops.mean(rounded) if rounded else None,
    )


def compare(
    rights: Sequence[Right],
    found: Sequence[Arrays],
    *,
    averages: bool,
    tolerances: Precision,
    quantity: Quantity = "further update",
) -> list[Check]:
    """The worst check of each quantity. `found`: each worker's own state after the step, which ends with an averaging
    if it `averages`. `quantity`: the name of the comparison of all parameters.

    Tolerances are those of further_update.py and further_direction.py, although a worker has fewer samples. In the
    programs that AVERAGING names, parameters were off by up to 1e-6 in fp32, with BatchNorm 4e-3, and 0.26 in bf16. The
    weight decay was off by up to 2e-4 in fp32 and 0.02 in bf16, and directions with BatchNorm in bf16 by up to 0.24.
    """
    if averages:
        rights = [mean_of(rights)] * len(rights)
    checks = []
    for number, (right, state) in enumerate(zip(rights, found, strict=True)):
        for check in _of_worker(right, state, ROUNDINGS if averages else 1, tolerances, quantity):
            checks.append(replace(check, worst=f"{check.worst} of worker {number}"))
    return _worst(checks)


def _of_worker(
    right: Right, state: Arrays, roundings: int, tolerances: Precision, quantity: Quantity
) -> Iterable[Check]:
    params = {name: state[f"model/{name}"] for name in right.golden.params}
    deep = bool(right.golden.running)
    tolerance = further_update.tolerance_of(tolerances, right.optimizer, deep=deep, steps=1)
    if tolerance is not None:
        yield further_update.of_parameters(quantity, right, state, tolerance, roundings=roundings)
    if tolerance is not None or right.rounded is not None:
        yield from further_direction.compare(right.golden.params, params, without=right.without, rounded=right.rounded)
    rate = optimizers.rate(right.optimizer, right.made)
    decay = further_update.decay_along(right.optimizer, rate, right.golden.initial, right.golden.params, params)
    if decay is not None:
        yield decay


def decay(
    workload: Workload,
    optimizer: OptimizerSpec,
    workers: Sequence[Worker],
    found: Sequence[Arrays],
    *,
    averages: bool,
    made: int,
    precision: Precision,
) -> list[Check]:
    """The weight decay of each worker without NumPy's gradients: without_gradients.decay. `found`: as in `compare`."""
    if averages:  # what is left of a step of SGD without its gradients is linear in weights and moments
        params = loops.mean([own for own, _ in workers])
        moments = {key: np.mean([each[key] for _, each in workers], axis=0) for key in workers[0][1]}
        workers = [(params, moments)] * len(workers)
    checks = []
    for (params, moments), state in zip(workers, found, strict=True):
        known = {"params": params, "moments": moments, "found": state, "made": made, "precision": precision}
        check = without_gradients.decay(workload, optimizer, **known)
        if check is not None:
            checks.append(replace(check, worst=f"{check.worst} of worker {len(checks)}"))
    return _worst(checks)


def averaging(before: Sequence[Arrays], alone: Sequence[Arrays], found: Sequence[Arrays]) -> Check:
    """Has each worker the mean after an averaging? `before`, `found`: each worker's parameters before and after the
    step that ends with it. `alone`: those after the same step if nobody averages."""
    mean = loops.mean([{name: array.astype(np.float64) for name, array in own.items()} for own in alone])
    spread = {name: max(distance(own[name], array) for own in alone) for name, array in mean.items()}
    errors = {
        f"{name} of worker {number}": error
        for number, own in enumerate(found)
        for name, error in beyond_rounding(own, mean, moved=spread, roundings=ROUNDINGS).items()
    }
    error, worst = worst_of(errors)
    if not _differ(alone) and _differ(before):
        error, worst = math.inf, "the weights of a step that does not average: all workers have the same"
    return Check(quantity="averaging", error=error, tolerance=AVERAGING, worst=worst)


def _differ(workers: Sequence[Arrays]) -> bool:
    return any(not np.array_equal(own[name], array) for own in workers for name, array in workers[0].items())


def _worst(checks: Sequence[Check]) -> list[Check]:
    """The worst check of each quantity, in their order."""
    found: dict[Quantity, Check] = {}
    for check in checks:
        if check.quantity not in found or found[check.quantity].severity < check.severity:
            found[check.quantity] = check
    return list(found.values())
