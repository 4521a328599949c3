"""One run from plan to report: prove every cell, time those that passed, write each outcome down as it happens.

Long because all that a session may keep, do again or leave undone is decided here, in one order.
"""

from __future__ import annotations

import importlib.metadata
import math
import shlex
import shutil
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from psutil import virtual_memory

import harness
from harness import checkpoints, workloads
from harness.gate.runs import Phase, check_init_from
from harness.launch import pool
from harness.launch.interrupts import signals_held
from harness.launch.local import Order, Outcome, code_digest, launch
from harness.launch.scratch import Scratch
from harness.machine import environment
from harness.machine.devices import Machine
from harness.results import store
from harness.results.judge import judge, timed, trained
from harness.session.references import References
from harness.spec import CUT_SHORT, FAILURES, OUT_OF_TIME, Status, TrialResult, TrialSpec, registry
from harness.spec.errors import Interrupted, UsageError
from harness.spec.progress import Display


class Run:
    """The state of one run: its folder, what is proved, what is still to do."""

    def __init__(
        self,
        intent: store.Intent,
        machine: Machine,
        folder: Path,
        *,
        display: Display,
        finished: Sequence[TrialResult] = (),
        budget_seconds: float = math.inf,
    ) -> None:
        """`finished`: what an earlier session in the same folder has measured, and need not be measured again.
        `budget_seconds`: no launch is begun that would last longer, by its cell's last one or else the longest."""
        self.plan, self.machine, self.folder, self.display = intent.plan, machine, folder, display
        self.scratch = Scratch()
        self.work = self.scratch.folder
        kept = self.plan.compile_cache
        self.compiled = Path(kept) if kept not in ("", "none") else self.work / "compiled"
        data = Path(intent.data) if intent.data else None
        self.references = References(self.work, data=data, display=display)
        self.proofs: dict[str, TrialResult] = {}  # by computation
        self.earlier_proofs = store.read_proofs(folder)
        self.made_with: dict[tuple[str, str, str], dict[str, str]] = {}  # proofs, by framework, workload and size
        self.ends = time.monotonic() + budget_seconds
        self.longest: dict[str, float] = {}  # seconds of a launch, by phase; "ok": of any phase, that ended well
        self.last: dict[tuple[str, str], float] = {}  # of a cell, by phase and computation: warm ones are shorter
        self.cuts: dict[str, str] = {}  # where each was cut into stages
        self.results = list(finished)
        self.most_devices = max(trial.spec.devices for trial in self.plan.trials)
        self.about = {
            "command": intent.command,
            "recipe": intent.recipe,
            "started": intent.started,  # names the run; a run that is resumed is measured in several sessions
            "session": datetime.now(UTC).isoformat(timespec="seconds"),
            "preset": self.plan.preset,
            "planned": str(len(self.plan.trials)),
            "version": harness.__version__,
            "commit": environment.commit(),
            "data": "that of --data" if data else "bundled",
            "variables": shlex.join(f"{name}={value}" for name, value in environment.inherited().items()),
        }

    def execute(self) -> list[TrialResult]:
        """All trials of the plan, in order. Always leaves one result for each; re-raises an interruption afterwards."""
        finished = self.recorded()
        specs = [spec for spec in self.plan.runnable() if (spec.cell, spec.launch) not in finished]
        computations = {spec.computation: spec for spec in reversed(specs)}  # the first of each
        computations = dict(reversed(computations.items()))
        self.display.start(len(computations) + len(specs))
        try:
            # bad --data or a diverging optimizer shows here, before anything is recorded
            for spec in specs:
                self.references.prepare(spec)
            for spec in specs:
                check_init_from(spec)
                if reason := self.references.impossible(spec):
                    self.record(self.result(spec, status="skipped", reason=reason))
                    computations.pop(spec.computation, None)
            specs = [spec for spec in specs if spec.computation in computations]
            unproved = [spec for spec in computations.values() if not self.keeps_proof(spec)]
            to_prove: list[tuple[TrialSpec, Phase]] = [(spec, "parity") for spec in unproved]
            to_time: list[tuple[TrialSpec, Phase]] = [(spec, "timing") for spec in specs]
            self.references.compute([*to_prove, *to_time], over=lambda: time.monotonic() > self.ends)
            failed = {spec.computation: reason for spec in specs if (reason := self.references.failure(spec))}
            for spec in specs:
                if spec.computation in failed:  # not its fault: --resume tries again
                    reason = failed[spec.computation]
                    status = "pending" if reason == OUT_OF_TIME else "killed"
                    self.record(self.result(spec, status=status, reason=reason))
            specs = [spec for spec in specs if spec.computation not in failed]
            unproved = [spec for spec in unproved if spec.computation not in failed]
            for trial in self.plan.trials:
                if trial.status != "planned" and (trial.spec.cell, trial.spec.launch) not in finished:
                    self.record(self.result(trial.spec, status=trial.status, reason=trial.reason))
            for spec in self.prove_together(unproved):
                if self.has_time("parity"):
                    self.prove(spec)
            for spec in specs:
                if spec.computation in self.proofs and self.has_time("training" if spec.training else "timing", spec):
                    self.measure(spec)
            self.give_up(specs, OUT_OF_TIME, status="pending")
        except Interrupted as interruption:
            self.give_up(specs, f"the run was interrupted by {signal.Signals(interruption.number).name}")
            raise
        except UsageError:
            raise
        except Exception as error:
            self.give_up(specs, f"the harness failed: {type(error).__name__}: {error}")
            raise
        finally:
            self.display.close()
            self.scratch.remove()
        return self.results

    def has_time(self, phase: str, spec: TrialSpec | None = None) -> bool:
        """Whether a launch of this phase, of some cell or this one, can end before the session does."""
        expected = self.longest.get(phase, self.longest.get("ok", 0.0))
        if spec is not None:
            expected = self.last.get((phase, spec.computation), expected)
        return time.monotonic() + expected < self.ends

    def keeps_proof(self, spec: TrialSpec) -> bool:
        """Whether an earlier session has proved this cell by the same code on the same samples; its row is then kept.

        Versions and variables are compared when it has been launched: until then nobody knows them.
        """
        proof = self.earlier_proofs.get(spec.computation)
        if proof is None or not self.proved_by(spec).items() <= proof.run.items() or spec.options.get("cut") == "time":
            return False
        self.proofs[spec.computation] = proof
        self.display.advance()
        self.display.done(f"parity of {spec.computation}: proved in an earlier session", "ok")
        return True

    def proved_by(self, spec: TrialSpec) -> dict[str, str]:
        """What a proof in this session is made with, beside what its launch tells. Read once: samples can be large."""
        made_with = (spec.framework, spec.workload, spec.size)
        if made_with not in self.made_with:
            samples = str(self.references.batches(spec).fingerprint())
            self.made_with[made_with] = {"code": code_digest(spec.framework), "samples": samples}
        return self.made_with[made_with]

    def prove_together(self, specs: list[TrialSpec]) -> list[TrialSpec]:
        """The parity phases of all, several at a time where they may share GPUs; returns those to be proved alone."""
        together = [spec for spec in specs if pool.may_share(spec)]
        at_once = pool.at_once(together, cores=len(self.machine.cores), memory_bytes=virtual_memory().available)
        if at_once == 1:
            return specs
        self.display.phase(f"parity of {len(together)} cells, {at_once} at a time")
        alone = [spec for spec in specs if spec not in together]
        has_time = partial(self.has_time, "parity")
        for spec, outcome in pool.side_by_side(self.launch_proof, together, at_once=at_once, has_time=has_time):
            if judge(self.result(spec, outcome=outcome), outcome).status in pool.TRIED_ALONE:
                self.display.done(f"parity of {spec.computation}: {outcome.reason}; to be tried alone", "again")
                alone.append(spec)
            else:
                self.proved(spec, outcome)
        return alone

    def launch_proof(self, spec: TrialSpec, stop: threading.Event | None = None) -> Outcome:
        """The parity phase of a cell; with `stop` beside others."""
        reference, groups = self.references.reference(spec)
        return self.launch(spec, "parity", reference, len(groups), stop=stop)

    def prove(self, spec: TrialSpec) -> None:
        """The parity phase of a cell, alone."""
        self.display.phase(f"parity {spec.computation}")
        self.proved(spec, self.launch_proof(spec))

    def proved(self, spec: TrialSpec, outcome: Outcome) -> None:
        """Judge a parity phase; a cell that fails gets its rows now and is never timed."""
        proof = judge(self.result(spec, outcome=outcome), outcome)
        self.proofs[spec.computation] = proof
        if proof.status == "ok":
            store.append(self.folder, replace(proof, run=proof.run | self.proved_by(spec)), name=store.PROOFS)
        self.cuts[spec.computation] = next((answer.get("cut", "") for answer in outcome.answers), "")
        self.display.advance()
        if proof.status == "ok":
            assert proof.parity is not None
            worst = max(check.error for check in proof.parity.checks)
            self.display.done(f"parity of {spec.computation}: worst relative error {worst:.1e}", "ok")
        else:
            recorded = self.recorded()
            with signals_held():  # of all launches: none may be left for --resume to try again
                for other in self.plan.runnable():
                    if other.computation == spec.computation and (other.cell, other.launch) not in recorded:
                        self.record(replace(proof, spec=other))

    def measure(self, spec: TrialSpec) -> None:
        """The timing phase of one launch."""
        proof = self.proofs[spec.computation]
        if proof.status == "ok":
            if spec.options.get("cut") == "time":  # every launch is cut where the proved program was
                spec = replace(spec, options=spec.options | {"cut": self.cuts[spec.computation]})
            phase, judged = ("training", trained) if spec.training else ("timing", timed)
            self.display.phase(f"{phase} {spec.cell} launch {spec.launch + 1}")
            outcome = self.launch(spec, phase, Path("unused"), 1)
            self.display.advance()
            result = self.result(spec, outcome=outcome)
            if result.versions and not same_conditions(result, proof):  # as of an earlier session's proof
                self.prove(spec)
                proof = self.proofs[spec.computation]
                if proof.status != "ok":
                    return
            self.record(judged(result, outcome, proof.parity, self.references.golden_losses(spec)))
        else:
            self.display.advance()

    def launch(
        self, spec: TrialSpec, phase: Any, reference: Path, groups: int, stop: threading.Event | None = None
    ) -> Outcome:
        """Launch one phase and keep its logs. When the session is over it is ended, and has not yet run."""
        name = f"{spec.computation}-parity" if phase == "parity" else f"{spec.cell}-launch{spec.launch}"
        folder = self.work / f"{name}-{time.monotonic_ns()}"  # what could not be removed is in no second try's way
        fresh = self.plan.compile_cache == "none"  # every launch compiles anew, into a folder of its own
        inputs = self.references.inputs[f"{spec.workload}-{spec.size}"]
        order = Order(
            spec=spec,
            phase=phase,
            interpreter=self.plan.interpreters[spec.framework],
            folder=folder,
            inputs=inputs.train,
            golden=reference,
            test=inputs.test,
            run_folder=self.folder,
            checkpoint=checkpoints.newest(self.folder, spec.cell, spec.launch) if phase == "training" else None,
            init_from=Path(spec.training.init_from) if spec.training and spec.training.init_from else None,
            compile_cache=self.compiled / spec.framework / (name if fresh else f"{spec.computation}-{phase}"),
            shares=stop is not None,
            groups=groups,
            devices_in_plan=self.most_devices,
        )
        began = time.monotonic()
        known = [phase]
        over, end = threading.Event(), stop or threading.Event()
        seconds = min(max(0.0, self.ends - began), threading.TIMEOUT_MAX)
        timer = threading.Timer(seconds, lambda: (over.set(), end.set()))
        timer.daemon = True
        try:
            if math.isfinite(self.ends):
                timer.start()
            outcome = launch(order, self.machine, on_progress=self.display.detail, stop=end)
            if over.is_set() and outcome.status != "ok":
                outcome = replace(outcome, status="pending", reason=CUT_SHORT, traceback="")
            known += ["ok"] * (outcome.status == "ok")
            return outcome
        finally:
            timer.cancel()
            took = time.monotonic() - began
            self.last[phase, spec.computation] = took
            self.longest |= {each: max(self.longest.get(each, 0.0), took) for each in known}
            logs = self.folder / "logs" / name
            logs.mkdir(parents=True, exist_ok=True)  # a run that was resumed may have been here before
            for path in sorted(folder.glob("*.log")):
                shutil.copy(path, logs)
            shutil.rmtree(folder, ignore_errors=True)

    def result(self, spec: TrialSpec, *, outcome: Outcome | None = None, **known: Any) -> TrialResult:
        """A result with all that does not depend on how the trial went."""
        base = TrialResult(
            spec=spec,
            status="crashed",
            unit=workloads.get(spec.workload, spec.size).unit,
            machine=environment.hardware(self.machine),
            run=self.about,
        )
        if outcome is None:
            return replace(base, **known)
        first = next((answer for answer in outcome.answers if answer.get("versions")), {})
        return replace(
            base,
            status=outcome.status,
            reason=outcome.reason,
            traceback=outcome.traceback,
            versions=first.get("versions", {}),
            libraries=first.get("libraries", {}),
            lock=first.get("lock"),
            environment=first.get("environment", {}),
            cores=outcome.cores,
            **known,
        )

    def record(self, result: TrialResult) -> None:
        with signals_held():  # a result is in both places or in none
            store.append(self.folder, result)
            self.results.append(result)
        self.display.done(describe(result), result.status)

    def recorded(self) -> set[tuple[str, int]]:
        """The trials that have a row, by cell and launch."""
        return {(result.spec.cell, result.spec.launch) for result in self.results}

    def give_up(self, specs: list[TrialSpec], reason: str, *, status: Status = "killed") -> None:
        """A row for every trial that has none yet."""
        recorded = self.recorded()
        for spec in specs:
            if (spec.cell, spec.launch) not in recorded:
                proof = self.proofs.get(spec.computation)
                known = {"status": status, "reason": reason, "parity": proof.parity if proof else None}
                self.record(self.result(spec, **known))


