"""Whether a trial's compiled code came from the cache, as the files that were written show."""

from __future__ import annotations

from pathlib import Path

from harness.spec import CompileCache


def files(folder: Path | None) -> set[str]:
    """The files in which a framework keeps what it has compiled for a cell; none without a folder."""
    return {str(path) for path in folder.rglob("*") if path.is_file()} if folder else set()


def state(before: set[str], after: set[str]) -> CompileCache:
    """What compilation found in the cache, by its files before and after. Names are enough: no file is overwritten."""
    if after - before:
        return "cold"
    return "warm" if before else "none"
