"""From results to report.md, its plots and the table on the screen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.report import markdown, summary
from harness.specs import TrialResult


def write(folder: Path, results: Sequence[TrialResult]) -> None:
    """Write report.md and the plots into `folder`, from `results` alone."""
    from harness.report import plots  # matplotlib takes most of a second to import

    cells = summary.summarize(results)
    pictures = plots.draw(folder, cells)
    (folder / "report.md").write_text(markdown.render(cells, results, pictures))


def show(results: Sequence[TrialResult], folder: Path) -> None:
    """The result table and the verdict on standard output."""
    from harness.display import print_table

    cells = summary.summarize(results)
    table = summary.result_table(cells).drop(columns=list(summary.REPORT_ONLY_COLUMNS))
    right = {index for index, name in enumerate(table.columns) if name not in summary.TEXT_COLUMNS}
    print_table("Results", [str(name) for name in table.columns], table.values.tolist(), right=right)
    for line in markdown.verdict(cells, results):
        print(f"- {line}")  # noqa: T201
    print(f"Report: {folder / 'report.md'}")  # noqa: T201
