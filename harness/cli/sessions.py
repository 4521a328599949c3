"""A session of measuring as a command makes it: begun or continued, shown at the end, and turned into an exit code."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.arguments import RunArguments, typed
from harness.cli.commands.plan import check_files, print_plan
from harness.cli.output import fail, flush, write
from harness.machine.devices import machine
from harness.planning import outlook
from harness.planning.matrix import check_something_runs
from harness.planning.plan import Plan
from harness.spec import GuardMode, TelemetryMode

if TYPE_CHECKING:  # importing a session takes longer than most commands
    from harness.session.command import Finished


def start_and_show(
    plan: Plan,
    command: Sequence[str],
    *,
    size: str | None,
    out: Path | None,
    data: Path | None = None,
    budget_minutes: float | None,
    device_guard: GuardMode | None,
    telemetry: TelemetryMode | None,
    name: str = "",
    recipe: str = "",
    dry_run: bool = False,
) -> int:
    """Measure a plan, show the results, and return the exit code. `size`: what --size names. `dry_run`: show what would
    be done instead."""
    if dry_run:
        flags = {"out": out, "data": data, "budget-minutes": budget_minutes}
        flags |= {"device-guard": device_guard, "telemetry": telemetry}
        show_start(plan, [*command, *typed(flags)], size=size, out=out, data=data)
        return 0
    from harness.cli.terminal import make_display
    from harness.session.command import start_run

    finished = start_run(
        plan,
        command,
        out=out,
        data=data,
        outlook=partial(outlook.sentences, plan, size=size, cores=len(machine().cores)),
        name=name,
        recipe=recipe,
        display=make_display(),
        budget_minutes=budget_minutes,
        device_guard=device_guard,
        telemetry=telemetry or ("off" if plan.where.hosts else "on"),
    )
    return show_finished(finished)


def show_start(plan: Plan, command: Sequence[str], *, size: str | None, out: Path | None, data: Path | None) -> None:
    """Show what `command` would do: its cells, or what it would start on the hosts of its plan.

    Raises UsageError, then, where no cell can run.
    """
    from harness.launch import launchers

    samples = check_files(plan, out=out, data=data)
    if plan.where.hosts:
        write(launchers.dry_run(plan.where, shlex.join([sys.executable, "-m", "harness", *command])))
    else:
        cells = tuple(trial for trial in plan.trials if trial.spec.launch == 0)
        print_plan(replace(plan, trials=cells), size=size, samples=samples)
    check_something_runs(plan)


def resume_and_show(
    folder: Path,
    arguments: RunArguments,
    budget_minutes: float | None,
    device_guard: GuardMode | None,
    *,
    trainings: bool = False,
) -> int:
    """Go on with a run, show the results, and return the exit code. `trainings`: refuse a run that trains nothing."""
    from harness.cli.terminal import make_display
    from harness.session.command import resume_run

    finished = resume_run(
        folder,
        arguments.interpreters,
        compile_cache=arguments.compile_cache,
        display=make_display(),
        budget_minutes=budget_minutes,
        device_guard=device_guard,
        trainings=trainings,
    )
    return show_finished(finished)


def show_finished(finished: Finished) -> int:
    """Show the results of a run; returns its exit code."""
    from harness.cli.screen import show

    with contextlib.suppress(OSError):  # the terminal is gone: the report is written
        show(finished.results, finished.folder)
    flush()
    if finished.usage_error:
        fail(finished.usage_error, finished.exit_code)
    return finished.exit_code
