"""likeforlike: which framework and which parallel strategy trains fastest, and is it really the same training?"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

__version__ = "0.1.0"


def load(*folders: str | os.PathLike[str], blocks: bool = False) -> pd.DataFrame:
    """Runs as a tidy pandas DataFrame: one row for each launch, or with `blocks` one for each timed block.

    harness.load("reports/<run>")
    harness.load("reports/<run>", "reports/<other run>", blocks=True)

    Seconds are in s, throughput is in samples/s, memory in bytes. A number that there is not is NaN, and a text is
    empty. A launch whose status is not "ok" has no throughput. docs/usage.md lists all columns.

    Raises harness.spec.errors.UsageError for a folder that is not a run.
    """
    # by name: pandas takes most of a second to import, and this is no module of the workers, who import this package
    tidy = importlib.import_module("harness.results.tidy")
    return tidy.load(*folders, blocks=blocks)
