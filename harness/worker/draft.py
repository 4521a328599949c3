"""A rank's answer as it grows, and the progress that it reports meanwhile."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.messages import Answer, Progress, answer_file, draft_file, progress_file, write
from harness.spec import Check, Timing, Training, codec


class Draft:
    """Collects what a rank finds. Each `note` replaces fields of the answer and keeps the others.

    What is noted is encoded and decoded as on its way to the parent, so that a value of the wrong type fails where it
    was noted.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder, self.rank = folder, rank
        self.answer = Answer(rank=rank)
        self._last = Progress(activity="starting")

    def note(self, **found: Any) -> None:
        """Set fields of the answer. Raises TypeError for a field that an Answer does not have."""
        self.answer = replace(self.answer, **codec.as_received(Answer, found))

    @property
    def timing(self) -> Timing:
        """What was timed so far."""
        return self.answer.timing or Timing()

    def note_timing(self, **found: Any) -> None:
        """Set fields of the answer's Timing, which begins empty."""
        self.note(timing=replace(self.timing, **found))

    def note_checks(self, found: Iterable[Check]) -> None:
        """Add checks of the timed program to those that were noted."""
        self.note_timing(checks=(*self.timing.checks, *found))

    @contextlib.contextmanager
    def timed_check(self, name: str) -> Iterator[None]:
        """Note how many seconds the block takes, as the cost of a check of the timed program."""
        began = time.perf_counter()
        yield
        taken = self.timing.check_seconds.get(name, 0.0) + time.perf_counter() - began
        self.note_timing(check_seconds=self.timing.check_seconds | {name: round(taken, 4)})

    def note_training(self, **found: Any) -> None:
        """Set fields of the answer's Training, which begins empty."""
        self.note(training=replace(self.answer.training or Training(), **found))

    def progress(self, activity: str, done: int = 0, total: int = 0, *, detail: str = "") -> None:
        """Say what this rank is doing; `done` of `total`, if there is something to count."""
        self._last = Progress(activity=activity, done=done, total=total, detail=detail, said=self._last.said)
        write(self.folder / progress_file(self.rank), self._last)

    def say(self, line: str) -> None:
        """Tell the user something that stays on the screen."""
        self._last = replace(self._last, said=(*self._last.said, line))
        write(self.folder / progress_file(self.rank), self._last)

    def save(self) -> None:
        """Save the answer so far, in case this process is killed."""
        write(self.folder / draft_file(self.rank), self.answer)

    def finish(self) -> None:
        """Write the answer: the phase is over."""
        write(self.folder / answer_file(self.rank), self.answer)
