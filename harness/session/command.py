"""One run as a command makes it: a folder, the plan run in it, the report, and the exit code."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from harness import reporting
from harness.launch.interrupts import install_signal_handlers
from harness.machine import environment
from harness.machine.devices import machine
from harness.planning.interpreters import check_interpreter_names
from harness.planning.matrix import check_data
from harness.planning.plan import Plan
from harness.planning.resume import as_here, check_machine
from harness.results import store
from harness.session.measuring import Run, exit_code, write_environment
from harness.spec import TrialResult
from harness.spec.errors import Interrupted, UsageError
from harness.spec.progress import Display


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A run at its end, or at that of its budget: all its results, and where they are."""

    results: list[TrialResult]
    folder: Path

    @property
    def exit_code(self) -> int:
        return exit_code(self.results)


def execute(
    plan: Plan,
    command: Sequence[str],
    *,
    out: Path | None,
    data: Path | None,
    name: str = "",
    recipe: str = "",
    display: Display,
    budget_minutes: float | None = None,
) -> Finished:
    """Run a plan and write its report.

    `command` is recorded instead of sys.argv: what a file or the environment said belongs to it, and where this run
    went does not.
    """
    chosen = [name] if name else list(dict.fromkeys(trial.spec.workload for trial in plan.trials))
    slug = "-".join([*chosen, f"{max(trial.spec.devices for trial in plan.trials)}{plan.platform}"])
    check_data(data, plan)
    if all(trial.status == "skipped" for trial in plan.trials):
        first = plan.trials[0]
        raise UsageError(f"nothing can run here: {first.spec.framework} {first.spec.strategy}: {first.reason}")
    folder = store.create_run_folder(out, root=Path("reports"), slug=slug, now=datetime.now())
    data = data.absolute() if data else None  # a run may be resumed from elsewhere
    typed = shlex.join(["python", "-m", "harness", *command, *(["--data", str(data)] if data else [])])
    started = datetime.now(UTC).isoformat(timespec="seconds")
    intent = store.Intent(plan=plan, command=typed, started=started, recipe=recipe, data=str(data or ""))
    intent = replace(intent, machine=environment.hardware(machine()))
    store.write_intent(folder, intent)
    try:
        with store.held(folder):
            return carry_out(intent, folder, [], display, budget_minutes)
    except UsageError:
        store.discard(folder)  # if nothing was measured, leave nothing behind
        raise


def resume(
    folder: Path, interpreters: Mapping[str, str], *, display: Display, budget_minutes: float | None = None
) -> Finished:
    """Go on with a run: measure what has no result yet, trainings from their last checkpoint.

    `interpreters`: a Python for a framework by its name, instead of the one that the run had.
    """
    check_interpreter_names(interpreters)
    with store.held(folder):
        intent, finished = store.read_intent(folder, interpreters)
        intent = replace(intent, plan=as_here(intent.plan, finished, store.cut_short(folder)))
        check_machine(intent.machine, environment.hardware(machine()))
        return carry_out(intent, folder.resolve(), finished, display, budget_minutes)


def carry_out(
    intent: store.Intent,
    folder: Path,
    finished: list[TrialResult],
    display: Display,
    budget_minutes: float | None = None,
) -> Finished:
    """Do what is left of a run in its folder, or as much of it as there is time for, and write its report."""
    budget = math.inf if budget_minutes is None else 60 * budget_minutes
    this = Run(intent, machine(), folder, finished=finished, budget_seconds=budget, display=display)
    restore = install_signal_handlers()
    try:
        results = this.execute()
    except Interrupted as interruption:
        interruption.folder = str(folder)
        raise
    finally:
        restore()
        if this.results:
            write_environment(this, folder / "environment.json")
            reporting.write(folder, this.results)
    return Finished(results=results, folder=folder)
