"""Requirements 1 to 5: what is repeated, which intervals follow from it, and how cells are compared."""

from __future__ import annotations

import math
from collections import Counter

from harness.planning.presets import COLD_SHARE, PRESETS
from harness.reporting.checklist.answers import Answer, judged, names, not_applicable, of_cells, together, unknown
from harness.reporting.checklist.record import Record
from harness.reporting.formatting import count, from_to, number
from harness.reporting.summary import Cell
from harness.statistics.ratios import Ratio
from harness.statistics.variance import Variance, best_blocks, components
from harness.statistics.verdicts import LEAST_MARGIN

LEAST_LAUNCHES = PRESETS["standard"]["launches"]


def replication(record: Record) -> Answer:
    """1. Every cell with a speed has at least 5 launches, 10 if the preset is `paper`. Of each cell's launches, 60%
    compiled anew: their compile cache gained files, or they compile nothing that a cache keeps."""
    counts = [len(cell.timed) for cell in record.timed]
    preset = "paper" if any(result.run.preset == "paper" for result in record.launches) else "standard"
    least = PRESETS[preset]["launches"]
    enough = judged(
        min(counts) >= least,
        f"{from_to(counts)} {'launch' if max(counts) == 1 else 'launches'} in each of {count(len(counts), 'cell')}; "
        f"{least} are asked for",
    )
    if silent := record.cells_with([result for result in record.launches if not result.compile_cache]):
        return together(enough, unknown(f"whether launches compiled anew is not recorded in {names(silent)}"))
    anew = [(sum(result.compile_cache != "warm" for result in cell.timed), len(cell.timed)) for cell in record.timed]
    fewest, of = min(anew, key=lambda each: each[0] / each[1])
    said = f"in every cell, at least {fewest} of {of} launches compiled anew"
    return together(enough, judged(fewest >= COLD_SHARE * of, said))


def intervals(record: Record) -> Answer:
    """2. Every speed has a finite 95% interval by Student's t from at least 5 launches, and every claimed order or tie
    is from at least 5 pairs of launches, or without pairs from 5 launches of each cell."""
    wanting = [cell for cell in record.timed if len(cell.throughputs) < LEAST_LAUNCHES or _half_width(cell) is None]
    counts = from_to([len(cell.throughputs) for cell in record.timed])
    widest = max((width for cell in record.timed if (width := _half_width(cell)) is not None), default=None)
    means = of_cells(wanting, record.timed, f"t intervals from at least {LEAST_LAUNCHES} launches")
    reach = judged(True, f"n = {counts}" + ("" if widest is None else f", the widest interval {_written(widest)}"))
    few = [
        f"{group.best.title} and {other.title}"
        for group, other, verdict in record.claims
        if _replicates(verdict.ratio, group.best, other) < LEAST_LAUNCHES
    ]
    claims = count(len(record.claims), "claimed order or tie", "claimed orders and ties")
    claimed = f"{len(few)} of {claims} rest on fewer"
    return together(means, reach, judged(not few, claimed if record.claims else "no order or tie is claimed"))


def _written(half_width: float) -> str:
    """Half of an interval, as a share of its middle; where that is more than all of it, as a factor."""
    return f"±{100 * half_width:.3g}%" if half_width < 1 else f"up to {1 + half_width:.3g} times the mean"


def _half_width(cell: Cell) -> float | None:
    """The larger half of the interval of a cell's speed, as a share of the speed; None without a finite one."""
    found = cell.estimate.interval if cell.estimate else None
    if found is None or not cell.throughput or not math.isfinite(found.high):
        return None
    return max(found.high / cell.throughput - 1, 1 - found.low / cell.throughput)


def _replicates(ratio: Ratio, one: Cell, other: Cell) -> int:
    return ratio.pairs or min(len(one.timed), len(other.timed))


