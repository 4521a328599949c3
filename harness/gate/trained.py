"""Does a training do what it says? Single steps and evaluations of the program in training, computed again in NumPy.

The parity phase proves a program in float64 and on small batches. Here the program that trains is looked at, in its own
precision and batch: the loss of a step at the weights before it, BatchNorm's running statistics after the step, and the
loss and accuracy of evaluated batches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.gate import replay
from harness.gate.distances import distance_of_all, norm_of_all, worst_of
from harness.layers import Layer, chain_forward, running_statistics, with_rounding
from harness.reference.evaluation import classes_of
from harness.reference.losses import loss_and_gradient, split_targets
from harness.spec import Check, Precision, TrialSpec
from harness.spec.arrays import Arrays
from harness.workloads import Workload

LOSSES: dict[Precision, float] = {"fp64": 1e-9, "fp32": 1e-4, "tf32": 1e-2, "bf16": 5e-2}
"""How far a loss may be off, as a relative error of the network's outputs (`Computed.scale`). Right programs on CPU
devices were measured to be off by up to 6e-7 in fp32 and 5e-3 in bf16."""

NOISES = 4
"""A row of outputs may be off by this multiple of what rounding weights and activations does to it in NumPy, if that is
more: where large terms cancel, right programs in bf16 were off by up to 0.11 of a row's largest output."""

DIGITS = 4
"""A loss may be off by so many of the last digits of its outputs, since it is the difference of such numbers, however
small it is. A network that had learned its samples by heart had a loss of 5.3e-7, which float32 computed as 4e-9 less:
0.003 of a digit, but seven times what LOSSES allows of such a loss."""

STATISTICS: dict[Precision, float] = {"fp64": 1e-6, "fp32": 1e-2, "tf32": 5e-2, "bf16": 0.2}
"""How far running statistics may be off after a step, relative to the largest update that the step could have made."""

RESUMED: dict[Precision, float] = {"fp64": 1e-6, "fp32": 5e-2, "tf32": 0.1, "bf16": 0.1}
"""How far the weights may be off after a few steps from a saved and loaded state, relative to their movement. On GPUs,
sums in another order may change the last digits, and so may they under DDP with three ranks or more."""
EXACT, EXACT_DEVICES = 1e-12, 2
"""Up to so many CPU devices, the weights must be equal. Right trainings are, bit by bit (docs/training.md)."""


@dataclass(frozen=True, kw_only=True)
class Computed:
    """A loss and an accuracy as NumPy computes them, and how far rounding may move them."""

    loss: float
    scale: float  # the change of the loss if every output is off by its own size, in the worst direction
    right: int  # samples whose largest output is that of their class
    near: int  # samples for which this depends on rounding
    count: int
    statistics: tuple[Arrays, ...] = ()  # that BatchNorm saw, by group


def compute(
    workload: Workload,
    params: Mapping[str, np.ndarray],
    samples: Arrays,
    *,
    precision: Precision,
    running: Arrays | None = None,
    groups: Sequence[int] | None = None,
) -> Computed:
    """The loss and accuracy of true samples, without padding. With `running` the network is evaluated; else it trains,
    with BatchNorm over each of the consecutive `groups`."""
    exact = {name: array.astype(np.float64) for name, array in params.items()}
    outputs, seen, noise = [], [], []
    ends = np.cumsum(groups or (len(samples["x"]),))
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        found: Arrays = {}
        x = samples["x"][start:end].astype(np.float64)
        outputs.append(chain_forward(_layers(workload, running, found), exact, x)[0])
        seen.append(found)
        if precision in ("tf32", "bf16"):
            layers = with_rounding(_layers(workload, running, {}), precision)
            noise.append(np.abs(chain_forward(layers, exact, x)[0] - outputs[-1]).max(1))
    whole = np.concatenate(outputs)
    size = np.max(np.abs(whole - (whole.mean(1, keepdims=True) if workload.loss == "nll" else 0)), axis=1)
    off_by = LOSSES[precision] * size
    if noise:
        off_by = np.maximum(off_by, NOISES * np.concatenate(noise))
    targets, _ = split_targets(workload.loss, whole, samples["y"])
    loss, gradient = loss_and_gradient(workload.loss, whole, samples["y"])
    if workload.loss == "nll":  # the outputs are log-probabilities: what rounding acts on are the logits before
        gradient = (np.exp(whole) / len(whole)) + gradient
    # Of log-probabilities that are moved, those of the network's softmax.
    of_logits = "cross_entropy" if workload.loss == "nll" else workload.loss
    worst, _ = loss_and_gradient(of_logits, whole + off_by[:, None] * np.sign(gradient), samples["y"])
    last_digit = float(np.finfo(np.float64 if precision == "fp64" else np.float32).eps * np.mean(size))
    classes, rows = classes_of(targets), np.arange(len(whole))
    of_class, others = whole[rows, classes], whole.copy()
    others[rows, classes] = -np.inf
    margin = of_class - others.max(1)
    return Computed(
        loss=loss,
        scale=max((worst - loss) / LOSSES[precision], abs(loss) * 1e-2, DIGITS * last_digit / LOSSES[precision]),
        right=int(np.sum(margin > 0)),
        near=int(np.sum(np.abs(margin) <= off_by)),
        count=len(whole),
        statistics=tuple(seen),
    )


