"""Whether timed runs agree with each other, where computing a golden reference for them is too expensive.

The parity phase proves each program in float64 and on a small batch. A fault that appears only at the timed batch and
precision shows in the losses of the timed run. These are compared with the golden reference where NumPy can afford it,
and otherwise with other cells: from the same weights, on the same samples and with the same BatchNorm groups, all
losses are equal except for rounding.

A cell is given by its successful launches.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.results.judge import LOSS_TOLERANCES
from harness.spec import CHECKED_LOSSES, TrialResult, TrialSpec
from harness.spec.partition import normalization_groups

LATER_LOSSES = 0.03
"""The largest tolerance of later losses, relative. For scale: in 16 cells of ResNet-50 in bf16 on H200s (a report of
2026-11-22, since replaced), losses 2 to 5 were within 3e-3 of each other while they fell by 0.9 from 7.1."""

Launches = Sequence[TrialResult]


@dataclass(frozen=True, kw_only=True)
class Disagreement:
    """The first loss of a cell that is too far from those of its peers; `step` counts from 0, the rest is relative."""

    step: int
    distance: float
    tolerance: float
    peers: int  # cells that take the same steps, this one included
    of: Literal["step", "epoch"] = "step"  # whether it is the loss of a step, or the mean loss of an epoch


def peers(cells: Sequence[Launches]) -> list[list[int]]:
    """The cells that have no golden reference, by their numbers, grouped by the steps that they take."""
    sets: dict[tuple, list[int]] = {}
    for number, launches in enumerate(cells):
        if launches and launches[0].losses and not launches[0].golden_losses and comparable(launches[0].spec):
            sets.setdefault(steps_of(launches[0]), []).append(number)
    return list(sets.values())


def disagreements(cells: Sequence[Launches]) -> dict[int, Disagreement]:
    """The cells whose losses are too far from those of their peers, by their numbers.

    With three peers or more, a cell is compared with their median. Two peers that disagree are both named: nobody knows
    which of them is wrong.
    """
    found: dict[int, Disagreement] = {}
    for seed in sorted({result.spec.seed for launches in cells for result in launches}):
        found = _disagreements([_with_seed(launches, seed) for launches in cells]) | found
    return found


def of_one_seed(launches: Launches) -> Launches:
    """The launches with the seed of the first one. Others begin from other weights and see other batches."""
    return _with_seed(launches, launches[0].spec.seed) if launches else launches


def _with_seed(launches: Launches, seed: int) -> Launches:
    return [result for result in launches if result.spec.seed == seed]


def _disagreements(cells: Sequence[Launches]) -> dict[int, Disagreement]:
    found = {}
    for numbers in peers(cells):
        together = [cells[number] for number in numbers]
        for number in numbers:
            for step in range(compared_steps(together)):
                off, allowed = distance(together, step, of=cells[number]), tolerance(cells[number][0].spec, step)
                if not off <= allowed:
                    found[number] = Disagreement(step=step, distance=off, tolerance=allowed, peers=len(numbers))
                    break
    return found


def comparable(spec: TrialSpec) -> bool:
    """Whether other cells take the same steps. With protocol from_host they do not: each makes its own batches."""
    return spec.algorithm == "synchronous" and spec.protocol == "resident" and spec.training is None


def steps_of(result: TrialResult) -> tuple:
    """All that a timed run's losses depend on, except for rounding (compare references.References.key)."""
    spec, batch = result.spec, result.spec.global_batch
    groups = (batch,)
    if result.described.normalizes:
        groups = normalization_groups(spec, batch=batch, options=spec.options)
    return (spec.workload, spec.size, result.conditions.data, spec.seed, spec.precision, spec.optimizer, groups)


def tolerance(spec: TrialSpec, step: int) -> float:
    """How far a loss may be from that of its peers, relative.

    The first loss comes before any gradient. Later losses include errors of gradients, so their tolerance is ten times
    as large, as in a comparison with the golden reference, but at most LATER_LOSSES: beyond that, an update is wrong.
    """
    first = LOSS_TOLERANCES[spec.judged_precision]
    return first if step == 0 else max(first, min(10 * first, LATER_LOSSES))


def distance(cells: Sequence[Launches], step: int, *, of: Launches | None = None) -> float:
    """The largest relative distance of a step's loss from the median of the cells, each with one launch.

    All launches of all cells count, or only those of the cell `of`. The median of two cells lies between them, at half
    their distance: there it is the distance between them that counts.
    """
    middle = statistics.median(launches[0].losses[step] for launches in cells)
    found = [losses[step] for losses in _curves([of] if of is not None else cells)]
    share = 0.5 if len(cells) == 2 else 1.0
    return max(abs(loss - middle) for loss in found) / max(share * abs(middle), sys.float_info.min)


def compared_steps(cells: Sequence[Launches]) -> int:
    """How many losses are compared: as many as all launches have."""
    return min(CHECKED_LOSSES, *map(len, _curves(cells)))


def _curves(cells: Sequence[Launches]) -> list[tuple[float, ...]]:
    """The losses of all launches that recorded any."""
    return [result.losses for launches in cells for result in launches if result.losses]
