"""The verdict of a report: what the run showed, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from harness.reporting import descriptions, disturbed_launches, loss_agreement, naming, training, tutorial
from harness.reporting.formatting import at_most, count, from_to, number
from harness.reporting.summary import Cell
from harness.results.comparison import MIN_LAUNCHES, UNSTABLE, rank
from harness.results.launch_kinds import Comparisons
from harness.spec import FAILURES, Parity, TrialResult, optimizers

CPU_NOTE = (
    "These are virtual CPU devices, parts of one processor. They exist so that the gate can run without GPUs. Their "
    "speeds say nothing about GPUs, or about which framework or strategy is faster."
)


def sentences(cells: Sequence[Cell], results: Sequence[TrialResult]) -> list[str]:
    """All sentences of the verdict, in the order in which a reader asks."""
    ran = [cell for cell in cells if cell.status == "ok"]
    lines = _unfinished(cells, results)
    if results[0].run.recipe == "tutorial" and not descriptions.on_cpu(results):
        lines += tutorial.verdict(ran)
    if ran:
        lines += _proved(ran)
    lines += loss_agreement.disagreements(cells) + _not_run(cells)
    lines += disturbed_launches.sentence(results)
    lines += training.sentences(training.trained(cells))
    lines += [CPU_NOTE] if descriptions.on_cpu(results) else _fastest(training.timed(ran))
    return lines


def _unfinished(cells: Sequence[Cell], results: Sequence[TrialResult]) -> list[str]:
    """What is missing of the planned trials."""
    runs = {run.started: run for run in (result.run for result in results)}.values()
    planned = sum(run.planned for run in runs)
    pending = [cell for cell in cells if any(result.status == "pending" for result in cell.launches)]
    lines = []
    if pending:
        missing = sum(result.status == "pending" for cell in pending for result in cell.launches)
        lines.append(
            f"The run is not finished: {missing} of {planned} trials have not run yet "
            f"(in {count(len(pending), 'cell')})."
        )
    if len(results) < planned:
        lines.append(f"The run stopped early: {len(results)} of {planned} planned trials have a result.")
    return lines


def _not_run(cells: Sequence[Cell]) -> list[str]:
    """Which cells failed and which were skipped."""
    failed = [cell for cell in cells if cell.status in FAILURES]
    wrong = [cell for cell in failed if cell.status == "parity_failed"]
    others = [cell for cell in failed if cell not in wrong]
    skipped = [cell for cell in cells if cell.status == "skipped"]
    lines = [f"{cell.title} failed the gate and has no throughput: {cell.first.reason}." for cell in wrong]
    if others:
        listed = "; ".join(f"{cell.title}, {cell.status}" for cell in others)
        lines.append(f"{count(len(others), 'cell')} failed: {listed}. The reasons are below.")
    if skipped:
        were = "was" if len(skipped) == 1 else "were"
        lines.append(f"{count(len(skipped), 'cell')} {were} skipped: {_titles(skipped)}.")
    return lines


def _compared(judged: Sequence[Parity]) -> str:
    """What the gate compared. Earlier versions compared the gradients of the first step, too."""
    earlier = any(check.quantity == "gradients" for parity in judged for check in parity.checks)
    return "losses, gradients and updated weights" if earlier else "losses and updated weights"


def _proved(ran: Sequence[Cell]) -> list[str]:
    """What the gate showed about the cells that ran: the same training, nearly the same, or another algorithm."""
    same = [cell for cell in ran if naming.same_training(cell.spec)]
    exact = [cell for cell in same if cell.spec.tolerances == "exact"]
    nearly = [cell for cell in same if cell.spec.tolerances != "exact"]
    different = [cell for cell in ran if not naming.same_training(cell.spec)]
    lines = []
    if exact:
        judged = [cell.first.parity for cell in exact if cell.first.parity]
        lines.append(
            f"{count(len(exact), 'cell')} passed the gate: in float64, over {from_to([each.steps for each in judged])} "
            f"steps of {from_to([each.batch for each in judged])} samples, {_compared(judged)} agree "
            f"with the NumPy reference (worst relative error {at_most(_worst(exact))}). {_beyond_the_gate(exact)}"
        )
    apart = [cell for cell in exact if cell.first.described.normalizes and cell.spec.normalization != "global"]
    if apart:
        parts = " or ".join(sorted({naming.NORMALIZED_OVER[cell.spec.normalization] for cell in apart}))
        lines.append(
            f"In {len(apart)} of these cells, BatchNorm normalizes over the samples of one {parts}, as in their "
            "reference. A single device normalizes over the whole batch, so their training is not exactly the same as "
            "on one device."
        )
    if nearly:
        lines.append(
            f"{_titles(nearly)} passed with larger tolerances, because gradients cross devices in bfloat16 (worst "
            f"relative error {at_most(_worst(nearly))})."
        )
    if different:
        each, their = ("It", "Its speed is") if len(different) == 1 else ("Each", "Their speeds are")
        lines.append(
            f"{_titles(different)}: a different algorithm or learning rate. {each} passed against a reference of its "
            f"own (worst relative error {at_most(_worst(different))}). {their} not compared with the others, because "
            "different steps lead to different weights."
        )
    return lines


def _beyond_the_gate(cells: Sequence[Cell]) -> str:
    """How the timed or trained programs themselves were checked, which have another precision and batch."""
    on_device = [cell for cell in cells if cell.first.golden_by == "device"]
    golden = [cell for cell in cells if cell.first.golden_losses and cell.first.golden_by != "device"]
    compared = loss_agreement.compared(cells)
    finite = len(cells) - len(golden) - len(on_device) - len(compared)
    checks = [
        f"{count(len(golden), 'cell')} against the reference" if golden else "",
        f"{count(len(on_device), 'cell')} against the same network in float64 on the device" if on_device else "",
        f"{count(len(compared), 'cell')} against other cells that take the same steps" if compared else "",
        f"{count(finite, 'cell')} only for finite values" if finite else "",
    ]
    listed = [check for check in checks if check]
    trained = [bool(cell.spec.training) for cell in cells]
    what = "trained" if all(trained) else "timed or trained" if any(trained) else "timed"
    return (
        f"They were then {what} in {descriptions.precisions(cells)} on full batches. The gate does not cover these "
        f"runs, so their first losses were checked: {_and(listed)}.{_inspected(cells)}"
    )


def _inspected(cells: Sequence[Cell]) -> str:
    """How many checks the timed programs passed beyond their first losses, as a sentence, or ""."""
    passed = [
        len({check.quantity for timing in cell.first.timings for check in timing.checks})
        for cell in cells
        if any(timing.checks for timing in cell.first.timings)
    ]
    if not passed:
        return ""
    least, most = min(passed), max(passed)
    number = f"{least}" if least == most else f"{least} to {most}"
    return (
        f" {count(len(passed), 'timed program')} passed {number} kinds of checks each, of losses, weights, replicas, "
        "number formats, and of what each device holds and sends (docs/parity.md)."
    )


def _and(items: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return " and ".join(filter(None, [", ".join(items[:-1]), items[-1]]))


def _worst(cells: Sequence[Cell]) -> float:
    return max(check.error for cell in cells for check in (cell.first.parity.checks if cell.first.parity else ()))


def _fastest(ran: Sequence[Cell]) -> list[str]:
    """Which cell has the highest median among those that may be ranked, and whether an order can be claimed."""
    lines, groups = [], _ranked_together(ran)
    for group in groups:
        spec = group[0].spec
        batch = ""
        if any(other is not group and _same_workload(other[0], group[0]) for other in groups):
            batch = f", batch {descriptions.batches(group)}, {optimizers.words(spec.optimizer)}"
        lines.append(f"{spec.workload} ({spec.size}, {spec.precision}{batch}): {_fastest_of(group)}")
    if lines:
        lines[-1] += " Ranges are not confidence intervals."
    return lines + _unstable(ran)


def _ranked_together(ran: Sequence[Cell]) -> list[list[Cell]]:
    """The cells that have a speed and train alike, in groups that ran under the same conditions."""
    comparisons = Comparisons("rank")
    groups: list[list[Cell]] = []
    kinds: list[dict[int, TrialResult]] = []  # of each group: one launch of each kind in it
    for cell in ran:
        unranked = not naming.same_training(cell.spec) or cell.spec.protocol != "resident" or cell.spec.twin
        if cell.estimate is None or unranked:
            continue
        number = 0
        while number < len(groups) and any(comparisons.differences(cell.first, o) for o in kinds[number].values()):
            number += 1
        if number == len(groups):
            groups.append([])
            kinds.append({})
        groups[number].append(cell)
        kinds[number].setdefault(comparisons.kind(cell.first), cell.first)
    return groups


def _same_workload(one: Cell, other: Cell) -> bool:
    return (one.spec.workload, one.spec.size, one.spec.precision) == (
        other.spec.workload,
        other.spec.size,
        other.spec.precision,
    )


def _unstable(ran: Sequence[Cell]) -> list[str]:
    """Which cells' measurements differ so much that their numbers are rough."""
    unstable = [(cell, cell.estimate) for cell in ran if cell.estimate is not None and cell.estimate.unstable]
    if not unstable:
        return []
    listed = "; ".join(f"{cell.title}, {100 * found.relative_deviation:.0f}%" for cell, found in unstable)
    return [
        f"Unstable, with a standard deviation of at least {100 * UNSTABLE:.0f}% of the mean: {listed}. Their "
        "throughputs, and all ratios with them, are rough."
    ]


def _fastest_of(group: Sequence[Cell]) -> str:
    ranking = rank([cell.estimate for cell in group if cell.estimate is not None], larger_is_better=True)
    ranked = [group[number] for number in ranking.order]
    best = ranked[0]
    unit = f"{best.first.unit}s/s"
    launches = count(len(best.throughputs), "launch", "launches")
    found = [f"{best.title} has the highest median, {number(best.throughput)} {unit} ({launches})."]
    spread = [cell for cell in ranked if cell.spec.devices > 1]
    if spread and best.spec.devices == 1:
        found.append(f"Among cells on several devices, it is {spread[0].title}, {number(spread[0].throughput)} {unit}.")
    if not ranking.enough:
        found.append(f"With fewer than {MIN_LAUNCHES} launches of each cell, no order is claimed.")
    elif ranking.ties:
        ties = [group[number] for number in ranking.ties]
        found.append(
            f"The range of {best.title} overlaps with that of {_titles(ties)}, so no order between these is claimed."
        )
    return " ".join(found)


def _titles(cells: Sequence[Cell]) -> str:
    return "; ".join(cell.title for cell in cells)
