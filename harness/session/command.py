"""One run as a command makes it: a folder, a session of measuring in it, the report, and the exit code."""

from __future__ import annotations

import contextlib
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from harness import reporting
from harness.launch.interrupts import install_signal_handlers
from harness.launch.launchers import opened
from harness.machine import machine_record
from harness.machine.devices import machine, require_healthy
from harness.planning.interpreters import check_interpreter_names
from harness.planning.matrix import check_data, check_something_runs
from harness.planning.outlook import Outlook
from harness.planning.plan import Plan
from harness.planning.resume import as_here, check_consent, check_machine
from harness.reporting import fits, summary
from harness.results import holds, run_folders, store
from harness.session.device_guard import DeviceGuard
from harness.session.environment import write_environment
from harness.session.measuring import Session
from harness.spec import GuardMode, TelemetryMode, TrialResult
from harness.spec.errors import Interrupted, MachineUnfit, UsageError
from harness.spec.progress import Display


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A run at the end of a session: all its results, and its folder."""

    results: list[TrialResult]
    folder: Path

    @property
    def exit_code(self) -> int:
        """0 if every trial ran, is pending or was rightly skipped, and no cell's losses disagree; 2 if a target was met
        before the first step; else 1. In a sweep of batches, to run out of memory is an answer and no failure."""
        if self.usage_error:
            return 2
        return 1 if fits.failed(summary.summarize(self.results)) else 0

    @property
    def usage_error(self) -> str:
        """What was asked for and makes no sense, which only a launch could find out; "" if nothing."""
        wrong = [result for result in self.results if result.cause is not None and result.cause.kind == "target_met"]
        return wrong[0].reason if wrong else ""


def start_run(
    plan: Plan,
    command: Sequence[str],
    *,
    out: Path | None,
    data: Path | None,
    name: str = "",
    recipe: str = "",
    outlook: Outlook | None = None,
    display: Display,
    budget_minutes: float | None = None,
    device_guard: GuardMode | None = None,
    telemetry: TelemetryMode = "on",
) -> Finished:
    """Measure a plan in a new folder and write its report.

    `command`: what is recorded in place of sys.argv. It includes what came from a file or the environment, and leaves
    out the run's folder. `name`: what a default folder is named after, in place of the workloads. `outlook`: what is
    told before the first launch. `device_guard`: what is done about others on the devices; None stands for "refuse" on
    GPUs and "warn" on CPU devices. `telemetry`: whether all launches are sampled, also those of later sessions.
    """
    check_data(data, plan)
    check_something_runs(plan)
    folder = run_folders.create_run_folder(out, root=Path("reports"), slug=_slug(plan, name), now=datetime.now())
    data = data.absolute() if data else None  # the run may be resumed from another folder
    typed = ["python", "-m", "harness", *command, *(["--data", str(data)] if data else [])]
    typed += ["--telemetry", telemetry] if telemetry == "off" else []
    intent = store.Intent(
        plan=plan,
        command=shlex.join(typed),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        recipe=recipe,
        data=str(data or ""),
        telemetry=telemetry,
        machine=machine_record.hardware(machine()),
    )
    try:
        store.write_intent(folder, intent)
    except (OSError, KeyboardInterrupt):
        store.discard(folder)
        raise
    try:
        with store.held(folder):
            return _measure_and_report(intent, folder, [], display, budget_minutes, device_guard, outlook=outlook)
    except (UsageError, MachineUnfit, OSError, KeyboardInterrupt):  # the last: Ctrl-C before the session began
        store.discard(folder)  # if nothing was measured, leave nothing behind
        raise


def _slug(plan: Plan, name: str) -> str:
    """What a run's default folder is named after."""
    names = [name] if name else list(dict.fromkeys(trial.spec.workload for trial in plan.trials))
    most_devices = max(trial.spec.devices for trial in plan.trials)
    return "-".join([*names, f"{most_devices}{plan.platform}"])


