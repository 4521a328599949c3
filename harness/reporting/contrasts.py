"""Which cells of a report are compared with each other, and what each comparison shows.

Cells are ranked only if they differ in nothing but framework and strategy: not in what is trained, the track, the
devices, the settings, the samples that share BatchNorm statistics, or the algorithm. In each such group, the fastest
cell is compared with each of the others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.reporting import naming
from harness.reporting.summary import Cell
from harness.results.launch_kinds import Comparisons
from harness.results.rounds import speed_ratio
from harness.spec import TrialSpec
from harness.statistics.ratios import Ratio
from harness.statistics.verdicts import Verdict, floor_of, judge, practical_margin


@dataclass(frozen=True, kw_only=True)
class Twins:
    """Two cells that are one program: the true ratio of their speeds is 1. `ratio` is the measured one."""

    one: Cell
    other: Cell
    ratio: Ratio


@dataclass(frozen=True, kw_only=True)
class Group:
    """Cells that may be ranked, the fastest first, and the verdict of the fastest over each of the others. The fastest
    variant of a strategy stands for it.

    A verdict is None where the two were never launched on the same machine.
    """

    cells: tuple[Cell, ...]
    verdicts: tuple[Verdict | None, ...]
    margin: float  # within which a difference is a tie
    pairs: int  # of cells among which the fastest was found, variants included

    @property
    def best(self) -> Cell:
        return self.cells[0]


def twins(cells: Sequence[Cell]) -> list[Twins]:
    """All A/A pairs of a report: cells that are one program (TrialSpec.program) and ran under the same conditions."""
    programs: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.estimate is not None:
            programs.setdefault(repr((cell.spec.program, cell.conditions)), []).append(cell)
    pairs = (pair for alike in programs.values() for pair in itertools.combinations(alike, 2))
    return [found for one, other in pairs if (found := _pair(one, other))]


def _pair(one: Cell, other: Cell) -> Twins | None:
    ratio = speed_ratio(one.timed, other.timed)
    return Twins(one=one, other=other, ratio=ratio) if ratio and ratio.pairs else None


def margin_of(cells: Sequence[Cell], pairs: Sequence[Twins]) -> float:
    """The margin within which cells of one workload tie: see practical_margin. `pairs`: of the report."""
    workload = _workload(cells[0].spec)
    floors = [floor_of(pair.ratio) for pair in pairs if _workload(pair.one.spec) == workload]
    return practical_margin(max((floor for floor in floors if floor is not None), default=None))


def _workload(spec: TrialSpec) -> tuple[str, str]:
    return (spec.workload, spec.size)


def groups(cells: Sequence[Cell], pairs: Sequence[Twins]) -> list[Group]:
    """The cells that may be ranked, in groups. All contrasts of a report are judged together."""
    ranked = [sorted(group, key=lambda cell: -(cell.throughput or 0)) for group in _ranked_together(cells)]
    ordered = [_fastest_variants(group) for group in ranked]
    margins = [margin_of(group, pairs) for group in ordered]
    ratios = [[speed_ratio(group[0].timed, other.timed) for other in group[1:]] for group in ordered]
    pairs_in = [math.comb(len(group), 2) for group in ranked]
    verdicts = iter(_judged(ratios, margins, sum(pairs_in)))
    return [
        Group(
            cells=tuple(group),
            verdicts=tuple(next(verdicts) if ratio else None for ratio in of_group),
            margin=margin,
            pairs=number,
        )
        for number, group, of_group, margin in zip(pairs_in, ordered, ratios, margins, strict=True)
    ]


def _fastest_variants(ranked: Sequence[Cell]) -> list[Cell]:
    """Of the variants of a strategy, as a sweep has them, the fastest. `ranked`: cells, the fastest first."""
    found: dict[tuple[str, str], Cell] = {}
    for cell in ranked:
        found.setdefault((cell.spec.framework, cell.spec.strategy), cell)
    return list(found.values())


def _judged(ratios: Sequence[Sequence[Ratio | None]], margins: Sequence[float], family: int) -> Iterator[Verdict]:
    """The verdict of each ratio that there is, in order, with Holm's adjustment over all pairs of all groups."""
    known = [(ratio, margin) for group, margin in zip(ratios, margins, strict=True) for ratio in group if ratio]
    all_ratios = [ratio for ratio, _ in known]
    by_margin = {
        margin: iter(judge(all_ratios, margin=margin, family=family)) for margin in {each for _, each in known}
    }
    for _, margin in known:
        of_all = {each: next(verdicts) for each, verdicts in by_margin.items()}
        yield of_all[margin]


def _ranked_together(cells: Sequence[Cell]) -> list[list[Cell]]:
    """The cells that have a speed and train alike, in groups that ran under the same conditions."""
    comparisons = Comparisons("rank")
    found: dict[tuple, list[dict[int, list[Cell]]]] = {}  # by question: groups, each by the kind of a cell's launches
    for cell in cells:
        if cell.estimate is None or not naming.same_training(cell.spec) or cell.spec.protocol != "resident":
            continue
        if cell.spec.twin:
            continue
        groups_of_question = found.setdefault(_question(cell), [])
        for group in groups_of_question:
            if not any(comparisons.differences(cell.first, alike[0].first) for alike in group.values()):
                break
        else:
            group: dict[int, list[Cell]] = {}
            groups_of_question.append(group)
        group.setdefault(comparisons.kind(cell.first), []).append(cell)
    ranked = [group for of_question in found.values() for group in of_question]
    return [[cell for alike in group.values() for cell in alike] for group in ranked]


def _question(cell: Cell) -> tuple:
    """What cells must share for their difference to be one of framework and strategy alone."""
    spec = cell.spec
    normalized = naming.normalized_over(cell.first)
    how = (spec.track, spec.devices, spec.hosts, normalized, spec.steps_per_call, spec.tolerances)
    return (*how, repr(sorted(spec.chosen_settings.items())))
