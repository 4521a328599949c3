"""Is what was measured steady? Tests of the blocks of a cell's launches for trends, changes and a common pattern.

A cell that is not steady is flagged. Nothing is left out of its mean: that would choose the blocks that one likes
(Barrett et al. 2017, Virtual Machine Warmup Blows Hot and Cold, OOPSLA).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from scipy.special import fdtrc

from harness.statistics.verdicts import SIGNIFICANCE, holm

LEAST_BLOCKS = 8
"""With fewer, no order of the blocks is improbable enough, among five launches."""
LEAST_CHANGE = 0.01  # smaller ones are of no practical interest, however significant
PERMUTATIONS = 20_000

Kind = Literal["trend", "change", "pattern"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Why a cell is not steady.

    "trend": the blocks of a launch get slower or faster. "change": from some block on they are. "pattern": all launches
    are slow and fast at the same blocks. `size`: how much, as a share of the mean, with its sign; of a pattern, the
    distance from its fastest to its slowest block. `launches`: by their index; for a pattern, all.
    """

    kind: Kind
    size: float
    launches: tuple[int, ...]


def findings(launches: Sequence[Sequence[float]]) -> list[Finding]:
    """All that is not steady in a cell. `launches[launch][block]`: seconds. Empty: nothing was found.

    Holm's method keeps false alarms of each kind of test below 5% per cell.
    """
    found = _alone("trend", launches) + _alone("change", launches)
    pattern = _pattern(launches)
    return found + ([pattern] if pattern else [])


def _alone(kind: Literal["trend", "change"], launches: Sequence[Sequence[float]]) -> list[Finding]:
    """What a test of single launches finds, or nothing."""
    judged = [(index, blocks) for index, blocks in enumerate(launches) if len(blocks) >= LEAST_BLOCKS]
    test = _trend if kind == "trend" else _change
    tested = [test(np.asarray(blocks, float)) for _, blocks in judged]
    adjusted = holm([p for p, _ in tested])
    hits = [
        (index, size)
        for (index, _), (_, size), p in zip(judged, tested, adjusted, strict=True)
        if p < SIGNIFICANCE and abs(size) >= LEAST_CHANGE
    ]
    if not hits:
        return []
    largest = max((size for _, size in hits), key=abs)
    return [Finding(kind=kind, size=largest, launches=tuple(index for index, _ in hits))]


def _trend(blocks: np.ndarray) -> tuple[float, float]:
    """The p-value of Mann-Kendall's test, and the change from the first to the last block by Sen's slope."""
    null = _null(len(blocks)).trend
    observed = abs(_kendall(_ranks(blocks)[None, :])[0])
    p = (1 + np.sum(null >= observed)) / (1 + len(null))
    first, second = np.triu_indices(len(blocks), 1)
    slope = np.median((blocks[second] - blocks[first]) / (second - first))
    return float(p), float(slope * (len(blocks) - 1) / blocks.mean())


def _change(blocks: np.ndarray) -> tuple[float, float]:
    """The p-value of Pettitt's test for a change of level, and the size of that change."""
    null = _null(len(blocks)).change
    sums = _pettitt(_ranks(blocks)[None, :])[0]
    at = int(np.argmax(np.abs(sums))) + 1
    p = (1 + np.sum(null >= np.abs(sums).max())) / (1 + len(null))
    return float(p), float((np.median(blocks[at:]) - np.median(blocks[:at])) / blocks.mean())


def _ranks(values: np.ndarray) -> np.ndarray:
    return np.argsort(np.argsort(values, kind="stable"), kind="stable").astype(float)


def _kendall(ranks: np.ndarray) -> np.ndarray:
    """Mann-Kendall's S of each row: later pairs that rise minus those that fall."""
    first, second = np.triu_indices(ranks.shape[1], 1)
    return np.sign(ranks[:, second] - ranks[:, first]).sum(axis=1)


def _pettitt(ranks: np.ndarray) -> np.ndarray:
    """Pettitt's U after each block but the last, of each row (Pettitt 1979, Applied Statistics 28)."""
    centred = ranks - (ranks.shape[1] - 1) / 2
    return 2 * np.cumsum(centred, axis=1)[:, :-1]


@dataclass(frozen=True)
class _Null:
    """Both statistics, without their sign, of many random orders."""

    trend: np.ndarray
    change: np.ndarray


@cache
def _null(blocks: int) -> _Null:
    orders = np.random.default_rng(0).permuted(np.tile(np.arange(blocks, dtype=float), (PERMUTATIONS, 1)), axis=1)
    return _Null(trend=np.abs(_kendall(orders)), change=np.abs(_pettitt(orders)).max(axis=1))


def _pattern(launches: Sequence[Sequence[float]]) -> Finding | None:
    """A pattern that launches have in common: two-way analysis of variance, by block and by launch."""
    blocks = min((len(launch) for launch in launches), default=0)
    if len(launches) < 2 or blocks < LEAST_BLOCKS:
        return None
    table = np.array([np.asarray(launch[:blocks], float) / statistics.fmean(launch[:blocks]) for launch in launches])
    of_index = table.mean(axis=0)
    rest = table - of_index
    between = len(table) * float(((of_index - 1) ** 2).sum()) / (blocks - 1)
    within = float((rest**2).sum()) / ((blocks - 1) * (len(table) - 1))
    size = float(of_index.max() - of_index.min())
    p = float(fdtrc(blocks - 1, (blocks - 1) * (len(table) - 1), between / within)) if within else 0.0
    if p >= SIGNIFICANCE or size < LEAST_CHANGE:
        return None
    return Finding(kind="pattern", size=size, launches=tuple(range(len(table))))
