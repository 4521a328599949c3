"""The order of launches: rounds of all cells, each round in its own seeded random order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from harness.planning.plan import Planned
from harness.spec import TrialSpec


def interleave(cells: Sequence[Planned], launches: int) -> tuple[Planned, ...]:
    """Each cell that will not run, once; then `launches` rounds of all the others."""
    idle = [cell for cell in cells if cell.status != "planned"]
    runnable = [cell.spec for cell in cells if cell.status == "planned"]
    return (*idle, *rounds(runnable, launches))


def rounds(cells: Sequence[TrialSpec], launches: int) -> list[Planned]:
    """Every cell once per round, each round in its own seeded random order.

    `cells`: the first launch of each cell.
    """
    return [
        # Each launch of a training is a training of its own, with other initial weights and another order of samples.
        Planned(spec=replace(spec, launch=launch, seed=spec.seed + (launch if spec.training else 0)))
        for launch in range(launches)
        for spec in random.Random(f"{cells[0].seed if cells else 0}/{launch}").sample(cells, len(cells))
    ]
