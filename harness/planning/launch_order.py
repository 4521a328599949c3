"""The order of launches: rounds of all cells, each round in its own seeded random order."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
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
        Planned(spec=replace(cells[index], launch=launch, seed=seed_of(cells[index], launch)))
        for launch, index in order(cells, launches)
    ]


def order(cells: Sequence[TrialSpec], launches: int) -> Iterator[tuple[int, int]]:
    """The number of each launch and the index of its cell, in the order in which they run."""
    for launch in range(launches):
        yield from ((launch, index) for index in _shuffled(cells, launch))


def _shuffled(cells: Sequence[TrialSpec], launch: int) -> list[int]:
    seed = cells[0].seed if cells else 0
    return random.Random(f"{seed}/{launch}").sample(range(len(cells)), len(cells))


def seed_of(cell: TrialSpec, launch: int) -> int:
    """The seed of one launch. Each launch of a training is a training of its own, with other initial weights and
    another order of samples."""
    return cell.seed + (launch if cell.training else 0)
