"""likeforlike: which framework and which parallel strategy trains fastest, and is it really the same training?"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

__version__ = "0.1.0"


def load(*folders: str | os.PathLike[str], blocks: bool = False) -> pd.DataFrame:
    """Runs as a tidy pandas DataFrame: one row for each launch, or with `blocks` one for each timed block.

    harness.load("reports/<run>")
    harness.load("reports/<run>", "reports/<other run>", blocks=True)

    Seconds are in s, throughput is in samples/s, memory in bytes. A number that there is not is NaN, and a text is
    empty. A launch whose status is not "ok" has no throughput. docs/columns.md lists all columns.

    Raises harness.spec.errors.UsageError for a folder that is not a run, and for a launch that is in several folders.
    """
    # by name: pandas takes most of a second to import, and this is no module of the workers, who import this package
    tidy = importlib.import_module("harness.results.tidy")
    return tidy.load(*folders, blocks=blocks)


def run(**flags: Any) -> Any:
    """Check cells against their reference, time those that pass, and write a report: `python -m harness run`.

    finished = harness.run(workload="my_networks.mixer", framework=["torch", "jax"], strategy=["single", "ddp"])
    finished.folder      # of the run: report.md, results.jsonl, plots and logs
    finished.results     # a harness.spec.TrialResult for each launch: .spec.cell, .status, .reason, .parity

    Returns a harness.session.command.Finished. `flags`: those of `python -m harness run --help`, with _ for -. A value
    is what would be typed, a number, a path, or a list of them. Environment variables and TOML files are not read.
    Progress goes to standard error.

    Raises harness.spec.errors.UsageError for a request that makes no sense, MachineUnfit (beside it) where this machine
    cannot serve it.
    """
    # by name: this is no module of the workers, who import this package
    return importlib.import_module("harness.cli.python_api").run(flags)
