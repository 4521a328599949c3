"""Launches that may share a row, because nothing that must match differs between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.results.condition_rules import Difference, differences
from harness.results.launch_kinds import Comparisons
from harness.spec import TrialResult


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Launches of one cell under the same conditions. `apart`: what distinguishes them from the cell's first pool."""

    launches: tuple[TrialResult, ...]
    apart: tuple[Difference, ...] = ()


def pools(results: Sequence[TrialResult]) -> list[Pool]:
    """All launches, by cell and conditions, in the order in which each cell comes first.

    A launch joins a pool if it matches all launches in it. Those that ended before their versions were known come last,
    so that they never bring together what differs.
    """
    comparisons = Comparisons("pool")
    cells: dict[str, list[list[TrialResult]]] = {}
    kinds: dict[int, dict[int, TrialResult]] = {}  # one launch of each kind in a pool, by the pool's identity
    for result in results:
        cells.setdefault(result.spec.cell, [])
    for result in sorted(results, key=lambda result: (not result.conditions.versions, not result.conditions.libraries)):
        found = cells[result.spec.cell]
        for launches in found:
            if not any(comparisons.differences(other, result) for other in kinds[id(launches)].values()):
                break
        else:
            launches: list[TrialResult] = []
            found.append(launches)
            kinds[id(launches)] = {}
        launches.append(result)
        kinds[id(launches)].setdefault(comparisons.kind(result), result)
    return [_pool(launches, found[0][0]) for found in cells.values() for launches in found]


def _pool(launches: Sequence[TrialResult], first: TrialResult) -> Pool:
    ordered = tuple(sorted(launches, key=lambda result: result.spec.launch))
    apart = () if launches[0] is first else tuple(differences(launches[0], first, purpose="pool"))
    return Pool(launches=ordered, apart=apart)
