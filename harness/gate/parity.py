"""The parity gate: does a program compute the same training as the golden reference? It comes before any timing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from harness.gate.distances import distance_of_all, norm_of_all, worst_of
from harness.layers import running_statistics
from harness.reference.golden import Golden
from harness.spec import Check, OptimizerSpec, Parity, Quantity, ToleranceSet
from harness.spec.arrays import Arrays
from harness.spec.errors import UsageError
from harness.spec.kinds import StatisticsOf

EXACT: dict[Quantity, float] = {"losses": 1e-11, "first update": 1e-10, "parameters": 1e-9}
"""The largest error of each quantity that passes, as `relative_error` defines it. Correct programs of small networks
stay below 1e-12, the noise of float64 sums in another order (docs/parity.md has the measured values). The mildest fault
planted in the tests, a learning rate that passes through float32, has an error of 2e-8 in the first update."""

TOLERANCES: dict[ToleranceSet, dict[Quantity, float]] = {
    "exact": EXACT,
    "bf16_gradients": {"losses": 1e-3, "first update": 2e-2, "parameters": 4e-2},
}
"""The largest error of each quantity that passes, for each set of tolerances. "bf16_gradients" is for gradients that
cross devices in bfloat16: before the sum, each is rounded to 8 bits, by at most 2^-9 of itself, and so is each sum."""

RUNNING: dict[ToleranceSet, float] = {"exact": 1e-9, "bf16_gradients": 4e-2}
"""The largest error of BatchNorm's running statistics, relative to how far they moved. Only networks with BatchNorm
have any."""

NOISE_FACTOR = 100
"""A deep network amplifies rounding: five steps of ResNet-50 turn 1e-16 into 1e-8 in some weights. The noise is
measured on the reference itself, as its change when the initial weights are rounded once more. If this multiple of the
noise is larger than the tolerance, it takes its place. Measured errors of all three frameworks are up to about ten
times the noise."""

FLOOR = 1e-6
"""The smallest scale of a tensor, relative to the largest tensor's. The gradient of a weight that cannot affect the
loss is rounding noise, and noise divided by noise is no measure of error."""

STILL = 1e-9
"""Parameters are judged as if they moved at least this share of their largest value: at a rate so small that rounding
moves them as far as training does, no error can be told from noise."""


MOST_ALLOWED = 1e-6
"""Noise raises no tolerance beyond this, because a check that everything passes proves nothing. A training that is too
chaotic even for its own reference fails the gate, and must be judged with gentler settings."""


def make_reference(
    train: Callable[[Arrays], Golden], params: Arrays, *, both: Callable[..., Iterable[Golden]] = map
) -> Golden:
    """The golden reference from `params`, with its sensitivity to rounding.

    The sensitivity comes from a second training, whose initial weights are rounded once more. `train` is one of the
    loops in harness/reference/loops.py, as a function of the initial weights. `both` calls it for both trainings, one
    after another or at the same time.
    """
    rng = np.random.default_rng(0)
    epsilon = np.finfo(np.float64).eps
    rounded = {name: array * (1 + epsilon * rng.uniform(-1, 1, array.shape)) for name, array in params.items()}
    reference, other = both(train, (params, rounded))
    if not np.all(np.isfinite(reference.losses)):
        return reference

    def moved(to: Arrays) -> Arrays:
        # parameters are judged by how far they moved from where each run began
        return {name: params[name] + (to[name] - rounded[name]) for name in params}

    found = compare(
        reference,
        losses=other.losses,
        after_first=[moved(worker) for worker in other.after_first],
        replicas=[moved(other.params)],
        running=running_statistics.history(other.running, "all") or None,
        batch=0,
    )
    noise: dict[str, float] = {}
    for check in found.checks:
        noise[check.quantity] = max(check.error, noise.get(check.quantity, 0.0))
    # A loss is a single number, so the second training can leave it unchanged by chance. If parameters are off by
    # some fraction of their movement, the loss is off by about that fraction of its own change.
    losses = reference.losses
    change = (np.max(losses) - np.min(losses)) / np.max(np.abs(losses))
    return replace(reference, noise=noise | {"losses": max(noise["losses"], noise["parameters"] * float(change))})


def check_reference(found: Golden, optimizer: OptimizerSpec) -> None:
    """Raises UsageError for a reference that diverges, or in which rounding moves weights as far as training does."""
    rate = f"learning_rate {optimizer.learning_rate:g}"
    if not all(np.all(np.isfinite(array)) for array in (found.losses, *found.params.values())):
        raise UsageError(f"--optimizer: the golden reference itself diverges at {rate}; lower it")
    moved = distance_of_all(found.params, found.initial) / norm_of_all(found.initial)
    if moved < STILL:
        raise UsageError(
            f"--optimizer: at {rate} the {len(found.losses)} steps of the golden reference move the weights by "
            f"{moved:.1g} of their size, and below {STILL:g} errors cannot be told from rounding; raise it"
        )


def compare(
    golden: Golden,
    *,
    losses: Iterable[float],
    after_first: Iterable[Arrays],
    replicas: Iterable[Arrays],
    batch: int,
    first_replica: int = 0,
    running: Arrays | None = None,
    statistics_of: StatisticsOf = "all",
    groups: int = 1,
    tolerances: ToleranceSet = "exact",
) -> Parity:
    """Compare one rank's results with the golden reference.

    `after_first` and `replicas`: parameters after the first step and after all steps, one mapping for each copy on this
    rank; each must be right. `first_replica`: the number of this rank's first copy among those of all ranks. Parameters
    are judged by their movement, so that a small learning rate hides nothing. `running`: BatchNorm's running
    statistics, as "<layer>.mean" and "<layer>.var"; None where they are not compared. `statistics_of`: whose samples
    they come from.
    """
    limits: dict[Quantity, float] = {**TOLERANCES[tolerances], "running statistics": RUNNING[tolerances]}
    allowed: dict[Quantity, float] = {
        name: max(limit, min(MOST_ALLOWED, NOISE_FACTOR * golden.noise.get(name, 0.0)))
        for name, limit in limits.items()
    }
    checks = [_check("losses", allowed, {"loss": np.array(list(losses))}, {"loss": golden.losses})]
    for index, replica in enumerate(after_first):
        expected = golden.after_first[(first_replica + index) % len(golden.after_first)]
        checks.append(_of_replica("first update", allowed, replica, expected, golden.initial, index=index))
    for index, replica in enumerate(replicas):
        checks.append(_of_replica("parameters", allowed, replica, golden.params, golden.initial, index=index))
    if running is not None:
        # the program must follow one of the two definitions of the variance throughout
        of_samples = [
            running_statistics.history(golden.running, statistics_of, biased=biased) for biased in (False, True)
        ]
        found = [
            _check("running statistics", allowed, running, right, running_statistics.moved(right))
            for right in of_samples
        ]
        checks.append(min(found, key=lambda check: check.error))
    return Parity(steps=len(golden.losses), batch=batch, groups=groups, checks=tuple(checks), tolerances=tolerances)


def merge(ranks: Iterable[Parity]) -> Parity:
    """One result for all ranks: the worst check of each quantity. A quantity that no rank reported has failed, except
    for running statistics, which few networks have."""
    ranks = list(ranks)
    checks = []
    first = ranks[0]
    limits = dict(TOLERANCES[first.tolerances])
    if any(check.quantity == "running statistics" for rank in ranks for check in rank.checks):
        limits["running statistics"] = RUNNING[first.tolerances]
    for quantity, tolerance in limits.items():
        found = [check for rank in ranks for check in rank.checks if check.quantity == quantity]
        missing = Check(quantity=quantity, error=math.inf, tolerance=tolerance, worst="no rank reported it")
        checks.append(max(found, key=lambda check: check.error, default=missing))
    return replace(first, checks=tuple(checks))


def relative_error(found: np.ndarray, expected: np.ndarray, scale: float) -> float:
    """max |found - expected| / scale; infinite if anything is not finite or the shapes differ."""
    if found.shape != expected.shape or not np.all(np.isfinite(found)):
        return math.inf
    if not expected.size:
        return 0.0
    return float(np.max(np.abs(found - expected)) / scale)


def _of_replica(
    quantity: Quantity, allowed: dict[Quantity, float], found: Arrays, expected: Arrays, initial: Arrays, *, index: int
) -> Check:
    """The parameters of one replica, by how far they moved."""
    moved = {name: np.maximum(np.abs(expected[name] - start), STILL * np.abs(start)) for name, start in initial.items()}
    check = _check(quantity, allowed, found, expected, moved)
    return replace(check, worst=f"{check.worst} (replica {index})")


def _check(
    quantity: Quantity,
    allowed: dict[Quantity, float],
    found: Arrays,
    expected: Arrays,
    scales: Arrays | None = None,
) -> Check:
    tolerance = allowed[quantity]
    if found.keys() != expected.keys():
        names = ", ".join(sorted(found.keys() ^ expected.keys()))
        return Check(quantity=quantity, error=math.inf, tolerance=tolerance, worst=f"missing or unknown: {names}")
    own = {name: float(np.max(np.abs(array), initial=0.0)) for name, array in (scales or expected).items()}
    floor = max(FLOOR * max(own.values()), np.finfo(np.float64).tiny)
    errors = {name: relative_error(found[name], expected[name], max(own[name], floor)) for name in expected}
    error, worst = worst_of(errors)
    return Check(quantity=quantity, error=error, tolerance=tolerance, worst=worst)
