"""What fits: cells that differ in their global batch alone, up to the one that is out of memory.

They are found in the results themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.reporting.figure_titles import title
from harness.reporting.formatting import with_interval
from harness.reporting.model import Figure
from harness.reporting.picture_data import Fits, FitsCurve, FitsPoint
from harness.reporting.summary import Cell
from harness.results.launch_kinds import Comparisons
from harness.results.rounds import speed_ratio
from harness.spec import FAILURES
from harness.statistics.ratios import Ratio
from harness.statistics.verdicts import judge


@dataclass(frozen=True, kw_only=True)
class BatchSweep:
    """A program at several global batches, the smallest first."""

    cells: tuple[Cell, ...]

    @property
    def name(self) -> str:
        """ "PyTorch pipeline (split_size=20) ×2": the title of its cells, without the batch."""
        return name(self.cells[0])

    @property
    def timed(self) -> list[Cell]:
        """The cells that have a throughput."""
        return [cell for cell in self.cells if cell.throughput is not None]

    @property
    def out_of_memory(self) -> int | None:
        """The smallest batch at which it ran out of memory; None if it never did."""
        return next((cell.spec.global_batch for cell in self.cells if _ran_out(cell)), None)

    @property
    def largest(self) -> int | None:
        """The largest batch at which no launch ran out of memory, and which was timed; None if there is none."""
        fitting = [cell for cell in self.timed if not _ran_out(cell)]
        return fitting[-1].spec.global_batch if fitting else None


def name(cell: Cell) -> str:
    """The title of a cell without its batch."""
    batch = f"global_batch={cell.spec.global_batch}"
    others = [option for option in cell.options.split(", ") if option not in ("", batch)]
    return cell.named(options=False) + (f" ({', '.join(others)})" if others else "")


def find(cells: Sequence[Cell]) -> list[BatchSweep]:
    """The sweeps of at least two batches, in the order of their first cells."""
    groups: dict[tuple, list[Cell]] = {}
    for cell in cells:
        spec = cell.spec
        if spec.training is None and not spec.twin:
            key = (spec.at_any_batch, spec.track, cell.conditions, cell.first.described.samples)
            groups.setdefault(key, []).append(cell)
    return [
        BatchSweep(cells=tuple(sorted(group, key=lambda cell: cell.spec.global_batch)))
        for group in groups.values()
        if len({cell.spec.global_batch for cell in group}) > 1
    ]


def answers(cells: Sequence[Cell]) -> list[Cell]:
    """The cells of sweeps that ran out of memory and failed in no other way. That is what their sweep asks for."""
    return [
        cell
        for swept in find(cells)
        for cell in swept.cells
        if cell.disagreement is None
        and {result.status for result in cell.launches if result.status in FAILURES} == {"oom"}
    ]


def failed(cells: Sequence[Cell]) -> list[Cell]:
    """The cells that failed, without those that only say what does not fit."""
    expected = {id(cell) for cell in answers(cells)}
    return [cell for cell in cells if cell.failed and id(cell) not in expected]


def _ran_out(cell: Cell) -> bool:
    return any(result.status == "oom" for result in cell.launches)


def sentences(sweeps: Sequence[BatchSweep]) -> list[str]:
    """What each program has room for. Nothing is said of one that failed in other ways at all batches."""
    found, fitted = [], []
    for swept in sweeps:
        largest, full = swept.largest, swept.out_of_memory
        if full is None and largest is None:
            continue
        if full is None:
            fitted.append((swept.name, largest))
            continue
        if largest is None:
            line = f"{swept.name} ran out of memory at the smallest batch that was tried, {full}."
        else:
            line = f"{swept.name} fits with a batch of {largest}, and ran out of memory at {full}."
        found.append(line)
    for batch in dict.fromkeys(largest for _, largest in fitted):
        names = ", ".join(name for name, largest in fitted if largest == batch)
        found.append(f"Not out of memory at the largest batch timed, {batch}: {names}.")
    return found


def over_one_device(sweeps: Sequence[BatchSweep]) -> list[str]:
    """How fast each program on several GPUs is over one GPU with the same batch, and from which batch on it is faster.

    CPU devices share cores, so nothing is said of them.
    """
    comparisons = Comparisons("divide")
    singles = [cell for swept in sweeps for cell in swept.timed if cell.spec.strategy == "single"]
    lines = []
    for swept in sweeps:
        if swept.cells[0].spec.devices == 1 or swept.cells[0].spec.platform == "cpu":
            continue
        ratios = {}
        for cell in swept.timed:
            alike = (one for one in singles if one.spec.global_batch == cell.spec.global_batch)
            base = next((one for one in alike if not comparisons.differences(cell.first, one.first)), None)
            if base is not None and (ratio := speed_ratio(cell.timed, base.timed)) is not None:
                ratios[cell.spec.global_batch] = ratio
        if len(ratios) > 1:
            listed = ", ".join(
                f"{with_interval(each.value, each.interval)} at {batch}" for batch, each in ratios.items()
            )
            lines.append(f"{swept.name} over one device with the same batch: {listed}. {_faster_from(ratios)}")
    return lines


def _faster_from(ratios: Mapping[int, Ratio]) -> str:
    """From which batch on a program is faster, where every larger one shows it, too. `ratios`: by batch, ascending."""
    if not all(ratio.degrees for ratio in ratios.values()):
        return "One launch of each shows no order."
    batches, verdicts = list(ratios), judge(list(ratios.values()))
    slower = [number for number, verdict in enumerate(verdicts) if verdict.outcome != "faster"]
    first = slower[-1] + 1 if slower else 0
    if first == len(batches):
        return f"It is not shown to be faster at {batches[-1]}."
    return f"It is faster from {batches[first]} on." if first else "It is faster at each of these batches."


def peak_bytes(cell: Cell) -> int | None:
    """The most memory that any successful launch took on its busiest device; None if nobody could tell."""
    return max((peak for result in cell.good for peak in result.peak_bytes), default=None)


def picture(file: str, sweeps: Sequence[BatchSweep]) -> Figure:
    """Peak memory against throughput, for sweeps of one workload."""
    curves = tuple(
        FitsCurve(label=swept.name, framework=swept.cells[0].spec.framework, full=swept.out_of_memory, points=points)
        for swept in sweeps
        if (points := _points(swept))
    )
    cells = [cell for swept in sweeps for cell in swept.cells]
    of_process = cells[0].spec.platform == "cpu"
    data = Fits(
        title=title(cells),
        unit=cells[0].first.unit,
        memory="resident memory of the largest process" if of_process else "memory of the busiest device",
        curves=curves,
    )
    caption = (
        f"Throughput of {cells[0].spec.workload} over its peak memory. The number at a point is the global batch; the "
        "memory is the most of any launch."
    )
    return Figure(file=file, caption=caption, data=data)


def _points(swept: BatchSweep) -> tuple[FitsPoint, ...]:
    return tuple(
        FitsPoint(global_batch=cell.spec.global_batch, peak_mebibytes=peak / 2**20, mean=cell.throughput)
        for cell in swept.timed
        if (peak := peak_bytes(cell)) and cell.throughput is not None
    )
