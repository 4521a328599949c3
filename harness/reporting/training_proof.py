"""What a report says about the checks of trainings: harness/worker/training_checks.py."""

from __future__ import annotations

from collections.abc import Sequence

from harness.reporting.formatting import count
from harness.reporting.summary import Cell
from harness.spec import Check, TrialResult

WORDS = {
    "samples": "the samples that were delivered",
    "updates": "that weights move",
    "step losses": "the losses of single steps",
    "step updates": "the updates of single steps",
    "step weight decay": "their weight decay",
    "running statistics": "running statistics",
    "evaluated losses": "losses and accuracies of evaluations",
    "state after evaluations": "that evaluations change nothing",
    "replayed block": "steps that nobody waited for",
    "state after placing": "that placing batches changes nothing",
    "number formats": "number formats",
    "resumed training": "steps from the saved state",
    "work after sync": "that no work is left when the clock stops",
    "updates counted": "the saved count of updates",
}
"""Evaluated accuracies are checked wherever evaluated losses are."""


def sentences(cells: Sequence[Cell]) -> list[str]:
    """What was checked in the trainings that ended well, and what could not be."""
    good = [(cell, result) for cell in cells for result in cell.good]
    checked = [result for _, result in good if checks(result)]
    if not checked:
        return []
    common = set.intersection(*({check.quantity for check in checks(result)} for result in checked))
    listed = "; ".join(words for quantity, words in WORDS.items() if quantity in common)
    lines = [f"{count(len(checked), 'training')} passed the checks that were made while it ran: {listed}."]
    if len(checked) > 1:
        lines = [f"{len(checked)} trainings passed the checks that were made while they ran: {listed}."]
    left_out = {
        f"{cell.title}: {quantity} ({why})": None
        for cell, result in good
        for rank in result.ranks[:1]
        if rank.training
        for quantity, why in rank.training.unchecked.items()
    }
    if left_out:
        lines.append(f"Not checked: {'; '.join(left_out)}.")
    return lines


def checks(result: TrialResult) -> list[Check]:
    """The checks of all ranks."""
    return [check for rank in result.ranks if rank.training for check in rank.training.checks]
