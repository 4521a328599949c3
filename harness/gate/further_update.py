"""Two more calls of the timed program after its last block, computed again in NumPy.

The first goes on where the blocks ended, with batches that the program has not seen. Everything else that is compared
begins at the initial weights, where gradients may be smaller than later. This call shows what acts on large gradients
alone, such as clipping that somebody left in. Gradients of the batches of the blocks would say less: a network that has
memorized its batches has small gradients, and much of them is rounding.

For the second, the program gets its initial weights back, but keeps its optimizer's moments and the counts of its
updates. Then it makes a call on the batches of the blocks, and NumPy makes the same updates from the same weights and
moments. This shows mistakes that begin after some number of updates, or with a batch that was seen before. It also
shows those that move the weights too little for the loss curve: a missing weight decay, gradients in a narrower format,
running statistics that stand still.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from harness.contract import Moments
from harness.gate import further_direction, winograd
from harness.gate.distances import beyond_rounding, distance, norm, worst_of
from harness.layers import running_statistics, with_rounding
from harness.reference import loops
from harness.reference.golden import Golden
from harness.spec import Check, OptimizerSpec, Precision, Quantity, optimizers
from harness.spec.arrays import Arrays
from harness.spec.kinds import StatisticsOf
from harness.workloads import Workload

UPDATE: dict[Precision, float] = {"fp64": 1e-9, "fp32": 1e-4, "tf32": 5e-2, "bf16": 0.4}
"""How far a parameter may be off after the call, relative to what the gradients changed in it. Beside what storing it
rounds, right programs were off by up to 2e-13 in fp64, 2e-6 in fp32 and 0.15 in bf16 (docs/parity.md). TF32 was not
measured: it rounds eight times more finely than bf16."""
BIAS_CORRECTION = 1.2e-7
"""Adam in fp32 may be off by this divided by 1 - beta2: programs compute 1 - beta2^t in float32, from a power that is
close to 1. Optax's was off by up to 5e-5 with a beta2 of 0.999."""
DEEP_UPDATE: dict[Precision, float] = {"fp64": 1e-9, "fp32": 0.25}
"""The same with BatchNorm, which amplifies rounding. The larger the batch, the likelier is an activation whose sign
differs by rounding. In NumPy, gradients of ResNet-50 tiny in float32 were off by up to 1e-2, 7e-2 and 9e-2, among 40
batches each of 8, 16 and 32 samples; half of them by less than 2e-5, 5e-5 and 3e-3. In bf16, right programs were off by
up to 1.5, so nothing is judged. TF32 was not measured."""
STATISTICS: dict[Precision, float] = {"fp64": 1e-9, "fp32": 2e-4, "tf32": 3e-2, "bf16": 4e-2}
"""The same for BatchNorm's running statistics, relative to their movement. Right programs of ResNet-50 tiny were off by
up to 7e-6 in fp32 and 2e-2 in bf16; with statistics that were computed in bfloat16 themselves, by 9e-2. TF32 was not
measured."""
LINEAR = ("v", "m")
"""The moments of harness.spec.optimizers.update that are sums of gradients: of SGD, and the first of Adam's."""
DECAY = 0.3
"""How far the weight decay may be off, relative to itself. Right programs were off by up to 1e-3 in fp32, and by 0.08
in bf16 (a decay of 1e-4 in ResNet-50 tiny, in nine cells)."""
NOISE = 0.05
"""It is judged if rounding makes less of an error than this, were its direction random."""
PASSES, ATTEMPTS = 2, 4
"""So many calls must pass, each on its own batch, of so many at most: two before three fail. Of 45 calls of nine right
cells in all precisions, one failed. Now and then an activation whose sign differs by
rounding changes a gradient: without BatchNorm, one of 40 of mnist_cnn base was off by 5e-4 in float32, and the others
by up to 2e-6."""


@dataclass(frozen=True, kw_only=True)
class Right:
    """What a call must do, with this optimizer after `made` updates."""

    optimizer: OptimizerSpec
    made: int
    golden: Golden
    without: Arrays  # the parameters afterwards, if all gradients had been 0
    moments: Moments  # what the optimizer remembers afterwards
    moments_without: Moments  # the same, if all gradients had been 0
    rounded: Arrays | None = None  # by a network that rounds what its layers pass on
    wider: Mapping[str, float] = field(default_factory=dict)  # the tolerances of parameters by winograd.py

    @property
    def steps(self) -> int:
        """How many updates the call makes."""
        return len(self.golden.losses)


