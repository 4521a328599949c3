"""How the ranks of a trial wait for each other and agree on a number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


class Agreement:
    """A barrier over all ranks, and a number that rank 0 decides for all of them.

    `folder`: where rank 0 writes the number. All ranks see the same file system.
    """

    def __init__(self, folder: Path, rank: int, barrier: Callable[[], None]) -> None:
        self.folder, self.rank, self.barrier = folder, rank, barrier

    def on(self, name: str, value: float) -> float:
        """Rank 0's `value` on every rank. A collective: every rank calls it with the same `name`."""
        path = self.folder / f"agreed-{name}"
        if self.rank == 0:
            path.write_text(repr(value))
        self.barrier()
        return float(path.read_text())
