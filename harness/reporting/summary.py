"""From results to cells: throughput, range, speed-up, overhead over a minimal loop.

A launch is the unit of replication. Its throughput is its total work divided by its total time, which is the harmonic
mean of its blocks' rates (Hoefler & Belli 2015, SC15, rules 3 and 4). A cell shows the median of its launches and their
range. With a single launch, the range is that of its blocks, and the report says so.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.reporting import naming
from harness.reporting.cell_order import manifest_order
from harness.results import disagreeing
from harness.results.agreement import Disagreement
from harness.results.comparison import Estimate, by_median
from harness.results.condition_rules import Difference
from harness.results.launch_kinds import Comparisons
from harness.results.pooling import Pool, pools
from harness.results.rates import block_throughputs, launch_throughput, slowest_rank
from harness.spec import FAILURES, TrialResult, TrialSpec


@dataclass(frozen=True, kw_only=True)
class Cell:
    """All launches of one cell that were made under the same conditions, and what follows from them."""

    spec: TrialSpec
    launches: tuple[TrialResult, ...]
    apart: tuple[Difference, ...] = ()  # what distinguishes it from the first row of the same cell
    estimate: Estimate | None  # samples per second, over its successful launches or over the blocks of a single one
    speedup: float | None = None  # over the same framework's single
    no_base: tuple[Difference, ...] = ()  # why the nearest single is no base for it
    same_machines: bool = True  # whether the cell and that single were launched on the same machines
    speedup_same_machines: float | None = None  # from the launches on machines that both were launched on
    over_bare: float | None = None  # see over_bare_loop
    disagreement: Disagreement | None = None  # of its losses, with those of cells that take the same steps
    mixed: bool = False  # whether the report has trainings beside timed runs, or several input pipelines

    @property
    def throughputs(self) -> tuple[float, ...]:
        """Samples per second of each successful launch."""
        if self.estimate is None:
            return ()
        return self.estimate.values if self.estimate.of == "launches" else (self.estimate.value,)

    @property
    def throughput(self) -> float | None:
        """Samples per second: the median launch."""
        return self.estimate.value if self.estimate else None

    @property
    def low(self) -> float | None:
        return self.estimate.low if self.estimate else None

    @property
    def high(self) -> float | None:
        return self.estimate.high if self.estimate else None

    @property
    def spread_of(self) -> str:
        """What the range is taken over: "launches" or "blocks"."""
        return self.estimate.of if self.estimate else "blocks"

    @property
    def good(self) -> list[TrialResult]:
        """The successful launches."""
        return [result for result in self.launches if result.status == "ok"]

    @property
    def first(self) -> TrialResult:
        """The launch that represents the cell: a successful one if there is any."""
        return next(iter(self.good), self.launches[0])

    @property
    def status(self) -> str:
        """The status of a failed launch if there is any: one failure in ten launches is news.

        "disagrees": all launches ended well, but their losses are not those of the cells that take the same steps.
        """
        if self.disagreement:
            return "disagrees"
        return next((result.status for result in self.launches if result.status in FAILURES), self.first.status)

    @property
    def failed(self) -> bool:
        """Whether a launch failed, or the timed losses are wrong."""
        return self.status in (*FAILURES, "disagrees")

    @property
    def step_seconds(self) -> float | None:
        """The time of a step at the cell's throughput."""
        return None if self.throughput is None else self.spec.global_batch / self.throughput

    @property
    def title(self) -> str:
        """ "PyTorch ddp ×2", with the options that distinguish it from other cells."""
        options = f" ({self.options})" if self.options else ""
        return f"{self._strategy}{options} ×{self.spec.devices}{self._qualifiers}"

    @property
    def options(self) -> str:
        """What distinguishes it from other cells of its strategy: "split_size=20, versions torch 2.12.0"."""
        return ", ".join(filter(None, [naming.options(self.spec), self.conditions]))

    @property
    def conditions(self) -> str:
        """What distinguishes it from the first row of the same cell: "versions torch 2.12.0"."""
        return ", ".join(f"{difference.name} {difference.one}" for difference in self.apart)

    @property
    def plain_title(self) -> str:
        """The title without options."""
        return f"{self._strategy} ×{self.spec.devices}{self._qualifiers}"

    @property
    def _strategy(self) -> str:
        return f"{naming.framework(self.first)} {self.spec.strategy}"

    @property
    def _qualifiers(self) -> str:
        """ " (tuned)", " (trained from a loader with 2 workers)": the track, and the training in a mixed report."""
        training = self.spec.training
        found = ["tuned"] if self.spec.track == "tuned" else []
        if training is not None and self.mixed:
            loader = f" from a loader with {training.workers} workers" if training.input == "loader" else ""
            found.append(f"trained{loader}")
        return f" ({', '.join(found)})" if found else ""


