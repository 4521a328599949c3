"""How the ranks of a trial wait for each other and agree on a number: by files on one host, over TCP on several."""

from __future__ import annotations

import base64
import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from harness.contract import World
from harness.meeting import Meeting
from harness.spec.arrays import Arrays

POLL_SECONDS = 1e-4


class Agreement:
    """A barrier over all ranks, a number that rank 0 decides for all of them, and values that it gathers.

    `folder`: where ranks write them. All ranks see the same file system.
    """

    def __init__(self, folder: Path, rank: int, barrier: Callable[[], None], *, ranks: int = 1) -> None:
        self.folder, self.rank, self.barrier, self.ranks = folder, rank, barrier, ranks
        self.meetings = 0

    def meet(self) -> None:
        """Wait on the host for all ranks. A runtime's `barrier` may be a collective of the devices, which also ends
        what they were given before; this one leaves them alone."""
        self.meetings += 1
        (self.folder / f"met-{self.meetings}-{self.rank}").touch()
        while not all((self.folder / f"met-{self.meetings}-{rank}").exists() for rank in range(self.ranks)):
            time.sleep(POLL_SECONDS)
        # no rank still looks for the meeting before: all have come to this one
        (self.folder / f"met-{self.meetings - 1}-{self.rank}").unlink(missing_ok=True)

    def on(self, name: str, value: float) -> float:
        """Rank 0's `value` on every rank. A collective: every rank calls it with the same `name`."""
        path = self.folder / f"agreed-{name}"
        if self.rank == 0:
            path.write_text(repr(value), "utf-8")
        self.barrier()
        return float(path.read_text("utf-8"))

    def arrays(self, name: str, found: Arrays) -> Arrays:
        """Rank 0's arrays on every rank. A collective, as `on` is."""
        path = self.folder / f"agreed-{name}.npz"
        if self.rank == 0:
            np.savez(path, **found)  # pyright: ignore[reportArgumentType]
        self.barrier()
        with np.load(path, allow_pickle=False) as held:
            return dict(held)

    def gather(self, name: str, value: Any) -> list[Any] | None:
        """The value of every rank, of a type that JSON has, on rank 0; None on the others. A collective, as `on` is."""

        def path(rank: int) -> Path:
            return self.folder / f"gathered-{name}-{rank}"

        path(self.rank).write_text(json.dumps(value), "utf-8")
        self.barrier()
        if self.rank != 0:
            return None
        return [json.loads(path(rank).read_text("utf-8")) for rank in range(self.ranks)]

    def everywhere(self, name: str, holds: bool) -> bool:
        """Whether it holds on every rank, which all of them learn. A collective, as `on` is."""
        return bool(self.on(name, float(all(self.gather(name, holds) or ()))))


class AgreementOverHosts(Agreement):
    """The same between hosts that share no file system."""

    def __init__(self, meeting: Meeting, folder: Path, rank: int, barrier: Callable[[], None], *, ranks: int) -> None:
        super().__init__(folder, rank, barrier, ranks=ranks)
        self.meeting = meeting

    def meet(self) -> None:
        self.meeting.exchange()

    def on(self, name: str, value: float) -> float:
        return float(self.meeting.exchange(value)[0])

    def arrays(self, name: str, found: Arrays) -> Arrays:
        sent = None
        if self.rank == 0:
            packed = io.BytesIO()
            np.savez(packed, **found)  # pyright: ignore[reportArgumentType]
            sent = base64.b64encode(packed.getbuffer()).decode("ascii")
        (received, *_) = self.meeting.exchange(sent)
        with np.load(io.BytesIO(base64.b64decode(received)), allow_pickle=False) as held:
            return dict(held)

    def gather(self, name: str, value: Any) -> list[Any] | None:
        found = self.meeting.exchange(value)
        return found if self.rank == 0 else None


def agreement(world: World, folder: Path, barrier: Callable[[], None], *, at: str) -> Agreement:
    """How the ranks of this world agree. `at`: the URL where they meet if they are on several hosts."""
    if world.hosts == 1:
        return Agreement(folder, world.rank, barrier, ranks=world.processes)
    return AgreementOverHosts(Meeting(world, at=at), folder, world.rank, barrier, ranks=world.processes)
