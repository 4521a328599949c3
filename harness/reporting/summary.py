"""From results to cells: throughput, speed-up, overhead over a minimal loop.

A launch is the unit of replication. Its throughput is its total work divided by its total time, which is the harmonic
mean of its blocks' rates (Hoefler & Belli 2015, SC15, rules 3 and 4). A cell has the geometric mean of its launches,
with the interval that follows from them. All ratios are formed within rounds: harness/statistics/ratios.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.reporting import naming
from harness.reporting.cell_order import manifest_order
from harness.results import disagreeing
from harness.results.agreement import Disagreement
from harness.results.condition_rules import Difference
from harness.results.launch_kinds import Comparisons
from harness.results.pooling import Pool, pools
from harness.results.rates import block_steps, block_throughputs, counted_seconds, launch_throughput, over_bare_loop
from harness.results.rounds import speed_ratio
from harness.spec import FAILURES, TrialResult, TrialSpec
from harness.statistics.estimates import Estimate, of_launches
from harness.statistics.ratios import Ratio


@dataclass(frozen=True, kw_only=True)
class Cell:
    """All launches of one cell that were made under the same conditions, and what follows from them."""

    spec: TrialSpec
    launches: tuple[TrialResult, ...]
    apart: tuple[Difference, ...] = ()  # what distinguishes it from the first row of the same cell
    estimate: Estimate | None  # samples per second, over its successful launches or over the blocks of a single one
    over_single: Ratio | None = None  # its speed over that of the same framework's single
    single_throughput: float | None = None  # of that single
    weak: bool = False  # whether its global batch grew with its devices from that of single
    no_base: tuple[Difference, ...] = ()  # why the nearest single is no base for it
    apart_from_base: bool = False  # whether the two were never launched on the same machine
    over_best: Ratio | None = None  # its speed over that of the fastest single of all frameworks
    over_bare: Estimate | None = None  # of its launches: see over_bare_loop
    disagreement: Disagreement | None = None  # of its losses, with those of cells that take the same steps
    workload: str = ""  # its name, where the report has several workloads
    mixed: bool = False  # whether the report has trainings beside timed runs, or several input pipelines

    @property
    def throughputs(self) -> tuple[float, ...]:
        """Samples per second of each successful launch."""
        if self.estimate is None:
            return ()
        return self.estimate.values if self.estimate.of == "launches" else (self.estimate.value,)

    @property
    def throughput(self) -> float | None:
        """Samples per second: the geometric mean of the launches."""
        return self.estimate.value if self.estimate else None

    @property
    def speedup(self) -> float | None:
        """How many times as fast it is as the same framework's single."""
        return self.over_single.value if self.over_single else None

    @property
    def timed(self) -> list[TrialResult]:
        """The successful launches whose times count."""
        return [result for result in self.good if result.block_seconds] if self.estimate else []

    @property
    def blocks(self) -> list[list[float]]:
        """Seconds of the blocks of each timed launch."""
        return [counted_seconds(result) for result in self.timed]

    @property
    def block_steps(self) -> list[list[float]]:
        """Seconds per step of the blocks of each timed launch."""
        return [block_steps(result) for result in self.timed]

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
        """ "PyTorch ddp ×2": what tells it from all other cells of its report."""
        return self.named()

    def named(self, *, options: bool = True, workload: bool = True) -> str:
        """Its title, without its options or its workload where what stands around it says them."""
        chosen = f" ({self.options})" if options and self.options else ""
        qualifiers = naming.qualifiers(self.spec, workload=self.workload if workload else "", mixed=self.mixed)
        name = f"{naming.framework(self.first)} {self.spec.strategy}{chosen} {naming.on_devices(self.spec)}"
        return name + (f" ({qualifiers})" if qualifiers else "")

    @property
    def options(self) -> str:
        """What distinguishes it from other cells of its strategy: "split_size=20, versions torch 2.12.0"."""
        return ", ".join(filter(None, [naming.options(self.spec), self.conditions]))

    @property
    def conditions(self) -> str:
        """What distinguishes it from the first row of the same cell: "versions torch 2.12.0"."""
        return ", ".join(f"{difference.name} {difference.one}" for difference in self.apart)


