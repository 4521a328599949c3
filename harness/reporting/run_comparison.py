"""Two runs, cell by cell: how many times as fast the second run is as the first, and what else differs between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.reporting.summary import Cell, summarize
from harness.results.condition_rules import Difference, differences
from harness.results.rates import launch_throughput
from harness.results.rounds import Launches, comparable, launched_in, speed_ratio
from harness.spec import TrialResult
from harness.statistics.intervals import geometric_mean
from harness.statistics.ratios import Ratio, unpaired
from harness.statistics.verdicts import Verdict, judge


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One cell that has a speed in both runs. `verdict`: of the speed in B divided by that in A."""

    before: Cell  # in A
    after: Cell  # in B
    divided: tuple[Launches, Launches]  # the launches of A and of B whose speeds were divided
    verdict: Verdict
    one_hold: bool  # whether these were made on the same machine, in one uninterrupted use
    differs: tuple[Difference, ...]  # conditions that must match to pool launches: A's value, then B's
    mismatches: tuple[Difference, ...]  # those among them that must match to divide two speeds

    @property
    def ratio(self) -> Ratio:
        """The speed in B divided by that in A."""
        return self.verdict.ratio

    @property
    def throughputs(self) -> tuple[list[float], list[float]]:
        """Samples per second of the launches of A and of B."""
        before, after = ([launch_throughput(result) for result in side] for side in self.divided)
        return before, after

    @property
    def speeds(self) -> tuple[float, float]:
        """Samples per second in A and in B: geometric means, whose ratio is the ratio."""
        before, after = map(geometric_mean, self.throughputs)
        return before, after

    @property
    def left_out(self) -> int:
        """How many timed launches of A and B were not divided, because the other run has none in their hold."""
        return len(self.before.timed) + len(self.after.timed) - sum(map(len, self.divided))

    def slower_than(self, bound: float) -> bool:
        """Whether the whole 95% interval of the ratio lies below `bound`. A single launch has none."""
        return self.ratio.tested is not None and self.ratio.tested.high < bound


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two runs. Of a cell that has rows of several conditions, each row of B is compared with the most similar one of
    A."""

    cells: tuple[Compared, ...]
    speedless: tuple[tuple[Cell, Cell], ...]  # in both runs, but without a speed in one of them
    only_before: tuple[Cell, ...]
    only_after: tuple[Cell, ...]

    @property
    def broken(self) -> tuple[Cell, ...]:
        """The cells of B that failed, or whose losses are wrong, though they have a speed in A."""
        return tuple(after for before, after in self.speedless if before.timed and after.failed)


def compare(before: Sequence[TrialResult], after: Sequence[TrialResult]) -> Comparison:
    """Compare the cells that two runs have in common."""
    ours, theirs = summarize(before), summarize(after)
    names = [{cell.spec.cell for cell in side} for side in (ours, theirs)]
    pairs = [(_most_similar(cell, ours), cell) for cell in theirs if cell.spec.cell in names[0]]
    both = [(a, b) for a, b in pairs if a.timed and b.timed]
    divided = [_divided(a.timed, b.timed) for a, b in both]
    verdicts = judge([_ratio(*each) for each in divided])
    return Comparison(
        cells=tuple(
            _compared(a, b, launches, verdict)
            for (a, b), launches, verdict in zip(both, divided, verdicts, strict=True)
        ),
        speedless=tuple((a, b) for a, b in pairs if not (a.timed and b.timed)),
        only_before=tuple(cell for cell in ours if cell.spec.cell not in names[1]),
        only_after=tuple(cell for cell in theirs if cell.spec.cell not in names[0]),
    )


def _most_similar(cell: Cell, others: Sequence[Cell]) -> Cell:
    """The row of the same cell whose conditions differ least."""
    same = [other for other in others if other.spec.cell == cell.spec.cell]
    return min(same, key=lambda other: len(differences(other.first, cell.first, purpose="pool")))


def _divided(before: Launches, after: Launches) -> tuple[Launches, Launches]:
    """The launches of two cells whose speeds are divided: all, if they have no hold in common. Then the ratio is also
    one of machines."""
    ours, theirs = comparable(before, after)
    return (ours, theirs) if ours else (before, after)


def _ratio(before: Launches, after: Launches) -> Ratio:
    """B's speed over A's."""
    ratio = speed_ratio(after, before)
    return ratio or unpaired(*([launch_throughput(result) for result in side] for side in (after, before)))


def _compared(before: Cell, after: Cell, divided: tuple[Launches, Launches], verdict: Verdict) -> Compared:
    holds = [{launched_in(result) for result in side} for side in divided]
    return Compared(
        before=before,
        after=after,
        divided=divided,
        verdict=verdict,
        one_hold=holds[0] == holds[1],
        differs=tuple(differences(before.first, after.first, purpose="pool")),
        mismatches=tuple(differences(before.first, after.first, purpose="divide")),
    )