def resume_run(
    folder: Path,
    interpreters: Mapping[str, str],
    *,
    compile_cache: str = "",
    display: Display,
    budget_minutes: float | None = None,
    device_guard: GuardMode | None = None,
    trainings: bool = False,
) -> Finished:
    """Go on with a run: measure what has no result yet, and continue trainings from their last checkpoint.

    `interpreters`: by framework, a Python to use instead of the one that the run had. `compile_cache`: the run's own
    folder of compiled code, which the user must name again. `trainings`: a run that trains nothing is refused.
    """
    check_interpreter_names(interpreters)
    with store.held(folder):
        intent, finished = store.read_intent(folder, interpreters)
        if trainings and not any(trial.spec.training for trial in intent.plan.trials):
            raise UsageError(f"--resume {folder}: times steps and trains nothing; go on with `run --resume {folder}`")
        check_consent(intent.plan, interpreters=interpreters, compile_cache=compile_cache)
        if intent.plan.platform == "gpu":
            require_healthy(machine())
        here = machine_record.hardware(machine())
        aside = holds.set_aside(intent.plan, store.last_rows(folder), here)
        finished = [row for row in finished if (row.spec.cell, row.spec.launch) not in aside.trials]
        intent = replace(intent, plan=as_here(intent.plan, finished, store.cut_short(folder)))
        check_machine(intent.machine, here)
        return _measure_and_report(intent, folder.resolve(), finished, display, budget_minutes, device_guard, aside)


def _measure_and_report(
    intent: store.Intent,
    folder: Path,
    finished: list[TrialResult],
    display: Display,
    budget_minutes: float | None,
    device_guard: GuardMode | None,
    aside: holds.SetAside | None = None,
    outlook: Outlook | None = None,
) -> Finished:
    """Measure what is left of a run, or as much of it as there is time for, and write its report."""
    left = math.inf if budget_minutes is None else 60 * budget_minutes
    guard = _guard(intent, folder, finished, display, device_guard)
    frameworks = dict.fromkeys(spec.framework for spec in intent.plan.runnable())
    with contextlib.ExitStack() as whole:
        with guard.held(), opened(intent.plan.where, machine(), frameworks=frameworks) as launcher:
            known: Any = {"finished": finished, "aside": aside, "budget_seconds": left, "guard": guard}
            session = Session(intent, machine(), folder, launcher=launcher, outlook=outlook, display=display, **known)
            whole.enter_context(_interruptible(session, folder))
            try:
                session.measure_all()
            except BaseException as error:
                _write_reports(session, folder)  # whatever goes wrong there is less than what ended the session
                if isinstance(error, OSError):
                    raise _cannot_write(error, folder) from error
                raise
        problem = _write_reports(session, folder)
    if problem:
        raise _cannot_write(problem, folder) if isinstance(problem, OSError) else problem
    return Finished(results=session.rows.results, folder=folder)


@contextlib.contextmanager
def _interruptible(session: Session, folder: Path) -> Iterator[None]:
    """A signal in the block says at once that the run ends, and raises Interrupted, which knows what is left to do."""
    resumed = f"run --resume {shlex.quote(str(folder))}"
    restore = install_signal_handlers(f"ending; a second signal kills this program, and {resumed} goes on even then")
    try:
        yield
    except Interrupted as error:
        error.folder = str(folder)
        rows = session.rows.results
        error.measured = bool(rows) and all(result.status != "pending" for result in rows)
        raise
    finally:
        restore()


def _write_reports(session: Session, folder: Path) -> Exception | None:
    """Write environment.json and the report, if there is anything to report. Returns what kept one from being written.

    One does not keep the other from being written, and neither hides why a session ended.
    """
    problem = None
    if session.rows.results:
        for write in (
            lambda: write_environment(session, folder / "environment.json"),
            lambda: reporting.write(folder, session.rows.results),
        ):
            try:
                write()
            except Exception as error:
                problem = problem or error
    return problem


def _cannot_write(error: OSError, folder: Path) -> MachineUnfit:
    """What to do about a disk that is full, or a folder that can no longer be written."""
    where = f"{error.filename}: " if error.filename else ""
    return MachineUnfit(
        f"{where}{error.strerror or error}; what was measured until then is kept in {folder}: mend that, and go on "
        f"with run --resume {shlex.quote(str(folder))}"
    )


def _guard(
    intent: store.Intent,
    folder: Path,
    finished: Sequence[TrialResult],
    display: Display,
    mode: GuardMode | None,
) -> DeviceGuard:
    """The guard of the devices on which the run's launches take turns."""
    done = {(result.spec.cell, result.spec.launch) for result in finished}
    left = [spec for spec in intent.plan.runnable() if (spec.cell, spec.launch) not in done]
    if intent.plan.where.hosts:  # it would look at this machine alone
        return DeviceGuard((), mode="off", telemetry=False, folder=folder, display=display)
    make = partial(DeviceGuard, telemetry=intent.telemetry == "on", folder=folder, display=display)
    if intent.plan.platform == "cpu":
        # Their times say little anyway, and a machine has only one processor: a second run is told, not refused.
        return make(gpus=(), cpu=bool(left), mode=mode or "warn")
    gpus = machine().gpus[: intent.plan.most_devices() if left else 0]
    return make(gpus=gpus, mode=mode or "refuse")
