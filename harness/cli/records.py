"""A run's record as commands read it."""

from __future__ import annotations

from pathlib import Path

from harness.cli.output import note
from harness.spec import TrialResult


def read(folder: Path) -> list[TrialResult]:
    """All results of a run, as harness.results.store.read. A torn last line is left out, and a note says so."""
    from harness.results import store

    results = store.read(folder)
    if path := store.torn(folder):
        note(f"the last line of {path} is incomplete and was left out; run --resume measures its launch again")
    return results