def summarize(results: Sequence[TrialResult]) -> list[Cell]:
    """The cells, ordered by workload and then by framework and strategy as in the manifests."""
    cells = [_cell(pool) for pool in pools(results)]
    kinds = {(cell.spec.training.input, cell.spec.training.workers) if cell.spec.training else None for cell in cells}
    cells = [replace(cell, mixed=len(kinds) > 1) for cell in cells]
    wrong = disagreeing.find([cell.launches for cell in cells])
    cells = [_without_speed(cell, wrong[number]) if number in wrong else cell for number, cell in enumerate(cells)]
    singles = [cell for cell in cells if cell.estimate is not None and cell.spec.strategy == "single"]
    singles = [cell for cell in singles if not cell.spec.twin]
    bases: dict[tuple, list[Cell]] = {}
    for cell in singles:
        bases.setdefault(_question(cell.spec), []).append(cell)
    comparisons = Comparisons("divide")
    cells = [_with_speedup(cell, bases.get(_question(cell.spec), []), comparisons) for cell in cells]
    return sorted(cells, key=lambda cell: manifest_order(cell.spec))


def _cell(pool: Pool) -> Cell:
    good = [result for result in pool.launches if result.status == "ok" and result.block_seconds]
    return Cell(
        spec=pool.launches[0].spec,
        launches=pool.launches,
        apart=pool.apart,
        estimate=_estimate(good) if good else None,
        over_bare=over_bare_loop(good),
    )


def _estimate(launches: Sequence[TrialResult]) -> Estimate:
    """The median launch. The range of a single launch is that of its blocks."""
    throughputs = [launch_throughput(result) for result in launches]
    if len(throughputs) > 1:
        return by_median(throughputs, of="launches")
    return Estimate(value=throughputs[0], values=tuple(block_throughputs(launches[0])), of="blocks")


def _without_speed(cell: Cell, disagreement: Disagreement) -> Cell:
    """A cell whose losses are wrong. Its launches keep their times; the cell has no speed and no rank."""
    return replace(cell, disagreement=disagreement, estimate=None, over_bare=None)


def _with_speedup(cell: Cell, singles: Sequence[Cell], comparisons: Comparisons) -> Cell:
    """The cell with its speed-up over a single that ran under the same conditions, or why there is none.

    `singles`: those among which a reader would look for it. A cell that trains differently has no speed-up at all.
    """
    if cell.estimate is None or not naming.same_training(cell.spec) or not singles:
        return cell
    base = min(singles, key=lambda single: len(comparisons.differences(cell.first, single.first)))
    if apart := comparisons.differences(cell.first, base.first):
        return replace(cell, no_base=tuple(apart))
    assert base.estimate is not None, "summarize chooses bases among the timed cells"
    both = {machine_of(result) for result in cell.good} & {machine_of(result) for result in base.good}
    ours, theirs = ([launch_throughput(r) for r in of.good if machine_of(r) in both] for of in (cell, base))
    return replace(
        cell,
        speedup=cell.estimate.value / base.estimate.value,
        same_machines=(len(ours), len(theirs)) == (len(cell.good), len(base.good)),
        speedup_same_machines=statistics.median(ours) / statistics.median(theirs) if both else None,
    )


def _question(spec: TrialSpec) -> tuple:
    """Where a reader would look for a cell's base: the same framework on the same workload and track."""
    return (spec.framework, spec.workload, spec.size, spec.track, spec.precision, spec.protocol_name)


def machine_of(result: TrialResult) -> tuple[str, ...]:
    """The numbers of its GPUs, which distinguish machines with equal hardware; () without GPUs."""
    return result.conditions.hardware.uuids


def over_bare_loop(launches: Sequence[TrialResult]) -> float | None:
    """The time of the suite's blocks divided by that of a minimal loop over the same model.

    Each block is paired with the minimal loop's block of the same number; the result is the median over all pairs. None
    if there was no minimal loop.
    """
    ratios = []
    for result in launches:
        bare = slowest_rank(result.bare_block_seconds)
        own = slowest_rank(result.block_seconds)
        ratios += [ours / theirs for ours, theirs in zip(own, bare, strict=False)]
    return statistics.median(ratios) if ratios else None