def variance(record: Record) -> Answer:
    """3. Both levels of variance, between launches and within a launch, are known for every cell. And what was repeated
    is what had to be: the variance between launches is at least what the blocks contribute to that of a launch, or the
    interval is within 1% anyway. Whether a pilot came before the run is not in its record: this judges what a pilot
    with its variances would have chosen (Kalibera & Jones 2013)."""
    found = [(cell, components(cell.block_steps)) for cell in record.timed]
    unknown_levels = [cell for cell, each in found if each.between is None or each.within is None]
    if unknown_levels:
        return of_cells(unknown_levels, record.timed, "both levels of variance are known")
    wrong = [cell for cell, each in found if not (_launches_vary(cell, each) or _narrow(cell))]
    limit = f"±{100 * LEAST_MARGIN:g}%"
    said = f"launches vary as much as their blocks explain, or the interval is within {limit},"
    where = of_cells(wrong, record.timed, said)
    widths = [(width, cell) for cell in wrong if (width := _half_width(cell)) is not None]
    width, at = max(widths, key=lambda each: each[0], default=(0.0, None))
    widest = judged(True, f"the widest interval of these is {_written(width)}, {at.title}" if at else "")
    best = [blocks for cell, each in found if (blocks := _best_blocks(cell, each)) is not None]
    told = f"by the costs of both, {from_to(best)} blocks in a launch would be best" if best else ""
    return together(where, widest, judged(True, told))


def _launches_vary(cell: Cell, found: Variance) -> bool:
    blocks = min(map(len, cell.blocks))
    return (found.between or 0.0) ** 2 >= (found.within or 0.0) ** 2 / blocks


def _narrow(cell: Cell) -> bool:
    width = _half_width(cell)
    return width is not None and width <= LEAST_MARGIN


def _best_blocks(cell: Cell, found: Variance) -> int | None:
    """How many blocks a launch should have, by the costs of both; None if these are not recorded."""
    walls = [result.wall_seconds for result in cell.timed if result.wall_seconds is not None]
    if len(walls) < len(cell.timed):
        return None
    blocks = [seconds for launch in cell.blocks for seconds in launch]
    beside = (sum(walls) - sum(blocks)) / len(walls)
    return best_blocks(found, launch_cost=beside, block_cost=sum(blocks) / len(blocks)) if beside > 0 else None


def comparisons(record: Record) -> Answer:
    """4. Every comparison of the verdict and every scaling is a ratio within at least two rounds, with an interval of
    its logarithm. p is adjusted by Holm's method over all pairs that could have been compared. An order is claimed
    beyond the margin alone, and a tie within it: 1%, or twice the A/A floor. A report that compares no speeds claims
    nothing of the kind, and one of CPU devices compares none."""
    if record.on_cpu:
        return not_applicable("on CPU devices the verdict compares no speeds")
    verdicts = [verdict for _, _, verdict in record.comparisons]
    scalings = [cell for cell in record.timed if cell.spec.devices > 1 and (cell.over_single or cell.apart_from_base)]
    ratios = [verdict and verdict.ratio for verdict in verdicts] + [cell.over_single for cell in scalings]
    if not ratios:
        return not_applicable("no cell is compared with another")
    never = sum(ratio is None for ratio in ratios)
    unpaired = sum(ratio is not None and not ratio.pairs for ratio in ratios)
    single = sum(ratio is not None and ratio.pairs == 1 for ratio in ratios)
    kinds = Counter(verdict.outcome for verdict in verdicts if verdict is not None)
    outcomes = ", ".join(f"{number} {outcome}" for outcome, number in sorted(kinds.items()))
    within = [ratio for ratio in ratios if ratio is not None and ratio.pairs > 1]
    family = sum(group.pairs for group in record.groups)
    margins = sorted({group.margin for group in record.groups if len(group.cells) > 1})
    figures = [
        f"{len(within)} of {count(len(ratios), 'ratio')} within rounds",
        f"{unpaired} without pairs" if unpaired else "",
        f"{single} from one round alone" if single else "",
        f"{never} never launched on the same machine" if never else "",
        f"Holm over {count(family, 'pair')}: {outcomes}" if kinds else "",
        f"{count(len(record.pairs), 'A/A pair')}" if record.pairs else "",
        f"margin {' and '.join(f'{number(100 * margin)}%' for margin in margins)}" if margins else "",
    ]
    return judged(len(within) == len(ratios), "; ".join(filter(None, figures)))
