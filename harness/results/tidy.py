"""Runs as a pandas DataFrame: harness.load."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from harness.results import merging, store
from harness.results.tidy_columns import BLOCK_COLUMNS, LAUNCH_COLUMNS, Column
from harness.results.tidy_rows import Row, block_rows, launch_rows, launches
from harness.spec import TrialResult
from harness.spec.errors import UsageError
from harness.spec.text import encodable

DTYPES = {str: "str", dict: "str", int: "int64", float: "float64", bool: "bool"}


def load(*folders: str | os.PathLike[str], blocks: bool = False) -> pd.DataFrame:
    """As harness.load."""
    if not folders:
        raise UsageError("load: names no run; give the folders of one or more runs")
    of = of_blocks if blocks else of_launches
    paths = [Path(folder) for folder in folders]
    runs = [store.read(path) for path in paths]
    merging.check_no_launch_twice(runs)
    frames = [of(results, run=run) for results, run in zip(runs, run_names(paths), strict=True)]
    return pd.concat(frames, ignore_index=True)


def of_launches(results: Sequence[TrialResult], *, run: str) -> pd.DataFrame:
    """One row for each launch of a run."""
    return frame(launch_rows(launches(results, run=run)), LAUNCH_COLUMNS)


def of_blocks(results: Sequence[TrialResult], *, run: str) -> pd.DataFrame:
    """One row for each timed block of a run."""
    return frame(block_rows(launches(results, run=run)), BLOCK_COLUMNS)


def run_names(paths: Sequence[Path]) -> list[str]:
    """The names of these folders; the whole path where another folder has the same name."""
    names = [path.resolve().name for path in paths]
    return [name if names.count(name) == 1 else str(path) for name, path in zip(names, paths, strict=True)]


def frame(rows: Sequence[Row], columns: Sequence[Column[Any]]) -> pd.DataFrame:
    """Rows as a DataFrame with all columns, each of its type, also without rows. A missing number is NaN."""
    return pd.DataFrame({column.name: _series(rows, column) for column in columns})


def _series(rows: Sequence[Row], column: Column[Any]) -> pd.Series:
    values = [row[column.name] for row in rows]
    if column.kind is dict:
        values = [json.dumps(value, sort_keys=True, ensure_ascii=False) if value else "" for value in values]
    return pd.Series(encodable(values), dtype=DTYPES[column.kind])
