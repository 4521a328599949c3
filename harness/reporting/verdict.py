"""The verdict of a report: what the run showed, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from harness.reporting import (
    contrasts,
    descriptions,
    disturbed_launches,
    fits,
    loss_agreement,
    naming,
    number_formats,
    repeatability,
    telemetry_section,
    training,
    tutorial,
    verdict_words,
)
from harness.reporting.formatting import at_most, conjunction, count, from_to
from harness.reporting.summary import Cell
from harness.spec import FAILURES, Parity, Quantity, TrialResult

CPU_NOTE = (
    "These are virtual CPU devices, parts of one processor. They exist so that the gate can run without GPUs. Their "
    "speeds say nothing about GPUs, or about which framework or strategy is faster."
)

INSPECTED: dict[str, set[Quantity]] = {
    "losses": {"further loss", "curve after the blocks", "losses after the blocks"},
    "weights": {"further movement", "parameters after the blocks", "movement after the blocks", "further update"},
    "replicas": {"replicas"},
    "number formats": {"number formats"},
}
"""What the checks after the timed blocks are of, in words."""
HELD_AND_SENT: set[Quantity] = {"parameters held", "optimizer state held", "batch held", "bytes that crossed"}


def sentences(cells: Sequence[Cell], results: Sequence[TrialResult]) -> list[str]:
    """All sentences of the verdict, in the order in which a reader asks: what is fastest, whether it is the same
    training, and how far the numbers can be relied on."""
    ran = [cell for cell in cells if cell.status == "ok"]
    on_cpu = descriptions.on_cpu(results)
    timed = training.timed(ran)
    pairs = contrasts.twins(timed)
    groups = contrasts.groups(timed, pairs)
    lines = _unfinished(cells, results)
    if results[0].run.recipe == "tutorial" and not on_cpu:
        lines += tutorial.verdict(ran)
    lines += [CPU_NOTE] if on_cpu else _speeds(timed, groups)
    lines += training.sentences(training.trained(cells)) + fits.sentences(fits.find(cells))
    lines += loss_agreement.disagreements(cells) + _not_run(cells)
    if ran:
        lines += _proved(ran)
    lines += _narrow_sums(ran) + _proved_alone(cells) + disturbed_launches.sentence(results)
    if not on_cpu:
        lines += telemetry_section.verdict(timed)
        lines += verdict_words.method(groups) + verdict_words.twins_sentence(pairs) + repeatability.sentences(timed)
    return lines


def _unfinished(cells: Sequence[Cell], results: Sequence[TrialResult]) -> list[str]:
    """What is missing of the planned trials."""
    idle = sum(result.status in ("skipped", "unavailable") for result in results)  # planned, but never launched
    planned = descriptions.planned(results)
    launches = max(planned, len(results)) - idle
    pending = [cell for cell in cells if any(result.status == "pending" for result in cell.launches)]
    lines = []
    if pending:
        missing = sum(result.status == "pending" for cell in pending for result in cell.launches)
        lines.append(
            f"The run is not finished: {missing} of {count(launches, 'launch', 'launches')} "
            f"{'has' if missing == 1 else 'have'} not run yet (in {count(len(pending), 'cell')})."
        )
    if len(results) < planned:
        lines.append(f"The run stopped early: {len(results) - idle} of {launches} planned launches have a result.")
    return lines


def _not_run(cells: Sequence[Cell]) -> list[str]:
    """Which cells failed and which were skipped."""
    failed = [cell for cell in fits.failed(cells) if cell.status in FAILURES]
    wrong = [cell for cell in failed if cell.status == "parity_failed"]
    others = [cell for cell in failed if cell not in wrong]
    skipped = [cell for cell in cells if cell.status == "skipped"]
    lines = [f"{cell.title} failed the gate and has no throughput: {_first_reason(cell)}." for cell in wrong]
    if others:
        listed = "; ".join(f"{cell.title}, {cell.status}" for cell in others)
        lines.append(f"{count(len(others), 'cell')} failed: {listed}. The reasons are below.")
    if skipped:
        were = "was" if len(skipped) == 1 else "were"
        lines.append(f"{count(len(skipped), 'cell')} {were} skipped: {descriptions.titles(skipped)}.")
    return lines


def _first_reason(cell: Cell) -> str:
    """The first check that failed; all of them are below the verdict."""
    parity = cell.first.parity
    failed = [check for check in parity.checks if not check.passed] if parity else []
    if not failed:
        return cell.first.reason
    return f"{failed[0]}, and other checks failed" if failed[1:] else str(failed[0])


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
    for by_peers in (False, True):
        alike = [cell for cell in exact if descriptions.has_judge(cell) == by_peers]
        if alike:
            judged = [cell.first.parity for cell in alike if cell.first.parity]
            other = "between frameworks" if by_peers else "with the NumPy reference"
            lines.append(
                f"{count(len(alike), 'cell')} passed the gate: in float64, over "
                f"{from_to([each.steps for each in judged])} steps of {from_to([each.batch for each in judged])} "
                f"samples, {_compared(judged)} agree {other} (worst relative error {at_most(_worst(alike))}). "
                f"{descriptions.judges(alike) if by_peers else ''}{_shared(alike)}{_beyond_the_gate(alike)}"
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
            f"{descriptions.titles(nearly)} passed with larger tolerances, because gradients cross devices in bfloat16 "
            f"(worst relative error {at_most(_worst(nearly))})."
        )
    if different:
        each, their = ("It", "Its speed is") if len(different) == 1 else ("Each", "Their speeds are")
        lines.append(
            f"{descriptions.titles(different)}: a different algorithm or learning rate. {each} passed against a "
            f"reference of its own (worst relative error {at_most(_worst(different))}). {their} not compared with the "
            "others, because different steps lead to different weights."
        )
    return lines


def _shared(cells: Sequence[Cell]) -> str:
    """That fewer proofs were made than cells passed, as a sentence with a space behind it, or ""."""
    return "An A/A twin shares the proof of its cell. " if any(cell.spec.twin for cell in cells) else ""


def _narrow_sums(ran: Sequence[Cell]) -> list[str]:
    """Where sums over devices are narrower than the gradients, and no setting of ours says so."""
    narrow = number_formats.narrow_sums(ran)
    if not narrow:
        return []
    everywhere = any(cell.first.described.normalizes and cell.spec.normalization == "global" for cell in narrow)
    return [
        f"In {descriptions.titles(narrow)}, sums over devices are in bfloat16: XLA's partitioner places them before "
        "gradients become float32. An explicit all-reduce sums float32, and sends twice as many bytes."
        + (" BatchNorm over the whole batch adds sums of its own in every such layer." if everywhere else "")
    ]


def _proved_alone(cells: Sequence[Cell]) -> list[str]:
    """Which cells passed the gate, and have not been timed."""
    waiting = [cell for cell in cells if cell.status == "pending" and cell.first.parity and cell.first.parity.passed]
    if not waiting:
        return []
    have = "has" if len(waiting) == 1 else "have"
    titles = descriptions.titles(waiting)
    return [f"{count(len(waiting), 'cell')} passed the gate, but {have} not been timed yet: {titles}."]


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
    were = "It was" if len(cells) == 1 else "They were"
    if all(cell.spec.training and not cell.spec.training.epochs for cell in cells):
        return f"{were} then evaluated in {descriptions.precisions(cells)}, and not trained."
    return (
        f"{were} then {what} in {descriptions.precisions(cells)} on full batches. The gate does not cover these "
        f"runs, so their first losses were checked: {conjunction(listed)}.{_inspected(cells)}"
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
    kinds = count(most, "kind")
    number = kinds if least == most else f"{least} to {kinds}"
    made = {check.quantity for cell in cells for timing in cell.first.timings for check in timing.checks}
    of = [words for words, quantities in INSPECTED.items() if made & quantities]
    if made & HELD_AND_SENT:
        of = [*[", ".join(of) + ","] * bool(of), "of what each device holds and sends"]
    what = f", of {conjunction(of)}" if of else ""
    return f" {count(len(passed), 'timed program')} passed {number} of checks each{what} (docs/parity.md)."


def _worst(cells: Sequence[Cell]) -> float:
    return max(check.error for cell in cells for check in (cell.first.parity.checks if cell.first.parity else ()))


def _speeds(timed: Sequence[Cell], groups: Sequence[contrasts.Group]) -> list[str]:
    """Which cell of each group is the fastest, by how much, and what several devices bring."""
    compared = [group for group in groups if len(group.cells) > 1] or groups
    lines = [verdict_words.sentence(group, groups) for group in compared]
    return lines + verdict_words.unranked(groups, compared) + verdict_words.scaling(timed)