def summarize(results: Sequence[TrialResult]) -> list[Cell]:
    """The cells, ordered by workload and then by framework and strategy as in the manifests."""
    cells = [_cell(pool) for pool in pools(results)]
    kinds = {(cell.spec.training.input, cell.spec.training.workers) if cell.spec.training else None for cell in cells}
    workloads = naming.workloads([cell.spec for cell in cells])
    cells = [replace(c, mixed=len(kinds) > 1, workload=workloads[c.spec.workload, c.spec.size]) for c in cells]
    wrong = disagreeing.find([cell.launches for cell in cells])
    cells = [_without_speed(cell, wrong[number]) if number in wrong else cell for number, cell in enumerate(cells)]
    singles = [cell for cell in cells if cell.estimate and cell.spec.strategy == "single" and not cell.spec.twin]
    bases: dict[tuple, list[Cell]] = {}
    for cell in singles:
        bases.setdefault(_question(cell.spec), []).append(cell)
    divided, ranked = Comparisons("divide"), Comparisons("rank")
    cells = [_over_single(cell, bases.get(_question(cell.spec), []), divided) for cell in cells]
    fastest = _Fastest(singles, ranked)
    cells = [_over_best(cell, fastest) for cell in cells]
    return sorted(cells, key=lambda cell: manifest_order(cell.spec))


def _cell(pool: Pool) -> Cell:
    good = [result for result in pool.launches if result.status == "ok" and result.block_seconds]
    return Cell(
        spec=pool.launches[0].spec,
        launches=pool.launches,
        apart=pool.apart,
        estimate=_estimate(good) if good else None,
        over_bare=_over_bare(good),
    )


def _estimate(launches: Sequence[TrialResult]) -> Estimate:
    """The geometric mean of the launches. A single launch shows how its blocks vary, which makes no interval."""
    throughputs = [launch_throughput(result) for result in launches]
    if len(throughputs) > 1:
        return of_launches(throughputs)
    return Estimate(value=throughputs[0], values=tuple(block_throughputs(launches[0])), of="blocks")


def _over_bare(launches: Sequence[TrialResult]) -> Estimate | None:
    found = tuple(ratio for result in launches if (ratio := over_bare_loop(result)) is not None)
    alone = Estimate(value=found[0], values=found, of="blocks") if found else None
    return of_launches(found) if len(found) > 1 else alone


def _without_speed(cell: Cell, disagreement: Disagreement) -> Cell:
    """A cell whose losses are wrong. Its launches keep their times; the cell has no speed and no rank."""
    return replace(cell, disagreement=disagreement, estimate=None, over_bare=None)


def _over_single(cell: Cell, singles: Sequence[Cell], comparisons: Comparisons) -> Cell:
    """The cell with its speed over that of a single that ran under the same conditions, or why there is none.

    `singles`: those among which a reader would look for it. A cell that trains differently has no such ratio at all.
    """
    if cell.estimate is None or not naming.same_training(cell.spec) or not singles:
        return cell
    base = min(singles, key=lambda single: len(comparisons.differences(cell.first, single.first)))
    if apart := comparisons.differences(cell.first, base.first):
        return replace(cell, no_base=tuple(apart))
    ratio = speed_ratio(cell.timed, base.timed)
    found = replace(cell, over_single=ratio, weak=_is_weak(cell, base), apart_from_base=ratio is None)
    return replace(found, single_throughput=base.throughput)


class _Fastest:
    """The fastest single of any framework and track for each cell that may be ranked with it."""

    def __init__(self, singles: Sequence[Cell], comparisons: Comparisons) -> None:
        self._comparisons = comparisons
        self._singles: dict[tuple, list[Cell]] = {}
        self._found: dict[tuple, Cell | None] = {}  # by task and kind: most cells of a report are of few kinds
        for single in sorted(singles, key=lambda single: -(single.throughput or 0)):
            self._singles.setdefault(_task(single.spec), []).append(single)

    def for_cell(self, cell: Cell) -> Cell | None:
        """None: no single may be ranked with this cell."""
        task = _task(cell.spec)
        key = (*task, self._comparisons.kind(cell.first))
        if key not in self._found:
            comparable = (
                single
                for single in self._singles.get(task, ())
                if not self._comparisons.differences(cell.first, single.first)
            )
            self._found[key] = next(comparable, None)
        return self._found[key]


def _over_best(cell: Cell, fastest: _Fastest) -> Cell:
    """The cell with its speed over that of the fastest single. A cell that trains differently has no such ratio."""
    if cell.estimate is None or not naming.same_training(cell.spec):
        return cell
    best = fastest.for_cell(cell)
    return replace(cell, over_best=speed_ratio(cell.timed, best.timed) if best else None)


def _is_weak(cell: Cell, base: Cell) -> bool:
    """Whether the cell's global batch grew with its devices."""
    return cell.spec.batch_growth == "per_device" and cell.spec.global_batch != base.spec.global_batch


def _question(spec: TrialSpec) -> tuple:
    """Where a reader would look for a cell's base: the same framework and track on the same workload."""
    return (spec.framework, *_task(spec), spec.track)


def _task(spec: TrialSpec) -> tuple:
    """What is trained and how it is timed."""
    return (spec.workload, spec.size, spec.precision, spec.protocol_name)
