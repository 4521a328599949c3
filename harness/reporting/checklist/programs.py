"""Requirements 11 to 15: what was trained, whether it is the same training, and what its speed is divided by."""

from __future__ import annotations

import math
from collections.abc import Hashable
from itertools import pairwise

from harness.reporting import loss_agreement, naming
from harness.reporting.checklist.answers import (
    Answer,
    judged,
    names,
    not_applicable,
    of_cells,
    recorded,
    together,
    unknown,
)
from harness.reporting.checklist.record import Record
from harness.reporting.formatting import at_most, conjunction, count
from harness.reporting.summary import Cell
from harness.reporting.training import to_target
from harness.spec import TrialResult
from harness.statistics.intervals import geometric_mean

FIRST_UPDATE = ("first update", "gradients")  # quantities of the gate's first step; records of schema 1 have the second
VOID = ("parity_failed", "diverged")
ROUNDING = 1e-9  # by which a recomputed rate may differ
OF_MEANS = 1e-3  # by which a ratio may differ from that of the two means beside it


def time_to_target(record: Record) -> Answer:
    """11. All trainings of a workload have the same target and the same number of samples between evaluations, which
    are on a clock of their own. A training that misses the target, or fails, takes infinitely long and stays in the
    record. A report without trainings says nothing about the time to a target."""
    cells = [cell for cell in record.trained if cell.spec.training and cell.spec.training.epochs]
    if not cells:  # or all with --epochs 0
        return not_applicable("no training: nothing is claimed about the time to a target")
    trained = [result for cell in cells for result in cell.launches if result.status != "skipped"]
    rules: dict[Hashable, set[Hashable]] = {}
    for result in trained:
        if result.spec.training is not None and result.epochs:
            workload, how = (result.spec.workload, result.spec.size), result.spec.training
            rules.setdefault(workload, set()).add((how.target_accuracy, _cadence(result)))
    if not rules:
        return unknown("no training has an epoch")
    different = sum(len(found) > 1 for found in rules.values())
    same = f"one target and cadence in {len(rules) - different} of {count(len(rules), 'workload')}"
    reached = sum(result.status == "ok" and math.isfinite(to_target(result)[0]) for result in trained)
    return together(
        judged(not different, same),
        judged(True, f"{reached} of {count(len(trained), 'training')} reached it, the others count as infinite"),
    )


def _cadence(result: TrialResult) -> int:
    """Samples from one evaluation to the next, the most."""
    return max((later.samples - before.samples for before, later in pairwise(result.epochs)), default=0)


def same_training(record: Record) -> Answer:
    """12. Every launch with a speed, and every training, was proved: the gate compared the first update and the later
    ones with the float64 reference. Timed losses were held against a reference, or against those of other cells that
    take the same steps. No launch of such a cell failed the gate or diverged."""
    unproved = [result for result in record.launches if not _proved(result)]
    proved = of_cells(record.cells_with(unproved), record.measured, "a float64 proof")
    errors = [check.error for result in record.launches if result.parity for check in result.parity.checks]
    worst = judged(True, f"worst relative error {at_most(max(errors))}" if errors else "")
    compared = {id(cell) for cell in loss_agreement.compared(record.cells)}
    alone = [cell for cell in record.timed if not cell.first.golden_losses and id(cell) not in compared]
    losses = of_cells(alone, record.timed, "timed losses that were compared") if record.timed else judged(True, "")
    inspected = [part for r in record.launches for rank in r.ranks for part in (rank.timing, rank.training) if part]
    checks = [check for part in inspected for check in part.checks]
    wrong = sum(not check.passed for check in checks)
    programs = "timed programs" if record.timed else "trainings"
    failed = judged(not wrong, f"{wrong} of {len(checks)} checks of {programs} failed" if checks else "")
    void = [cell for cell in record.measured if any(result.status in VOID for result in cell.launches)]
    beside = judged(
        not void, f"{'a speed' if record.timed else 'a training'} beside a void launch: {names(void)}" if void else ""
    )
    return together(proved, worst, losses, failed, beside)


def _proved(result: TrialResult) -> bool:
    found = result.parity
    return found is not None and found.passed and any(check.quantity in FIRST_UPDATE for check in found.checks)