def compute(
    workload: Workload,
    optimizer: OptimizerSpec,
    params: Arrays,
    moments: Moments,
    batches: Sequence[Arrays],
    *,
    groups: Callable[[int], Sequence[int]],
    made: int,
    rounding: Precision | None = None,
    by_winograd: bool = False,
) -> Right:
    """The updates on these batches after `made` others, in float64. `groups`: as in loops.train. `rounding`: also by a
    network that rounds as this precision does. `by_winograd`: whether the program's gradients may be (winograd.py)."""
    before = {name: array.astype(np.float64) for name, array in params.items()}
    state = {key: array.astype(np.float64) for key, array in moments.items()}

    def trained(network: Workload, kept: Moments | None = None) -> Golden:
        known = {"optimizer": optimizer, "groups": groups, "moments": state, "made": made}
        return loops.train(network, before, batches, kept=kept, **known)

    remembered: Moments = {}
    golden = trained(workload, remembered)
    without, fading = if_gradients_were_0(optimizer, before, state, range(made, made + len(batches)))
    rounded = None
    if rounding is not None:
        rounded = trained(replace(workload, layers=with_rounding(workload.layers, rounding))).params
    wider = winograd.tolerances(before, updates=len(batches)) if by_winograd else {}
    known = {"without": without, "moments": remembered, "moments_without": fading, "wider": wider}
    return Right(optimizer=optimizer, made=made, golden=golden, rounded=rounded, **known)


def if_gradients_were_0(
    optimizer: OptimizerSpec, params: Arrays, moments: Moments, steps: range
) -> tuple[Arrays, Moments]:
    """The parameters and moments after these updates, in float64, if all gradients had been 0."""
    params = {name: array.astype(np.float64) for name, array in params.items()}
    nothing = {name: np.zeros_like(array) for name, array in params.items()}
    state = {key: array.astype(np.float64) for key, array in moments.items()}
    for step in steps:
        params = optimizers.update(optimizer, params, nothing, state, step=step)
    return params, state


def compare(
    right: Right,
    found: Arrays,
    *,
    precision: Precision,
    tolerances: Precision,
    statistics_of: StatisticsOf | None,
    updates: int = 1,
    moments: Moments | None = None,
) -> Iterator[Check]:
    """The state `found` after the call. `tolerances`: of the parameters. `statistics_of`: which running statistics
    the program keeps, or None if there are none to judge. `updates`: how often a step updates them. `moments`: what the
    optimizer remembers in this state."""
    params = {name: found[f"model/{name}"] for name in right.golden.params}
    tolerance = tolerance_of(tolerances, right.optimizer, deep=bool(right.golden.running), steps=right.steps)
    if tolerance is not None:
        updated = of_parameters("further update", right, found, tolerance)
        remembered = _of_moments(right, moments or {}, tolerance)
        yield max(updated, remembered, key=lambda check: check.severity)
    if tolerance is not None or right.rounded is not None:
        yield from further_direction.compare(right.golden.params, params, without=right.without, rounded=right.rounded)
    rates = sum(optimizers.rate(right.optimizer, right.made + step) for step in range(right.steps))
    decay = decay_along(right.optimizer, rates, right.golden.initial, right.golden.params, params)
    if decay is not None:
        yield decay
    if statistics_of is not None and updates == 1:
        yield _statistics(right.golden.running, statistics_of, found, STATISTICS[precision])
    elif statistics_of is not None and right.steps == 1:
        yield _statistics_of_parts(right.golden.running, found, STATISTICS[precision])


def tolerance_of(precision: Precision, optimizer: OptimizerSpec, *, deep: bool, steps: int) -> float | None:
    """That of parameters after a call of so many steps, or None if they are not judged. `deep`: with BatchNorm."""
    if deep and steps > 1 and precision != "fp64":  # errors of one step are amplified by the next
        return None
    tolerance = (DEEP_UPDATE if deep else UPDATE).get(precision)
    if tolerance is None or precision != "fp32" or optimizer.name not in ("adam", "adamw"):
        return tolerance
    return min(UPDATE["bf16"], max(tolerance, BIAS_CORRECTION / (1 - optimizer.beta2)))


