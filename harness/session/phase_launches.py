"""Launches the phases of a session's trials in the time that is left, each in its own folder, and keeps the logs."""

from __future__ import annotations

import contextlib
import itertools
import math
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from harness import checkpoints
from harness.gate.runs import check_init_from
from harness.launch import logs
from harness.launch.launcher import Launch, Launcher, Outcome, launch
from harness.messages import Phase
from harness.planning.judges import judge_of
from harness.planning.plan import Plan
from harness.planning.presets import COLD_SHARE
from harness.session.budget import Budget
from harness.session.device_guard import DeviceGuard
from harness.session.references import References
from harness.spec import CUT_SHORT, Cause, Precision, TrialSpec, registry, workload_packages
from harness.spec.errors import UsageError
from harness.spec.progress import Display


class PhaseLaunches:
    """What all launches of a session have in common."""

    def __init__(
        self,
        plan: Plan,
        *,
        launcher: Launcher,
        run_folder: Path,
        work: Path,
        references: References,
        budget: Budget,
        guard: DeviceGuard,
        display: Display,
    ) -> None:
        """`work`: the session's scratch folder."""
        self._guard = guard
        self._peers: dict[tuple, Path] = {}  # references that frameworks have made for each other
        self._one_peer_at_a_time = threading.Lock()  # parity phases run side by side
        self._plan, self._launcher, self._run_folder, self._work = plan, launcher, run_folder, work
        self._references, self._budget, self._display = references, budget, display
        own_cache = plan.compile_cache not in ("", "none")
        self._compile_cache = Path(plan.compile_cache) if own_cache else work / "compiled"
        self._checkpoints: dict[tuple[str, int], Path | None] = {}  # that trainings go on from, by cell and launch
        self._most_devices = plan.most_devices()

    def find_start(self, spec: TrialSpec) -> None:
        """Find what a trial begins with, if not new weights, and say so if its last checkpoint is damaged.

        Raises UsageError for a checkpoint of --init-from that does not fit, and if all checkpoints are damaged.
        """
        check_init_from(spec)
        if spec.training is None:
            return
        found, wrong = checkpoints.newest(self._run_folder, spec.cell, spec.launch)
        if found is None and wrong:
            folder = checkpoints.path_of(self._run_folder, spec.cell, spec.launch, 0).parent
            raise UsageError(f"--resume: {wrong[0]}; none in {folder} is whole: remove them to train from new weights")
        if wrong:
            self._display.done(f"{spec.cell} launch {spec.launch + 1} goes on from {found}, since {wrong[0]}", "note")
        self._checkpoints[spec.cell, spec.launch] = found

    def run_parity(self, spec: TrialSpec, stop: threading.Event | None = None) -> Outcome:
        """Run the parity phase of a cell. With `stop`, which ends it, it shares the devices with others.

        Where stages are balanced by measured times, the program that will be timed is cut first, and the parity phase
        proves that cut: its own small batches in float64 would balance the stages otherwise.

        Raises MachineUnfit if a GPU is lost.
        """
        judge = judge_of(spec, self._plan)
        if judge is None:
            reference, groups = self._references.reference(spec)
        else:
            made = self._peer_reference(spec, judge, stop)
            if isinstance(made, Outcome):
                return made
            reference, groups = made, (spec.parity_batch,)
        if spec.is_cut_by_time:
            cut = self._run_unless_lost(self._launch(spec, "cut"), stop)
            if cut.status != "ok":
                return replace(cut, reason=f"while its blocks were timed to cut it into stages: {cut.reason}")
            spec = spec.cut_at(cut.answers[0].cut)
        parity = self._launch(spec, "parity", reference=reference, groups=len(groups), shares=stop is not None)
        return self._run_unless_lost(parity, stop)

    def judge(self, spec: TrialSpec) -> str:
        """The framework whose training is the reference of a cell; "" if NumPy's is."""
        found = judge_of(spec, self._plan)
        return found.framework if found else ""

    def _peer_reference(self, spec: TrialSpec, judge: TrialSpec, stop: threading.Event | None) -> Path | Outcome:
        """The file with the training by which another framework judges a cell, made once; or how that failed."""
        key = (judge.framework, *self._references.key(spec, "parity"))
        with self._one_peer_at_a_time:
            if key in self._peers:
                return self._peers[key]
            self._work.mkdir(exist_ok=True)
            output = self._work / f"peer-{len(self._peers)}.npz"
            planned = replace(self._launch(judge, "peer", shares=stop is not None), output=output)
            outcome = self._run_unless_lost(planned, stop)
            if outcome.status == "ok":
                self._peers[key] = output
                return output
        title = registry.framework(judge.framework).title
        return replace(outcome, reason=f"its judge, {title} on one device, failed: {outcome.reason}", answers=())

    def run_reference(self, spec: TrialSpec, output: Path, *, rounding: Precision) -> Outcome:
        """Train a float64 cell on its device, and write the reference of the timed cells of a precision to a file."""
        return self._run(replace(self._launch(spec, "reference"), output=output, rounding=rounding), None)

    def run_measurement(self, spec: TrialSpec, curve: Path | None) -> Outcome:
        """Run the timing phase of a trial, or its training. `curve`: the reference of its first steps.

        Raises MachineUnfit if a GPU is lost.
        """
        planned = self._launch(spec, "training") if spec.training else self._launch(spec, "timing", reference=curve)
        stop = threading.Event()
        with self._guard.watching(spec.devices, stop, launch=spec.launch) as watch:
            began = time.monotonic()
            outcome = self._run(planned, stop)
            seconds = time.monotonic() - began
        timings = [answer.timing for answer in outcome.answers if answer.timing is not None]
        measured = watch.telemetry(timings)
        return replace(outcome, disturbances=watch.found, telemetry=measured, wall_seconds=seconds)

    def _run_unless_lost(self, planned: Launch, stop: threading.Event | None) -> Outcome:
        """Launch a phase. Raises MachineUnfit if it fails and a GPU is lost."""
        outcome = self._run(planned, stop)
        if outcome.status != "ok":
            self._guard.require_devices()
        return outcome

    def _run(self, planned: Launch, stop: threading.Event | None) -> Outcome:
        """Launch a phase. When the session is over it is ended, and counts as not yet run."""
        stop = stop or threading.Event()
        began, succeeded = time.monotonic(), False
        said = partial(self._said, planned.spec)
        try:
            with self._budget.stopping(stop) as over, self._logs_kept(planned) as kept:
                outcome = launch(planned, self._launcher, on_progress=self._display.detail, on_said=said, stop=stop)
            succeeded = outcome.status == "ok"
            if over.is_set() and not succeeded:
                return replace(outcome, status="pending", reason=CUT_SHORT, cause=Cause(kind="cut_short"), traceback="")
            if outcome.status == "crashed" and not workload_packages.is_ours(planned.spec.workload):
                log = kept[0].relative_to(self._run_folder)
                return replace(outcome, reason=f"{outcome.reason}; the whole log is in {log}/ of the run's folder")
            return outcome
        finally:
            self._budget.record(planned.phase, planned.spec, time.monotonic() - began, succeeded=succeeded)

    def _said(self, spec: TrialSpec, line: str) -> None:
        """Show a line of a launch."""
        self._display.done(f"{spec.cell} launch {spec.launch + 1}: {line}", "epoch")

    def _launch(
        self,
        spec: TrialSpec,
        phase: Phase,
        *,
        reference: Path | None = None,
        groups: int = 1,
        shares: bool = False,
    ) -> Launch:
        inputs = self._references.inputs_of(spec)
        name = _name(spec, phase)
        return Launch(
            spec=spec,
            phase=phase,
            interpreter=self._plan.interpreters[spec.framework],
            # A new name each time: a folder that could not be removed must not block the next attempt.
            folder=self._work / f"{name}-{time.monotonic_ns()}",
            inputs=inputs.train,
            golden=reference,
            validation=inputs.validation,
            test=inputs.test,
            run_folder=self._run_folder,
            checkpoint=self._checkpoints.get((spec.cell, spec.launch)) if phase == "training" else None,
            init_from=Path(spec.training.init_from) if spec.training and spec.training.init_from else None,
            compile_cache=self._compile_cache / spec.framework / cache_name(spec, phase, self._plan),
            shares=shares,
            groups=groups,
            replicated=self._plan.launches > 1,
            devices_in_plan=self._most_devices,
        )

    @contextlib.contextmanager
    def _logs_kept(self, planned: Launch) -> Iterator[list[Path]]:
        """Copies the logs of a launch to the run's folder at the end, and removes the launch's own folder. The list
        then has the folder with the copies.

        A launch that is tried again, in this session or a later one, gets another folder: what the first one printed
        may say why it failed.
        """
        kept: list[Path] = []
        try:
            yield kept
        finally:
            folder = self._new_log_folder(_name(planned.spec, planned.phase))
            kept.append(folder)
            for path in sorted(planned.folder.glob("*.log")):
                if path.is_file():
                    logs.keep(path, folder / path.name)
            shutil.rmtree(planned.folder, ignore_errors=True)

    def _new_log_folder(self, name: str) -> Path:
        """logs/NAME, or logs/NAME-2 and so on for the next attempts."""
        folder = self._run_folder / "logs" / name
        for attempt in itertools.count(2):
            try:
                folder.mkdir(parents=True)
                break
            except FileExistsError:
                folder = folder.with_name(f"{name}-{attempt}")
        return folder


def cache_name(spec: TrialSpec, phase: Phase, plan: Plan) -> str:
    """The name of the folder in which the framework keeps compiled code.

    A folder of the user's is for all launches of a cell. Otherwise most launches have one of their own, so that they
    compile anew, and the others share that of launch 0, as far as this session made it. A twin shares with no other
    cell: the code that it compiles belongs to what differs between equal programs.
    """
    anew = {"": cold_launches(plan.launches), "none": plan.launches}.get(plan.compile_cache, 0)
    return _name(spec if spec.launch < anew else replace(spec, launch=0), phase)


def cold_launches(launches: int) -> int:
    """How many launches of a cell compile anew. Which kernels are chosen differs from one compilation to the next, so
    compilations are replicated as launches are; the others show what a start with compiled code takes."""
    return math.ceil(COLD_SHARE * launches)


def _name(spec: TrialSpec, phase: Phase) -> str:
    """The name of a launch's folders."""
    return f"{spec.cell}-launch{spec.launch}" if phase in ("timing", "training") else f"{spec.computation}-{phase}"
