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
from harness.results import rates
from harness.spec import FAILURES, TrialResult, TrialSpec, registry


@dataclass(frozen=True, kw_only=True)
class Cell:
    """All launches of one cell, and what follows from them. Throughput is in samples per second."""

    spec: TrialSpec
    launches: tuple[TrialResult, ...]
    throughputs: tuple[float, ...]  # one for each successful launch
    throughput: float | None
    low: float | None
    high: float | None
    spread_of: str  # "launches" or "blocks"
    speedup: float | None  # over the same framework's single
    same_machines: bool = True  # whether the cell and that single were launched on the same machines
    speedup_same_machines: float | None = None  # from the launches on machines that both were launched on
    over_bare: float | None = None  # see over_bare_loop
    mixed: bool = False  # whether the report has trainings beside timed runs, or several input pipelines

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
        """The status of a failed launch if there is any: one failure in ten launches is news."""
        return next((result.status for result in self.launches if result.status in FAILURES), self.first.status)

    @property
    def step_seconds(self) -> float | None:
        """The time of a step at the cell's throughput."""
        return None if self.throughput is None else self.spec.global_batch / self.throughput

    @property
    def title(self) -> str:
        """ "PyTorch ddp ×2", with the options that distinguish it from other cells."""
        options = f" ({naming.options(self.spec)})" if naming.options(self.spec) else ""
        return f"{self._strategy}{options} ×{self.spec.devices}{self._qualifiers}"

    @property
    def plain_title(self) -> str:
        """The title without options."""
        return f"{self._strategy} ×{self.spec.devices}{self._qualifiers}"

    @property
    def _strategy(self) -> str:
        return f"{naming.framework_title(self.spec.framework)} {self.spec.strategy}"

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
    groups: dict[str, list[TrialResult]] = {}
    for result in results:
        groups.setdefault(result.spec.cell, []).append(result)
    cells = [_cell(launches) for launches in groups.values()]
    kinds = {(cell.spec.training.input, cell.spec.training.workers) if cell.spec.training else None for cell in cells}
    cells = [replace(cell, mixed=len(kinds) > 1) for cell in cells]
    timed = [cell for cell in cells if cell.throughput is not None]  # a training may have strategy "single", too
    bases = {_base_key(cell.spec): cell for cell in timed if cell.spec.strategy == "single"}
    cells = [_with_speedup(cell, bases.get(_base_key(cell.spec))) for cell in cells]
    return sorted(cells, key=lambda cell: _order(cell.spec))


def _cell(launches: list[TrialResult]) -> Cell:
    launches = sorted(launches, key=lambda result: result.spec.launch)
    good = [result for result in launches if result.status == "ok" and result.block_seconds]
    throughputs = [launch_throughput(result) for result in good]
    spread = throughputs if len(throughputs) > 1 else block_throughputs(good[0]) if good else []
    return Cell(
        spec=launches[0].spec,
        launches=tuple(launches),
        throughputs=tuple(throughputs),
        throughput=statistics.median(throughputs) if throughputs else None,
        low=min(spread, default=None),
        high=max(spread, default=None),
        spread_of="launches" if len(throughputs) > 1 else "blocks",
        speedup=None,
        over_bare=over_bare_loop(good),
    )


def _with_speedup(cell: Cell, base: Cell | None) -> Cell:
    """The cell with its speed-up over `base`, unless it has none because it trains differently."""
    if cell.throughput is None or base is None or not naming.same_training(cell.spec):
        return cell
    assert base.throughput is not None, "summarize chooses bases among the timed cells"
    both = {machine_of(result) for result in cell.good} & {machine_of(result) for result in base.good}
    own, single = ([launch_throughput(r) for r in of.good if machine_of(r) in both] for of in (cell, base))
    return replace(
        cell,
        speedup=cell.throughput / base.throughput,
        same_machines=(len(own), len(single)) == (len(cell.good), len(base.good)),
        speedup_same_machines=statistics.median(own) / statistics.median(single) if both else None,
    )


def machine_of(result: TrialResult) -> tuple[str, ...]:
    """The numbers of its GPUs, which distinguish machines with equal hardware; () without GPUs."""
    return tuple(gpu.get("uuid", "") for gpu in result.machine.get("gpus") or ())


def _base_key(spec: TrialSpec) -> tuple:
    return (spec.framework, *spec.conditions)


def counted_seconds(result: TrialResult) -> list[float]:
    """Seconds of the blocks that count, each as long as its slowest rank took.

    With protocol from_host, a launch's first block does not count: it alone loads the libraries and kernels, which
    takes longer than its steps.
    """
    seconds = rates.slowest_rank(result.block_seconds)
    return seconds[1:] if result.spec.protocol == "from_host" and len(seconds) > 1 else seconds


def launch_throughput(result: TrialResult) -> float:
    """Samples per second of one launch: all its steps divided by all its time."""
    seconds = counted_seconds(result)
    steps = result.steps_per_block * len(seconds)
    return rates.throughput(global_batch=result.spec.global_batch, steps=steps, seconds=sum(seconds))


def block_throughputs(result: TrialResult) -> list[float]:
    """Samples per second of each block of one launch."""
    batch, steps = result.spec.global_batch, result.steps_per_block
    return [rates.throughput(global_batch=batch, steps=steps, seconds=seconds) for seconds in counted_seconds(result)]


def over_bare_loop(launches: Sequence[TrialResult]) -> float | None:
    """The time of the suite's blocks divided by that of a minimal loop over the same model.

    Each block is paired with the minimal loop's block of the same number; the result is the median over all pairs. None
    if there was no minimal loop.
    """
    ratios = []
    for result in launches:
        bare = rates.slowest_rank(result.bare_block_seconds)
        own = rates.slowest_rank(result.block_seconds)
        ratios += [ours / theirs for ours, theirs in zip(own, bare, strict=False)]
    return statistics.median(ratios) if ratios else None


def _order(spec: TrialSpec) -> tuple:
    """A key that sorts cells as the manifests do; what this installation does not know comes last."""
    names = list(registry.packages())
    framework = names.index(spec.framework) if spec.framework in names else len(names)
    known = (
        [strategy.name for strategy in registry.framework(spec.framework).strategies] if framework < len(names) else []
    )
    strategy = known.index(spec.strategy) if spec.strategy in known else len(known)
    numbers = tuple(value for _, value in sorted(spec.options.items()) if isinstance(value, int | float))
    return (
        spec.protocol != "resident", spec.workload, spec.size, framework, spec.framework, strategy, spec.strategy,
        spec.devices, spec.track, numbers, spec.cell,
    )  # fmt: skip
