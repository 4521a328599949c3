"""Whether timed runs agree with each other, where computing a golden reference for them is too expensive.

The parity phase proves each program in float64 and on a small batch. A fault that appears only at the timed batch and
precision shows in the losses of the timed run. These are compared with the golden reference where NumPy can afford it,
and otherwise with other cells: from the same weights, on the same samples and with the same BatchNorm groups, all
losses are equal except for rounding.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence

from harness.reporting import naming
from harness.reporting.formatting import at_most
from harness.reporting.summary import Cell
from harness.results.judge import LOSS_TOLERANCES
from harness.spec import CHECKED_LOSSES, TrialSpec
from harness.spec.partition import normalization_groups

SHARED_BY = {"global": "the whole batch", "per_device": "each device's samples", "per_microbatch": "each micro-batch"}
LATER_LOSSES = 0.03
"""The largest tolerance of later losses, relative. For scale: in 16 cells of ResNet-50 in bf16 on H200s, losses 2 to 5
were within 3e-3 of each other while they fell by 0.9 from 7.1."""


def sentences(cells: Sequence[Cell]) -> list[str]:
    """How far cells that take the same steps without a golden reference agree, and which cells have no peers."""
    lines, alone = [], []
    for peers in _sets(cells):
        if len(peers) == 1:
            alone += peers
            continue
        spec, last = peers[0].spec, _steps(peers) - 1
        lines.append(
            f"The timed runs of {spec.workload} at batch {spec.global_batch} in {spec.precision}{_normalized(spec)} "
            "have no golden reference, because NumPy would take too long to compute it. These cells start from the "
            f"same weights and see the same samples: {_titles(peers)}. Loss 1 is {_within(distance(peers, 0))}, and "
            f"loss {last + 1} is {_within(distance(peers, last))}."
        )
    if alone:
        lines.append(
            "These timed runs have neither a golden reference nor another cell that takes the same steps. Their "
            f"losses only have to be finite: {_titles(alone)}."
        )
    return lines


def _titles(cells: Sequence[Cell]) -> str:
    return "; ".join(cell.title for cell in cells)


def disagreements(cells: Sequence[Cell]) -> list[str]:
    """A sentence for each cell with a loss that is too far from the median of its peers."""
    lines = []
    for peers in _sets(cells):
        for cell in peers:
            for step in range(_steps(peers)):
                off, allowed = distance(peers, step, of=cell), tolerance(cell.spec, step)
                if not off <= allowed:
                    lines.append(
                        f"{cell.title} disagrees with its peers: its timed loss {step + 1} is {off:.0e} away from the "
                        f"median of the {len(peers)} cells that take the same steps (tolerance in "
                        f"{cell.spec.precision}: {allowed:.0e}). Its speed means nothing until the cause is known."
                    )
                    break
    return lines


def compared(cells: Sequence[Cell]) -> list[Cell]:
    """The cells whose losses are compared with those of others."""
    return [cell for peers in _sets(cells) if len(peers) > 1 for cell in peers]


def tolerance(spec: TrialSpec, step: int) -> float:
    """How far a loss may be from the median of its peers, relative.

    The first loss comes before any gradient. Later losses include errors of gradients, so their tolerance is ten times
    as large, as in a comparison with the golden reference, but at most LATER_LOSSES: beyond that, an update is wrong.
    """
    first = LOSS_TOLERANCES["bf16" if spec.tolerances == "bf16_gradients" else spec.precision]
    return first if step == 0 else max(first, min(10 * first, LATER_LOSSES))


def comparable(spec: TrialSpec) -> bool:
    """Whether other cells take the same steps. With protocol from_host they do not: each makes its own batches."""
    return naming.same_algorithm(spec) and spec.protocol == "resident" and spec.training is None


def steps_of(spec: TrialSpec) -> tuple:
    """All that a timed run's losses depend on, except for rounding (compare references.References.key)."""
    batch = spec.global_batch
    groups = normalization_groups(spec, batch=batch, options=spec.options) if naming.normalizes(spec) else (batch,)
    return (spec.workload, spec.size, spec.seed, spec.precision, spec.optimizer, groups)


def distance(peers: Sequence[Cell], step: int, *, of: Cell | None = None) -> float:
    """The largest relative distance of a step's loss from the median of the peers, each with one launch.

    All launches of all peers count, or only those of the cell `of`.
    """
    middle = statistics.median(cell.first.losses[step] for cell in peers)
    found = [losses[step] for losses in _curves([of] if of else peers)]
    return max(abs(loss - middle) for loss in found) / max(abs(middle), sys.float_info.min)


def _curves(cells: Sequence[Cell]) -> list[tuple[float, ...]]:
    """The losses of all successful launches that recorded any."""
    return [result.losses for cell in cells for result in cell.good if result.losses]


def _steps(peers: Sequence[Cell]) -> int:
    """How many losses are compared: as many as all launches have."""
    return min(CHECKED_LOSSES, *map(len, _curves(peers)))


def _normalized(spec: TrialSpec) -> str:
    return f" (BatchNorm over {SHARED_BY[spec.normalization]})" if naming.normalizes(spec) else ""


def _within(off: float) -> str:
    return f"within {at_most(off)} of the median" if off else "identical in all of them"


def _sets(cells: Sequence[Cell]) -> list[list[Cell]]:
    """The cells that have no golden reference, grouped by the steps that they take."""
    sets: dict[tuple, list[Cell]] = {}
    for cell in cells:
        if cell.status == "ok" and cell.first.losses and not cell.first.golden_losses and comparable(cell.spec):
            sets.setdefault(steps_of(cell.spec), []).append(cell)
    return list(sets.values())