def same_conditions(result: TrialResult, proof: TrialResult) -> bool:
    """Whether a timed launch had the versions and variables of its proof, but for those that share GPUs."""
    sharing = registry.framework(result.spec.framework).sharing
    ours, theirs = (
        {name: value for name, value in each.environment.items() if name not in sharing} for each in (result, proof)
    )
    return result.versions == proof.versions and ours == theirs


def describe(result: TrialResult) -> str:
    """One line on what became of a trial."""
    spec = result.spec
    launch = f" launch {spec.launch + 1}" if result.status in ("ok",) else ""
    return f"{spec.cell}{launch}" + (f": {result.reason}" if result.reason else "")


def exit_code(results: list[TrialResult]) -> int:
    """0 if every trial ran or was rightly skipped, else 1."""
    return 1 if any(result.status in FAILURES for result in results) else 0


def write_environment(run: Run, path: Path) -> None:
    """environment.json: the machine, the versions that workers reported, the variables they got, and the plan."""
    seen: dict[str, Any] = {}
    for result in run.results:
        if result.versions:
            known = {"versions": result.versions, "libraries": result.libraries, "lock": result.lock}
            seen[result.spec.framework] = known | {"variables": result.environment}
    packages = {item.metadata["Name"]: item.version for item in importlib.metadata.distributions()}
    content = {
        "run": run.about,
        "machine": environment.hardware(run.machine),
        "frameworks": seen,
        "harness_packages": dict(sorted(packages.items())),
        "plan": [asdict(spec) for spec in run.plan.runnable()],
    }
    store.write_json(path, content)
