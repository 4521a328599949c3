"""Whether the trainings of one seed agree: the same samples in the same order give the same mean loss of an epoch.

The first losses of a training are compared with the golden reference, and single steps later with NumPy at the weights
of that moment (harness/worker/training_checks.py). What both miss shows in the mean loss of an epoch, which every step
enters: an update that is sometimes left out, or a batch that comes twice. All trainings that differ in nothing but
framework, strategy, input pipeline and track are compared.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from harness.results.agreement import Disagreement, Launches, steps_of
from harness.spec import Precision, TrialResult

TOLERANCES: dict[Precision, float] = {"fp64": 1e-4, "fp32": 5e-3, "tf32": 0.05, "bf16": 0.05}
"""How far the mean loss of an epoch may be from that of the peers, relative to the first epoch's. In fp32, 9 cells of
mnist_cnn tiny on CPU devices were within 7e-8 of each other in 5 epochs; longer trainings let rounding grow."""
DEEP = 0.1
"""The same with BatchNorm, in any precision: rounding grows until trainings share nothing but their statistics."""


def disagreements(cells: Sequence[Launches]) -> dict[int, Disagreement]:
    """The trainings whose epochs are too far from those of their peers, by their numbers.

    With three peers or more, a training is compared with their median. Two that disagree are both named.
    """
    sets: dict[tuple, list[tuple[int, TrialResult]]] = {}
    for number, launches in enumerate(cells):
        for result in launches:
            if comparable(result):
                sets.setdefault(_question(result), []).append((number, result))
    found: dict[int, Disagreement] = {}
    for together in sets.values():
        if len({number for number, _ in together}) > 1:
            found = _of_one_set(together) | found
    return found


def comparable(result: TrialResult) -> bool:
    """Whether other cells make the same steps."""
    return result.spec.training is not None and result.spec.algorithm == "synchronous" and len(result.epochs) > 1


def _question(result: TrialResult) -> tuple:
    """All that the losses of a training depend on, except for rounding."""
    training = result.spec.training
    assert training is not None
    dropped = training.last_batch == "drop"
    return (*steps_of(result), dropped, training.init_from, training.validation_share, result.spec.tolerances)


def _of_one_set(together: Sequence[tuple[int, TrialResult]]) -> dict[int, Disagreement]:
    found: dict[int, Disagreement] = {}
    curves = [(number, _losses(result)) for number, result in together]
    allowed = _tolerance(together[0][1])
    for epoch in range(min(len(curve) for _, curve in curves)):
        losses = [curve[epoch] for _, curve in curves]
        scale = max(abs(statistics.median(curve[0] for _, curve in curves)), 1e-12)
        # the median of two lies between them, at half their distance
        share = 0.5 if len(losses) == 2 else 1.0
        for (number, _), loss in zip(curves, losses, strict=True):
            off = abs(loss - statistics.median(losses)) / (share * scale)
            if not off <= allowed and number not in found:
                found[number] = Disagreement(
                    step=epoch,
                    distance=off,
                    tolerance=allowed,
                    peers=len({number for number, _ in together}),
                    of="epoch",
                )
    return found


def _tolerance(result: TrialResult) -> float:
    if result.described.normalizes:
        return DEEP
    return TOLERANCES[result.spec.judged_precision]


def _losses(result: TrialResult) -> list[float]:
    """The mean losses of the epochs."""
    return [epoch.train_loss for epoch in result.epochs if epoch.train_loss is not None]
