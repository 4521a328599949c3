"""Launches that may share a row, because nothing that must match differs between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.results.condition_rules import Difference, differences
from harness.spec import TrialResult


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Launches of one cell under the same conditions. `apart`: what distinguishes them from the cell's first pool."""

    launches: tuple[TrialResult, ...]
    apart: tuple[Difference, ...] = ()


def pools(results: Sequence[TrialResult]) -> list[Pool]:
    """All launches, by cell and conditions, in the order in which each pool's first launch comes."""
    cells: dict[str, list[list[TrialResult]]] = {}
    for result in results:
        found = cells.setdefault(result.spec.cell, [])
        for launches in found:
            if not differences(launches[0], result, purpose="pool"):
                launches.append(result)
                break
        else:
            found.append([result])
    return [
        Pool(
            launches=tuple(sorted(launches, key=lambda result: result.spec.launch)),
            apart=tuple(differences(launches[0], found[0][0], purpose="pool")) if launches is not found[0] else (),
        )
        for found in cells.values()
        for launches in found
    ]
