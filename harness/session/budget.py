"""The time that a session has, and whether one more launch fits into it."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Iterator, Sequence

from harness.spec import TrialResult, TrialSpec


class Budget:
    """When a session must end, and how long its launches have taken so far."""

    def __init__(self, seconds: float, earlier: Sequence[TrialResult] = ()) -> None:
        """`seconds` from now; math.inf for no limit. `earlier`: rows that tell how long launches took before."""
        self.seconds = seconds
        self._lock = threading.Lock()  # parity phases run side by side
        self._ends = time.monotonic() + seconds
        self._longest: dict[str, float] = {}  # seconds, by phase
        self._longest_successful = 0.0  # seconds, of any phase
        self._longest_of_cell: dict[str, float] = {}  # seconds, of the phase that is measured
        self._last_of_cell: dict[str, float] = {}  # likewise, of launches of this session that succeeded
        for row in earlier:
            if row.wall_seconds is not None:
                self._know(row.spec, row.wall_seconds)
        self._last: dict[tuple[str, str], float] = {}  # seconds, by phase and computation: later ones find warm caches

    def _know(self, spec: TrialSpec, seconds: float) -> None:
        self._longest_of_cell[spec.cell] = max(self._longest_of_cell.get(spec.cell, 0.0), seconds)

    def left(self) -> float:
        """Seconds until the session must end; below 0 if it should have."""
        return self._ends - time.monotonic()

    def expected(self, launches: Sequence[TrialSpec]) -> float | None:
        """Seconds that these launches are expected to take, one after another; None if nothing is known.

        A cell is expected to take as long as its last launch in this session; without one, as long as its longest
        launch in earlier sessions; without any, as long as the longest launch of all cells.
        """
        if not self._longest_of_cell:
            return None
        known = self._longest_of_cell | self._last_of_cell
        longest = max(known.values())
        return math.fsum(known.get(spec.cell, longest) for spec in launches)

    def is_over(self) -> bool:
        """Whether the session must end now."""
        return time.monotonic() > self._ends

    def allows(self, phase: str, spec: TrialSpec | None = None) -> bool:
        """Whether a launch of this phase, of any cell or of this one, is expected to end before the session must.

        It is expected to last as long as this cell's last launch in this session; without one, as long as the cell's
        longest launch in earlier sessions; without any, as long as the longest of this phase, or else as long as the
        longest successful launch of another phase.
        """
        expected = self._longest.get(phase, self._longest_successful)
        if spec is not None:
            known = self._longest_of_cell.get(spec.cell, expected)
            expected = self._last.get((phase, spec.computation), known)
        return time.monotonic() + expected < self._ends

    def record(self, phase: str, spec: TrialSpec, seconds: float, *, succeeded: bool) -> None:
        """Remember how long a launch took."""
        with self._lock:
            self._last[phase, spec.computation] = seconds
            self._longest[phase] = max(self._longest.get(phase, 0.0), seconds)
            if phase in ("timing", "training"):
                self._know(spec, seconds)
                if succeeded:
                    self._last_of_cell[spec.cell] = seconds
            if succeeded:
                self._longest_successful = max(self._longest_successful, seconds)

    @contextlib.contextmanager
    def stopping(self, stop: threading.Event) -> Iterator[threading.Event]:
        """Sets `stop` when the session must end. Yields an event that is then set as well, and by nothing else."""
        over = threading.Event()
        seconds = min(max(0.0, self._ends - time.monotonic()), threading.TIMEOUT_MAX)
        timer = threading.Timer(seconds, lambda: (over.set(), stop.set()))
        timer.daemon = True
        if math.isfinite(self._ends):
            timer.start()
        try:
            yield over
        finally:
            timer.cancel()
