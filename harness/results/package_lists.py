"""The list of all packages that workers could import, beside the rows that hold its digest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from harness import whole_files
from harness.spec import locks


def write(folder: Path, packages: Mapping[str, str]) -> None:
    """Write packages-<digest>.txt, a list that pip reads, unless the run has it. Rows hold the digest."""
    path = folder / f"packages-{locks.digest(packages)}.txt"
    if not path.is_file():
        whole_files.write(path, locks.listing(packages).encode())
