"""Tables as comma-separated values: numbers with all their digits, for spreadsheets and scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from harness import whole_files
from harness.reporting.model import Table
from harness.spec.text import visible

FORMULA = ("=", "+", "-", "@")


def write(path: Path, table: Table) -> None:
    """Write a table of plain numbers and text. A missing value is an empty field."""
    frame = pd.DataFrame(list(table.rows), columns=[column.name for column in table.columns])
    whole_files.write(path, render(frame).encode())


def render(frame: pd.DataFrame) -> str:
    """A data frame as CSV, with a line of names above it. A missing value is an empty field."""
    return frame.map(_safe).to_csv(index=False, lineterminator="\n")


def _safe(value: Any) -> Any:
    """A text without characters that steer a terminal, and with an apostrophe before what a spreadsheet would run as a
    formula."""
    if not isinstance(value, str):
        return value
    return f"'{visible(value)}" if value.lstrip().startswith(FORMULA) else visible(value)