def _layers(workload: Workload, running: Arrays | None, found: Arrays) -> Sequence[Layer]:
    """The network evaluated with `running` statistics, or in training, where `found` gets those that BatchNorm sees."""
    if running is None:
        return running_statistics.observed(workload.layers, found)
    return running_statistics.frozen(workload.layers, running)


def compare_loss(computed: Computed, loss: float, *, precision: Precision, where: str) -> Check:
    """The loss of a step, at the weights before it."""
    error = _finite(abs(loss - computed.loss) / computed.scale)
    return Check(quantity="step losses", error=error, tolerance=LOSSES[precision], worst=where)


def compare_evaluation(
    computed: Computed, loss: float, accuracy: float, *, precision: Precision, where: str
) -> tuple[Check, Check]:
    """Loss and accuracy of an evaluated batch. The accuracy may be off by the samples for which it depends on
    rounding, and by less than half a sample, because a float32 mean is rounded."""
    error = _finite(abs(loss - computed.loss) / computed.scale)
    off = _finite(abs(accuracy - computed.right / computed.count))
    allowed = (computed.near + 0.25) / computed.count
    return (
        Check(quantity="evaluated losses", error=error, tolerance=LOSSES[precision], worst=where),
        Check(quantity="evaluated accuracies", error=off, tolerance=allowed, worst=where),
    )


def compare_statistics(
    computed: Computed, *, before: Arrays, after: Arrays, first_only: bool, precision: Precision, where: str
) -> Check:
    """BatchNorm's running statistics after a step. `first_only`: they are those of the first group alone."""
    of_groups = computed.statistics[:1] if first_only else computed.statistics
    errors = []
    for biased in (False, True):
        groups = [running_statistics.by_definition(group, biased=biased) for group in of_groups]
        right = running_statistics.advanced(before, groups)
        found: dict[str, float] = {}
        for name, array in before.items():
            seen = np.mean([group[name] for group in groups], axis=0)
            size = running_statistics.MOMENTUM * max(float(np.max(np.abs(seen))), float(np.max(np.abs(array))), 1e-6)
            found[name] = _finite(float(np.max(np.abs(after[name] - right[name]))) / size)
        errors.append(worst_of(found))
    error, worst = min(errors)
    return Check(quantity="running statistics", error=error, tolerance=STATISTICS[precision], worst=f"{worst}, {where}")


def repeats_exactly(spec: TrialSpec) -> bool:
    """Whether the same steps from the same state must give the same weights, bit by bit."""
    return spec.platform == "cpu" and spec.devices <= EXACT_DEVICES


def compare_again(
    before: Sequence[Arrays], straight: Sequence[Arrays], runs: Sequence[Sequence[Arrays]], *, spec: TrialSpec, how: str
) -> list[Check]:
    """The weights of each replica after steps that were made again from a saved state, in one run or two.

    The distance between two runs says how far any two differ, as between replays of a block (harness/gate/replay.py).
    Where that is too far to judge directions, the size of the movement is judged. `how`: what loaded the state.
    """
    exact, checks = repeats_exactly(spec), []
    usual = EXACT if exact else RESUMED[spec.precision]
    for index, (start, one, *others) in enumerate(zip(before, straight, *runs, strict=True)):
        error, tolerance, what = _compare_runs(start, one, others, usual=usual)
        worst = f"{what}, replica {index}, {how}"
        checks.append(Check(quantity="resumed training", error=error, tolerance=tolerance, worst=worst))
    return checks


def _compare_runs(start: Arrays, one: Arrays, others: Sequence[Arrays], *, usual: float) -> tuple[float, float, str]:
    """The error of the other run that is closer to `one`, what is allowed, and what was judged."""
    moved = max(distance_of_all(one, start), 1e-6 * norm_of_all(start))
    if not moved:
        return 0.0, usual, "weights"
    errors = [_finite(distance_of_all(other, one) / moved) for other in others]
    if len(others) == 1 or math.inf in errors:
        return max(errors), usual, "weights"
    tolerance = max(usual, replay.FACTOR * distance_of_all(*others) / moved)
    if tolerance <= replay.MOST:
        return min(errors), tolerance, "weights"
    sizes = [abs(distance_of_all(other, start) / moved - 1) for other in others]
    return min(sizes), replay.SIZE, "size of the movement"


def worst_of_each(checks: Sequence[Check]) -> tuple[Check, ...]:
    """The check of each quantity that is closest to its tolerance, or furthest beyond it."""

    def share(check: Check) -> float:
        if check.tolerance:
            return check.error / check.tolerance
        return math.inf if check.error else 0.0

    found: dict[str, Check] = {}
    for check in checks:
        held = found.get(check.quantity)
        if held is None or share(check) > share(held):
            found[check.quantity] = check
    return tuple(found.values())


def _finite(error: float) -> float:
    return error if math.isfinite(error) else math.inf