def of_parameters(
    quantity: Quantity, right: Right, found: Arrays, tolerance: float, *, roundings: int | None = None
) -> Check:
    """The parameters of the state `found` after the call. `roundings`: of each stored number, by default one a step."""
    moved = {name: distance(array, right.without[name]) for name, array in right.golden.params.items()}
    given = {name: found[f"model/{name}"] for name in moved}
    errors = beyond_rounding(given, right.golden.params, moved=moved, roundings=roundings or right.steps)
    return winograd.worst(quantity, errors, tolerance, right.wider)


def _of_moments(right: Right, found: Moments, tolerance: float) -> Check:
    """The moments after the call that are sums of gradients. They show gradients at a rate of 0 as well, after the end
    of a schedule, where the parameters stand still."""
    keys = [key for key in right.moments if key in found and key[1] in LINEAR and key in right.moments_without]
    names = {key: f"{key[0]}, moment {key[1]}" for key in keys}
    expected = {names[key]: right.moments[key] for key in keys}
    moved = {names[key]: distance(right.moments[key], right.moments_without[key]) for key in keys}
    errors = beyond_rounding({names[key]: found[key] for key in keys}, expected, moved=moved, roundings=2 * right.steps)
    wider = {names[key]: right.wider[key[0]] for key in keys if key[0] in right.wider}
    return winograd.worst("further update", errors, tolerance, wider)


def decay_along(
    optimizer: OptimizerSpec, rates: float, before: Arrays, right: Arrays, found: Arrays, *, rounded: float = 1.0
) -> Check | None:
    """The relative error of the decay w - rate decay w: the error of all parameters, projected onto the parameters.

    `before`, `right`, `found`: the parameters before the call, what they must be afterwards, and what they are.
    `rates`: the sum of the learning rates. `rounded`: how much of the error is rounding. None without weight decay,
    where it is a part of a gradient that Adam or Adagrad scale, and where it is so small that rounding hides it.
    """
    start = _joined(before)
    size = optimizer.weight_decay * rates * float(start @ start)
    if not size or optimizer.name not in ("sgd", "adamw"):
        return None
    off = _joined(found) - _joined(right)
    along = float(off @ start)
    across = norm(off - along / float(start @ start) * start)
    if rounded * across * norm(start) / math.sqrt(start.size) > NOISE * size:
        return None
    error = abs(along) / size if math.isfinite(along) else math.inf
    return Check(quantity="further weight decay", error=error, tolerance=DECAY, worst=f"rate {rates:.3g}")


def _joined(arrays: Arrays) -> np.ndarray:
    return np.concatenate([arrays[name].astype(np.float64).ravel() for name in sorted(arrays)])


def _statistics(running: Arrays, of: StatisticsOf, found: Arrays, tolerance: float) -> Check:
    """A variance may be the biased one, as in Flax and Keras, or the unbiased one, as in torch."""
    checks = []
    for biased in (False, True):
        expected = running_statistics.history(running, of, biased=biased)
        errors = {
            name: distance(found[f"running/{name}"], expected[name])
            / max(norm(moved), float(np.finfo(np.float64).tiny))
            for name, moved in running_statistics.moved(expected).items()
        }
        error, worst = worst_of(errors)
        checks.append(Check(quantity="further statistics", error=error, tolerance=tolerance, worst=worst))
    return min(checks, key=lambda check: check.error)


def _statistics_of_parts(running: Arrays, found: Arrays, tolerance: float) -> Check:
    """Where parts that follow one another move the statistics, only their order says how far each one does. What a step
    adds lies between the smallest and the largest statistics of its parts, channel by channel."""
    errors, kept = {}, 1 - running_statistics.MOMENTUM
    for name in (name.removeprefix("most/") for name in running if name.startswith("most/")):
        if name.endswith(running_statistics.BIASED):
            continue
        start = 1.0 if name.endswith(".var") else 0.0
        least = running[f"least/{name.replace('.var', running_statistics.BIASED)}"]
        most = running[f"most/{name}"]
        added = (found[f"running/{name}"].astype(np.float64) - kept * start) / (1 - kept)
        between = np.clip(added, least, most)
        moved = norm((least + most) / 2 - start)
        errors[name] = distance(added, between) / max(moved, float(np.finfo(np.float64).tiny))
    error, worst = worst_of(errors)
    return Check(quantity="further statistics", error=error, tolerance=tolerance, worst=worst)
