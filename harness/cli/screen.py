"""What the terminal shows at the end of a run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from harness.cli.terminal import print_table
from harness.reporting import result_table, summary, training, verdict
from harness.results import store
from harness.spec import TrialResult


def show(results: Sequence[TrialResult], folder: Path) -> None:
    """Print the result table and the verdict."""
    cells = summary.summarize(results)
    trained = training.trained(cells)
    timed = training.timed(cells)
    tables = []
    if timed:
        columns = (result_table.TEXT_COLUMNS, result_table.REPORT_ONLY_COLUMNS)
        tables.append(("Results", result_table.table(timed), *columns))
    if trained:
        tables.append(("Training", training.table(trained), training.TEXT_COLUMNS, training.REPORT_ONLY_COLUMNS))
    for title, frame, text_columns, report_only in tables:
        table = frame.drop(columns=list(report_only))
        right = {index for index, name in enumerate(table.columns) if name not in text_columns}
        print_table(title, [str(name) for name in table.columns], table.values.tolist(), right=right)
    for line in verdict.sentences(cells, results):
        print(f"- {line}")  # noqa: T201
    if any(result.status == "pending" for result in results) and (folder / store.RUN).exists():
        print("- Go on with:", shlex.join(["python", "-m", "harness", "run", "--resume", str(folder)]))  # noqa: T201
    print(f"Report: {folder / 'report.md'}")  # noqa: T201
