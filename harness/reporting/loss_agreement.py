"""What a report says about timed runs that are compared with each other: see harness/results/agreement.py."""

from __future__ import annotations

from collections.abc import Sequence

from harness.reporting.formatting import at_most
from harness.reporting.summary import Cell
from harness.results import agreement
from harness.spec.checks import digits

SHARED_BY = {"global": "the whole batch", "per_device": "each device's samples", "per_microbatch": "each micro-batch"}


def sentences(cells: Sequence[Cell]) -> list[str]:
    """How far cells that take the same steps without a golden reference agree, and which cells have no peers."""
    lines, alone = [], []
    for together in _sets(cells):
        if len(together) == 1:
            alone += together
            continue
        spec, launches = together[0].spec, [agreement.of_one_seed(cell.good) for cell in together]
        last = agreement.compared_steps(launches) - 1
        lines.append(
            f"The timed runs of {spec.workload} at batch {spec.global_batch} in {spec.precision}"
            f"{_normalized(together[0])} have no golden reference, because NumPy would take too long to compute it. "
            f"These cells start from the same weights and see the same samples: {_titles(together)}. "
            f"Loss 1 is {_within(launches, 0)}, and loss {last + 1} is {_within(launches, last)}."
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
    """A sentence for each cell with a loss that is too far from those of its peers."""
    lines = []
    for cell in cells:
        if (found := cell.disagreement) is not None:
            others = f"the median of the {found.peers} cells that take"
            if found.peers == 2:
                others = "that of the other cell that takes"
            which = f"its timed loss {found.step + 1}"
            if found.of == "epoch":
                which = f"the mean loss of its epoch {found.step + 1}"
            lines.append(
                f"{cell.title} disagrees with its peers: {which} is {found.distance:.0e} away "
                f"from {others} the same steps (tolerance in {cell.spec.precision}: {digits(found.tolerance)}). It has "
                f"no {'accuracy' if cell.spec.training else 'speed'} until the cause is known."
            )
    return lines


def compared(cells: Sequence[Cell]) -> list[Cell]:
    """The cells whose losses are compared with those of others."""
    return [cell for together in _sets(cells) if len(together) > 1 for cell in together]


def _sets(cells: Sequence[Cell]) -> list[list[Cell]]:
    """The cells that have no golden reference, grouped by the steps that they take."""
    ended_well = [cell for cell in cells if cell.status in ("ok", "disagrees")]
    return [
        [ended_well[number] for number in together]
        for together in agreement.peers([agreement.of_one_seed(c.good) for c in ended_well])
    ]


def _normalized(cell: Cell) -> str:
    return f" (BatchNorm over {SHARED_BY[cell.spec.normalization]})" if cell.first.described.normalizes else ""


def _within(launches: Sequence[agreement.Launches], step: int) -> str:
    off = agreement.distance(launches, step)
    between = "of each other" if len(launches) == 2 else "of the median"
    return f"within {at_most(off)} {between}" if off else "identical in all of them"
