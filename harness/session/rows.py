"""The rows of a run: one result for each trial, written down as soon as it is known."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from harness import workloads
from harness.launch.interrupts import signals_held
from harness.launch.launcher import Outcome
from harness.planning.plan import Plan
from harness.results import package_lists, store
from harness.results.holds import SetAside
from harness.session import conditions
from harness.spec import OUT_OF_TIME, Cause, Conditions, Hardware, Parity, RunFacts, Status, TrialResult, TrialSpec
from harness.spec.errors import Interrupted, MachineUnfit
from harness.spec.progress import Display
from harness.spec.text import encodable, mapped, without_home


class Rows:
    """The results of a run, in memory and in its folder, those of earlier sessions included."""

    def __init__(
        self,
        folder: Path,
        *,
        hardware: Hardware,
        about: RunFacts,
        data_given: bool,
        finished: Sequence[TrialResult],
        aside: SetAside,
        display: Display,
    ) -> None:
        """`about`: what each row says of the run. `data_given`: whether there is --data. `finished`: earlier sessions'
        rows. `aside`: those that are not among them, because their trials are measured again."""
        self.results = list(finished)
        self.about = about
        self._folder, self._hardware, self._display = folder, hardware, display
        self._data_given, self._aside = data_given, aside
        self._recorded = {(row.spec.cell, row.spec.launch) for row in finished}

    def from_outcome(self, spec: TrialSpec, outcome: Outcome, planned: Conditions) -> TrialResult:
        """A row with how a launch ended and what it ran with, but without what it measured.

        `planned`: the launch's conditions as far as they were known before it.
        """
        row = self.without_launch(spec, status=outcome.status, reason=outcome.reason, cause=outcome.cause)
        row = replace(row, traceback=outcome.traceback, conditions=conditions.found(planned, outcome))
        row = replace(row, telemetry=outcome.telemetry, wall_seconds=outcome.wall_seconds)
        for packages in (answer.packages for answer in outcome.answers if answer.packages):
            package_lists.write(self._folder, packages)
        if row.status == "ok" and (reason := conditions.unequal_ranks(outcome.answers)):
            return replace(row, status="crashed", reason=reason, cause=Cause(kind="unequal_ranks"))
        return row

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
            conditions=Conditions(hardware=self._hardware),
            described=conditions.described(spec, data_given=self._data_given),
            run=self.about,
        )

    def skip(self, trials: Sequence[TrialSpec], *, why: Callable[[TrialSpec], str]) -> list[TrialSpec]:
        """Write rows for the trials for which `why` has a reason; returns those of other cells."""
        reasons = {spec.computation: reason for spec in trials if (reason := why(spec))}
        for spec in trials:
            if reason := reasons.get(spec.computation):
                cause = Cause(kind="not_applicable")
                self.add(self.without_launch(spec, status="skipped", reason=reason, cause=cause))
        return [spec for spec in trials if spec.computation not in reasons]

    def skip_too_large(self, spec: TrialSpec, parity: Parity | None) -> bool:
        """Write a row for a trial if the same cell ran out of memory at a smaller batch. Returns whether it did."""
        full = [row.spec for row in self.results if row.status == "oom" and row.spec.global_batch < spec.global_batch]
        batch = min((each.global_batch for each in full if each.at_any_batch == spec.at_any_batch), default=None)
        if batch is None:
            return False
        reason = f"it ran out of memory at a global batch of {batch}"
        cause = Cause(kind="too_large", data={"global_batch": batch})
        self.add(self.without_launch(spec, status="skipped", reason=reason, cause=cause, parity=parity))
        return True

    def add_idle(self, plan: Plan) -> None:
        """Write rows for the trials that the plan does not launch, if they have none."""
        for trial in plan.trials:
            if trial.status != "planned" and not self.has(trial.spec):
                cause = Cause(kind="no_framework" if trial.status == "unavailable" else "not_applicable")
                self.add(self.without_launch(trial.spec, status=trial.status, reason=trial.reason, cause=cause))

    def begin_again(self, trials: Sequence[TrialSpec]) -> None:
        """Write down that the rows of these trials that are set aside no longer count, whatever becomes of the round:
        otherwise a session that is killed would leave rows of two holds in it."""
        aside = self._aside.trials
        again = [spec for spec in trials if (spec.cell, spec.launch) in aside]
        for spec in again:
            row = self.without_launch(spec, status="pending", reason=OUT_OF_TIME, cause=Cause(kind="not_begun"))
            store.append(self._folder, self._as_written(row))
        if again:
            name = f"round {again[0].launch + 1}"
            self._display.done(
                f"{name} was begun, but not completed, elsewhere: it is measured anew as a whole", "note"
            )

    def add(self, result: TrialResult, *, tell: bool = True) -> None:
        """Write a row down, and by default say so."""
        result = self._as_written(result)
        with signals_held():  # a row is on disk and in memory, or in neither
            store.append(self._folder, result)
            self.results.append(result)
            self._recorded.add((result.spec.cell, result.spec.launch))
        if tell:
            self._display.done(_describe(result), result.status)

    def _as_written(self, result: TrialResult) -> TrialResult:
        """A row as it is written down: without what no file can hold, and with the number of rows set aside for it."""
        count = self._aside.counts.get((result.spec.cell, result.spec.launch), 0)
        return mapped(encodable(replace(result, set_aside=count)), without_home)

    def has(self, spec: TrialSpec) -> bool:
        """Whether this trial has a row."""
        return (spec.cell, spec.launch) in self._recorded


def why_ended(error: BaseException) -> tuple[str, Cause]:
    """What the rows of trials say that an error kept from being measured."""
    if isinstance(error, Interrupted):
        name = signal.Signals(error.number).name
        return f"the run was interrupted by {name}", Cause(kind="interrupted", data={"signal": name})
    if isinstance(error, MachineUnfit):
        return str(error), Cause(kind="device_lost")
    name = type(error).__name__
    return f"the harness failed: {name}: {error}", Cause(kind="harness_error", data={"type": name})


def _describe(result: TrialResult) -> str:
    """What became of a trial, in one line."""
    launch = f" launch {result.spec.launch + 1}" if result.status == "ok" else ""
    reason = f": {result.reason}" if result.reason else ""
    return f"{result.spec.cell}{launch}{reason}"
