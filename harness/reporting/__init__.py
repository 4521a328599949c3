"""From results to report.md and its pictures. Runs in the parent process.

`document` builds a tree of typed nodes (`model`) from cells (`summary`); `markdown` renders it, and `plots` draws its
figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness import whole_files
from harness.reporting import comma_separated, document, markdown, summary, training
from harness.reporting.tables import epochs_table
from harness.spec import TrialResult


def write(folder: Path, results: Sequence[TrialResult]) -> None:
    """Write report.md, the pictures and, for trainings, epochs.csv into `folder`, from `results` alone."""
    from harness.reporting import plots  # matplotlib takes most of a second to import

    cells = summary.summarize(results)
    report = plots.draw(folder, document.build(cells, results))
    epochs = epochs_table.table(training.trained(cells))
    if epochs is not None:
        comma_separated.write(folder / document.EPOCHS_FILE, epochs)
    whole_files.write(folder / "report.md", markdown.render(report).encode())
