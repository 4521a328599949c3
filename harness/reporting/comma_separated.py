"""A table as a file of comma-separated values: numbers with all their digits, for spreadsheets and scripts."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from harness import whole_files
from harness.reporting.model import Table
from harness.spec.text import visible


def write(path: Path, table: Table) -> None:
    """Write a table of plain numbers and text. A missing value is an empty field."""
    rows = [[visible(value) if isinstance(value, str) else value for value in row] for row in table.rows]
    frame = pd.DataFrame(rows, columns=[column.name for column in table.columns])
    whole_files.write(path, frame.to_csv(index=False).encode())
