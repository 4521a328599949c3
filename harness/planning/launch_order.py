"""The order of launches: rounds of all cells, each round in its own seeded random order.

In a sweep of batches, a round takes one batch after the other, the smallest first, each in a random order.
"""

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
    groups, seed = shuffled_together(cells), cells[0].seed if cells else 0
    for launch in range(launches):
        yield from ((launch, index) for index in _shuffled(groups, f"{seed}/{launch}"))


def _shuffled(groups: Sequence[Sequence[int]], seed: str) -> Iterator[int]:
    for number, group in enumerate(groups):
        yield from random.Random(f"{seed}/{number}" if number else seed).sample(group, len(group))


def shuffled_together(cells: Sequence[TrialSpec]) -> list[list[int]]:
    """The indices of the cells that are shuffled among each other: of all cells, unless some differ in their batch
    alone. Then those of each batch, the smallest first: a cell that ran out of memory is not launched at larger ones.
    """
    batches = sorted({cell.global_batch for cell in cells})
    if len(batches) < 2 or len({cell.at_any_batch for cell in cells}) == len({cell.program for cell in cells}):
        return [list(range(len(cells)))]
    return [[index for index, cell in enumerate(cells) if cell.global_batch == batch] for batch in batches]


def in_order(trials: Sequence[TrialSpec]) -> list[list[TrialSpec]]:
    """Trials of a round, or the first of each computation, by what is shuffled together: see `shuffled_together`."""
    return [[trials[index] for index in group] for group in shuffled_together(trials) if group]


def seed_of(cell: TrialSpec, launch: int) -> int:
    """The seed of one launch. Each launch of a training is a training of its own, with other initial weights and
    another order of samples."""
    return cell.seed + (launch if cell.training else 0)