def settings(record: Record) -> Answer:
    """13. The environment of the workers and the number formats of the running program are recorded for every launch,
    and all cells of a workload in one precision have matrix products in the same formats. For each framework with a
    tuned cell it is recorded what was tried to find the settings, and the search had the same budget of seconds in
    all of these frameworks."""
    bare = [result for result in record.launches if not result.conditions.environment]
    environment = recorded(record.cells_with(bare), record.measured, "variables of the workers")
    if not record.timed:
        return together(environment, _tuning(record))
    unread = [r for r in record.launches if any(t.formats is None or t.formats.unread for t in r.timings)]
    formats = recorded(record.cells_with(unread), record.timed, "number formats of the running program")
    kinds: dict[Hashable, dict[str, list[Cell]]] = {}
    for cell in record.timed:
        found = {name for r in cell.timed for t in r.timings if t.formats is not None for name in t.formats.products}
        if found:
            of_task = kinds.setdefault((cell.spec.workload, cell.spec.size, cell.spec.precision), {})
            of_task.setdefault(conjunction(sorted(found)), []).append(cell)
    mixed = [of_task for of_task in kinds.values() if len(of_task) > 1]
    told = "; ".join(
        f"matrix products in {words} in {count(len(cells), 'cell') if len(of_task) == 1 else names(cells)}"
        for of_task in mixed or kinds.values()
        for words, cells in of_task.items()
    )
    return together(environment, formats, judged(not mixed, told), _tuning(record))


def _tuning(record: Record) -> Answer:
    """Whether the frameworks with tuned cells were tuned with the same effort."""
    tuned = [result for result in record.launches if result.spec.track == "tuned"]
    if silent := [result for result in tuned if result.described.tuning is None]:
        cells = [cell for cell in record.measured if cell.spec.track == "tuned"]
        return recorded(record.cells_with(silent), cells, "how much tuning its framework got")
    efforts: dict[str, set[tuple[float, float]]] = {}
    for result in tuned:
        if (found := result.described.tuning) is not None:
            efforts.setdefault(naming.framework(result), set()).add((found.budget_seconds, found.spent_seconds))
    told = [
        f"{name} {' and '.join(f'{spent:.0f} of {budget:.0f}' for budget, spent in sorted(found))}"
        for name, found in efforts.items()
    ]
    equal = len({budget for found in efforts.values() for budget, _ in found}) <= 1
    return judged(equal, f"seconds of tuning on one device, spent of allowed: {', '.join(told)}" if told else "")


def base_case(record: Record) -> Answer:
    """14. Every cell on several devices that trains like one device is divided by `single` of its own framework and by
    the fastest `single` of all, both with speeds of their own. Strong and weak scaling stand apart. The bytes that
    cross devices in a step are recorded. Without such cells, and on CPU devices, nothing is claimed about scaling."""
    if record.on_cpu:
        return not_applicable("on CPU devices nothing is claimed about scaling")
    several = [cell for cell in record.timed if cell.spec.devices > 1 and naming.same_training(cell.spec)]
    if not several:
        return not_applicable("no cell on several devices trains like one: nothing is claimed about scaling")
    own = of_cells([cell for cell in several if cell.over_single is None], several, "a base in the same framework")
    best = of_cells([cell for cell in several if cell.over_best is None], several, "the fastest base of all")
    unread = [cell for cell in several if not any(t.crossed is not None for r in cell.timed for t in r.timings)]
    bytes_known = recorded(unread, several, "bytes between devices")
    based = [cell for cell in several if cell.over_single is not None]
    weak = sum(cell.weak for cell in based)
    return together(own, best, bytes_known, judged(True, f"{len(based) - weak} strong, {weak} weak"))


def means(record: Record) -> Answer:
    """15. Recomputed from the raw blocks: each launch's rate is all its samples divided by all its time, and each speed
    is the geometric mean of these rates. Each ratio of the verdict is that of the two speeds beside it, within 0.1%; it
    is not if rounds count in one of them alone."""
    wrong = [cell for cell in record.timed if not _is_recomputed(cell)]
    rates = of_cells(wrong, record.timed, "total work over total time")
    off = {
        f"{group.best.title} and {other.title}": distance
        for group, other, verdict in record.comparisons
        if verdict is not None and (distance := _off(verdict.ratio.value, group.best, other)) > OF_MEANS
    }
    told = "every ratio is that of the means beside it"
    if off:
        told = f"{count(len(off), 'ratio')} not of the means beside it"
        worst = max(off, key=lambda name: off[name])
        told += f", worst: {worst}, by {100 * off[worst]:.3g}%"
    return together(rates, judged(not off, told if off or record.comparisons else ""))


def _is_recomputed(cell: Cell) -> bool:
    samples = cell.spec.global_batch
    rates = []
    for result in cell.timed:
        blocks = [max(of_ranks) for of_ranks in zip(*result.block_seconds, strict=True)]
        blocks = blocks[1:] if result.spec.protocol == "from_host" and len(blocks) > 1 else blocks
        rates.append(samples * result.steps_per_block * len(blocks) / math.fsum(blocks))
    told = cell.throughputs
    return (
        len(rates) == len(told)
        and all(math.isclose(rate, each, rel_tol=ROUNDING) for rate, each in zip(rates, told, strict=True))
        and math.isclose(geometric_mean(rates), cell.throughput or 0.0, rel_tol=ROUNDING)
    )


def _off(ratio: float, one: Cell, other: Cell) -> float:
    """How far a ratio is from that of two cells' speeds, relative."""
    if not one.throughput or not other.throughput:
        return math.inf
    return abs(ratio / (one.throughput / other.throughput) - 1)
