"""Whether timed runs that no golden curve reaches agree among themselves: those that make the same steps.

The parity phase proves each program in float64 and on a small batch. What goes wrong only at the timed batch and
precision shows in the timed run's losses, which golden follows where NumPy can afford it. Elsewhere there are the
other cells: from the same weights, on the same samples and under the same BatchNorm all losses are equal but for
rounding.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence

from harness.reporting.summary import NORMALIZED_OVER, Cell, at_most, normalizes, same_algorithm
from harness.results.judge import LOSS_TOLERANCES
from harness.spec import CHECKED_LOSSES, TrialSpec
from harness.spec.partition import normalization_groups

LATER_LOSSES = 0.03
"""ResNet-50 in bf16, 16 cells on H200s: losses 2 to 5 were within 3e-3 of each other while they fell by 0.9 of 7.1."""


def words(cells: Sequence[Cell]) -> list[str]:
    """A sentence for each set of cells that make the same steps without a golden curve, and one for all that make
    steps of their own."""
    lines, alone = [], []
    for peers in _sets(cells):
        if len(peers) == 1:
            alone += peers
            continue
        spec, last = peers[0].spec, _steps(peers) - 1
        lines.append(
            f"No golden curve reaches the timed runs of {spec.workload} at batch {spec.global_batch} in "
            f"{spec.precision}{_normalized(spec)}: NumPy cannot afford it. From the same weights and on the same "
            f"samples {'; '.join(cell.title for cell in peers)} have a first loss {_within(distance(peers, 0))}, "
            f"and loss {last + 1} {_within(distance(peers, last))}."
        )
    if alone:
        lines.append(
            "No golden curve reaches these timed runs, nor does another cell make the same steps; of them only a "
            f"finite loss is asked: {'; '.join(cell.title for cell in alone)}."
        )
    return lines


def departures(cells: Sequence[Cell]) -> list[str]:
    """A sentence for each cell one of whose first losses is too far from the median of its set."""
    lines = []
    for peers in _sets(cells):
        for cell in peers:
            for step in range(_steps(peers)):
                off, allowed = distance(peers, step, of=cell), tolerance(cell.spec, step)
                if not off <= allowed:
                    lines.append(
                        f"{cell.title} departs: its timed loss {step + 1} is {off:.0e} from the median of the "
                        f"{len(peers)} cells that make the same steps (allowed in {cell.spec.precision}: "
                        f"{allowed:.0e}). Its speed means nothing before you know why."
                    )
                    break
    return lines


def compared(cells: Sequence[Cell]) -> list[Cell]:
    """The cells whose losses are compared with those of others."""
    return [cell for peers in _sets(cells) if len(peers) > 1 for cell in peers]


def tolerance(spec: TrialSpec, step: int) -> float:
    """How far a loss may be from its peers', relative. The first is before any gradient; the next hold their errors
    too, and ten times as much is allowed, as of golden, but never over what shows a wrong update: LATER_LOSSES."""
    first = LOSS_TOLERANCES["bf16" if spec.tolerances == "bf16_gradients" else spec.precision]
    return first if step == 0 else max(first, min(10 * first, LATER_LOSSES))


def comparable(spec: TrialSpec) -> bool:
    """Whether another cell can be expected to make the same steps: from_host each makes batches of its own."""
    return same_algorithm(spec) and spec.protocol == "resident" and spec.training is None


def steps_of(spec: TrialSpec) -> tuple:
    """All that a timed run's losses depend on but for rounding: as of references.References.key."""
    batch = spec.global_batch
    groups = normalization_groups(spec, batch=batch, options=spec.options) if normalizes(spec) else (batch,)
    return (spec.workload, spec.size, spec.seed, spec.precision, spec.optimizer, groups)


def distance(peers: Sequence[Cell], step: int, *, of: Cell | None = None) -> float:
    """How far losses of a step are at most from the median over `peers`, one of each; of all their launches, or of
    those of one cell. Relative."""
    middle = statistics.median(cell.first.losses[step] for cell in peers)
    found = [losses[step] for losses in _curves([of] if of else peers)]
    return max(abs(loss - middle) for loss in found) / max(abs(middle), sys.float_info.min)


def _curves(cells: Sequence[Cell]) -> list[tuple[float, ...]]:
    """The losses of all launches that have some."""
    return [result.losses for cell in cells for result in cell.good if result.losses]


def _steps(peers: Sequence[Cell]) -> int:
    """How many first losses are compared: those that all have."""
    return min(CHECKED_LOSSES, *map(len, _curves(peers)))


def _normalized(spec: TrialSpec) -> str:
    return f", BatchNorm over each {NORMALIZED_OVER[spec.normalization]}" if normalizes(spec) else ""


def _within(off: float) -> str:
    return f"within {at_most(off)} of their median" if off else "equal to the last bit"


def _sets(cells: Sequence[Cell]) -> list[list[Cell]]:
    """The cells that have no golden curve, those that make the same steps together."""
    sets: dict[tuple, list[Cell]] = {}
    for cell in cells:
        if cell.status == "ok" and cell.first.losses and not cell.first.golden_losses and comparable(cell.spec):
            sets.setdefault(steps_of(cell.spec), []).append(cell)
    return list(sets.values())
