"""From results to report.md and its pictures. Runs in the parent process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.reporting import markdown, summary, training
from harness.spec import TrialResult


def write(folder: Path, results: Sequence[TrialResult]) -> None:
    """Write report.md, the pictures and, for trainings, epochs.csv into `folder`, from `results` alone."""
    from harness.reporting import plots  # matplotlib takes most of a second to import

    cells = summary.summarize(results)
    pictures = plots.draw(folder, cells)
    trained = training.trained(cells)
    if any(result.epochs for cell in trained for result in cell.launches):
        training.epochs(trained).to_csv(folder / "epochs.csv", index=False)
    (folder / "report.md").write_text(markdown.render(cells, results, pictures))
