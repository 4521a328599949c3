"""What the terminal shows at the end of a run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from harness.cli.output import write
from harness.cli.tables import print_sentence, print_table
from harness.reporting import fits, summary, training, verdict
from harness.reporting.formatting import written
from harness.reporting.model import Table
from harness.reporting.tables import result_table, training_table
from harness.reporting.tables.tutorial_tables import comparison
from harness.results import store
from harness.spec import FAILURES, TrialResult

SENTENCES = ("figures",)
"""Columns that a narrow terminal shows below each row."""
MOST_ROWS = 300  # of a table or a list on a screen


def show(results: Sequence[TrialResult], folder: Path) -> None:
    """Print the result table, the verdict, and why cells failed."""
    cells = summary.summarize(results)
    trained = training.trained(cells)
    timed = training.timed(cells)
    if timed:
        print_report_table("Results", result_table.table(timed))
    if results and results[0].run.recipe == "tutorial":
        print_report_table("Published and measured: seconds for three batches", comparison(cells))
    if trained:
        print_report_table("Training", training_table.table(trained))
    for line in verdict.sentences(cells, results):
        print_sentence(f"- {line}")
    print_reasons(cells)
    if any(result.status == "pending" for result in results) and (folder / store.RUN).exists():
        write(f"- Go on with: {shlex.join(['python', '-m', 'harness', 'run', '--resume', str(folder)])}")
    write(f"Report: {folder / 'report.md'}")


def print_reasons(cells: Sequence[summary.Cell]) -> None:
    """Print why each failed cell failed, in one line each. Of a cell that failed the gate, the verdict says it."""
    failed = [cell for cell in fits.failed(cells) if cell.status in FAILURES and cell.status != "parity_failed"]
    if failed:
        write("Why cells failed:")
    for cell in failed[:MOST_ROWS]:
        reason = next(result.reason for result in cell.launches if result.status == cell.status)
        print_sentence(f"  {cell.title}, {cell.status}: {' '.join(reason.split())}")
    if len(failed) > MOST_ROWS:
        write(f"  {len(failed) - MOST_ROWS} more reasons are in the report alone.")


def print_report_table(title: str, table: Table) -> None:
    """Print a report's table, without the columns that a terminal does not show."""
    shown = [(index, column) for index, column in enumerate(table.columns) if column.on_screen]
    rows = [[written(row[index], column, brief=True) for index, column in shown] for row in table.rows[:MOST_ROWS]]
    right = {place for place, (_, column) in enumerate(shown) if column.kind.numeric}
    header = [column.heading for _, column in shown]
    print_table(title, header, rows, right=right, below=SENTENCES, elsewhere="; the report has them")
    if len(table.rows) > MOST_ROWS:
        write(f"{len(table.rows) - MOST_ROWS} more rows are in the report alone.")
