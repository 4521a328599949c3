"""The rows of a run: one result for each trial, written down as soon as it is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness import workloads
from harness.launch.interrupts import signals_held
from harness.launch.launcher import Outcome
from harness.machine import machine_record
from harness.machine.devices import Machine
from harness.messages import Answer
from harness.results import store
from harness.spec import Cause, Parity, Status, TrialResult, TrialSpec
from harness.spec.progress import Display


class Rows:
    """The results of a run, in memory and in its folder, those of earlier sessions included."""

    def __init__(
        self,
        folder: Path,
        *,
        machine: Machine,
        about: dict[str, str],
        finished: Sequence[TrialResult],
        display: Display,
    ) -> None:
        """`about`: what each row says of the run. `finished`: the rows of earlier sessions."""
        self.results = list(finished)
        self.about = about
        self._folder, self._machine, self._display = folder, machine, display
        self._recorded = {(row.spec.cell, row.spec.launch) for row in finished}

    def from_outcome(self, spec: TrialSpec, outcome: Outcome) -> TrialResult:
        """A row with how a launch ended and what it ran on, but without what it measured."""
        first = next((answer for answer in outcome.answers if answer.versions), Answer(rank=0))
        return replace(
            self.without_launch(spec, status=outcome.status, reason=outcome.reason, cause=outcome.cause),
            traceback=outcome.traceback,
            versions=first.versions,
            libraries=first.libraries,
            lock=first.lock,
            environment=first.environment,
            cores=outcome.cores,
        )

    def without_launch(
        self, spec: TrialSpec, *, status: Status, reason: str, cause: Cause | None, parity: Parity | None = None
    ) -> TrialResult:
        """A row for a trial that was not launched."""
        return TrialResult(
            spec=spec,
            status=status,
            reason=reason,
            cause=cause,
            parity=parity,
            unit=workloads.get(spec.workload, spec.size).unit,
            machine=machine_record.hardware(self._machine),
            run=self.about,
        )

    def add(self, result: TrialResult) -> None:
        """Write a row down."""
        with signals_held():  # a row is on disk and in memory, or in neither
            store.append(self._folder, result)
            self.results.append(result)
            self._recorded.add((result.spec.cell, result.spec.launch))
        self._display.done(_describe(result), result.status)

    def has(self, spec: TrialSpec) -> bool:
        """Whether this trial has a row."""
        return (spec.cell, spec.launch) in self._recorded


def _describe(result: TrialResult) -> str:
    """What became of a trial, in one line."""
    launch = f" launch {result.spec.launch + 1}" if result.status == "ok" else ""
    reason = f": {result.reason}" if result.reason else ""
    return f"{result.spec.cell}{launch}{reason}"
