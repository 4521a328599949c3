"""Whether what a trial compiled came from the cache: told by the files that were written, not by a switch."""

from __future__ import annotations

from pathlib import Path

from harness.spec import CompileCache


def files(folder: str) -> set[str]:
    """What a framework has compiled and kept for a cell; nothing where no folder was given."""
    return {str(path) for path in Path(folder).rglob("*") if path.is_file()} if folder else set()


def state(before: set[str], after: set[str]) -> CompileCache:
    """What compilation found between two looks. Names are enough: nobody writes over what is there."""
    if after - before:
        return "cold"
    return "warm" if before else "none"
