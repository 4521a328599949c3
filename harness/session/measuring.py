"""One session of measuring: prove every cell, time those that passed, and write down each outcome as it happens."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from harness.gate.runs import Phase
from harness.launch.launcher import Launcher, Outcome
from harness.launch.scratch import Scratch
from harness.machine import machine_record
from harness.machine.devices import Machine
from harness.machine.telemetry import busy_host
from harness.planning.launch_order import in_order
from harness.planning.outlook import Outlook
from harness.planning.plan import first_of_each_computation
from harness.reference.golden import read_losses
from harness.results import holds, store
from harness.results.judge import timed, trained
from harness.session.budget import Budget
from harness.session.conditions import before_launch, run_facts
from harness.session.device_guard import DeviceGuard
from harness.session.device_references import DeviceReferences
from harness.session.phase_launches import PhaseLaunches
from harness.session.proofs import Proofs, changed_since
from harness.session.proving import Proving
from harness.session.references import References
from harness.session.rounds import Rounds
from harness.session.rows import Rows, why_ended
from harness.spec import OUT_OF_TIME, Cause, Conditions, Status, TrialResult, TrialSpec
from harness.spec.errors import Interrupted, UsageError
from harness.spec.progress import Display


class Session:
    """The state of one session: the run's rows and proofs, the time left, and the scratch folder.

    `launcher`: of this machine or its hosts; whoever made it closes it.
    `finished`: rows of earlier sessions in the same folder, which are not measured again; those `aside` are.
    `guard`: of the devices, if they are to be kept from others.
    `outlook`: makes what is told before what takes long: the golden runs, and the launches.
    `budget_seconds`: no launch begins that is expected to end later, and what has not ended by then is ended.
    """

    def __init__(
        self,
        intent: store.Intent,
        machine: Machine,
        folder: Path,
        *,
        launcher: Launcher,
        display: Display,
        finished: Sequence[TrialResult] = (),
        aside: holds.SetAside | None = None,
        budget_seconds: float = math.inf,
        guard: DeviceGuard | None = None,
        outlook: Outlook | None = None,
    ) -> None:
        self.plan, self.machine, self.display, self._outlook = intent.plan, machine, display, outlook
        guard = guard or DeviceGuard((), mode="off", folder=folder, display=display)
        self.hardware = machine_record.hardware(machine)
        self.scratch = Scratch()
        self.budget = Budget(budget_seconds, (*finished, *(aside.rows if aside else ())))
        data = Path(intent.data) if intent.data else None
        self.references = References(self.scratch.folder, data=data, display=display)
        self.rows = Rows(
            folder,
            hardware=self.hardware,
            about=run_facts(intent, guard.mode, launcher.links),
            data_given=bool(intent.data),
            finished=finished,
            aside=aside or holds.SetAside(),
            display=display,
        )
        self.proofs = Proofs(folder, self.references)
        self.launches = PhaseLaunches(
            self.plan,
            launcher=launcher,
            run_folder=folder,
            work=self.scratch.folder,
            references=self.references,
            budget=self.budget,
            guard=guard,
            display=display,
        )
        self.proving = Proving(
            self.plan, machine, self.proofs, self.launches, self.rows, self._row, budget=self.budget, display=display
        )
        self.device_references = DeviceReferences(
            self.references, self.launches, self.proofs, row=self._row, work=self.scratch.folder, display=display
        )

    def measure_all(self) -> list[TrialResult]:
        """Run all trials of the plan, in order. Always leaves a row for each; re-raises an interruption afterwards."""
        trials = [spec for spec in self.plan.runnable() if not self.rows.has(spec)]
        self.display.start(len(first_of_each_computation(trials)) + len(trials))
        try:
            self._prove_and_measure(trials)
        except UsageError:
            raise
        except (Interrupted, Exception) as error:
            # What Ctrl-C kept from running has not failed: it waits for --resume.
            status = "pending" if isinstance(error, Interrupted) else "killed"
            self._give_up(trials, *why_ended(error), status=status)
            raise
        finally:
            self.display.close()
            self.scratch.remove()
        return self.rows.results

    def _prove_and_measure(self, trials: Sequence[TrialSpec]) -> None:
        """All steps of a session in their order. Each step passes on the trials that can still be measured."""
        busy = busy_host() if trials and self.plan.platform == "cpu" else ""  # before references are computed
        if not trials:
            left = "nothing is left to measure" if self.plan.runnable() else "no cell can run here"
            self.display.done(f"{left}; writing the report", "note")
        for spec in trials:  # a bad --data or a diverging optimizer is found here, before any row is written
            self.references.prepare(spec)
            self.launches.find_start(spec)
        possible = self.rows.skip(trials, why=self.references.impossible)
        unproved = [spec for spec in first_of_each_computation(possible) if not self._reuse_proof(spec)]
        self._compute_references(unproved, possible)
        ready = self._drop_without_reference(possible)
        self.rows.add_idle(self.plan)
        self._tell_outlook()
        if busy:
            self.display.done(busy, "note")
        first, *later = in_order(first_of_each_computation(ready)) or [[]]
        self.proving.prove(first)
        at_most = self.budget.seconds if unproved else self.budget.left()
        self._measure_by_rounds(ready, at_most=at_most, later={spec.computation for group in later for spec in group})
        self._give_up(ready, OUT_OF_TIME, Cause(kind="not_begun"), status="pending")

    def _measure_by_rounds(self, trials: Sequence[TrialSpec], *, at_most: float, later: Collection[str]) -> None:
        """Measure what was proved, as far as there is time. `at_most`: seconds that a session can have for a round.

        `later`: computations to be proved when they are reached. In a sweep of batches these are all but those of the
        smallest batch, so that no time is lost on a batch that cannot fit.
        """
        rounds = Rounds(
            self.budget,
            self.proofs,
            launches=self.plan.launches,
            at_most=at_most,
            later=later,
            display=self.display,
        )
        for trials_of_round in rounds.that_fit(trials):
            self.rows.begin_again(trials_of_round)
            for alike in in_order(trials_of_round):
                fitting = [spec for spec in alike if not self._skip_too_large(spec)]
                self.proving.prove(first_of_each_computation(fitting))
                for spec in fitting:
                    phase = "training" if spec.training else "timing"
                    if self.proofs.get(spec) and self.budget.allows(phase, spec):
                        self._measure(spec)

    def _reuse_proof(self, spec: TrialSpec) -> bool:
        """Take over the proof of an earlier session, if it still counts."""
        if not self.proofs.reuse_earlier(spec):
            if new := self.proofs.changed(spec):
                self.display.done(f"parity of {spec.computation}: {new} changed, so old launches are set apart", "note")
            return False
        self.proving.count(spec)
        self.display.done(f"parity of {spec.computation}: was proved in an earlier session", "ok")
        return True

    def _compute_references(self, to_prove: Sequence[TrialSpec], to_time: Sequence[TrialSpec]) -> None:
        """Compute all that the session compares with, together, as far as there is time."""
        parity: list[tuple[TrialSpec, Phase]] = [(spec, "parity") for spec in to_prove]
        timing: list[tuple[TrialSpec, Phase]] = [(spec, "timing") for spec in to_time]
        self.references.compute([*parity, *timing], over=self.budget.is_over, before_long=self._tell_outlook)

    def _tell_outlook(self) -> None:
        """Say once what the plan will take: before what takes long, but after what is refused at once."""
        outlook, self._outlook = self._outlook, None
        for sentence in outlook(samples=lambda spec: len(self.references.batches(spec))) if outlook else ():
            self.display.done(sentence, "note")

    def _drop_without_reference(self, trials: Sequence[TrialSpec]) -> list[TrialSpec]:
        """Write rows for the trials of cells with a reference that could not be computed; returns the others.

        Such a trial is not at fault: --resume tries it again.
        """
        failures = {spec.computation: failure for spec in trials if (failure := self.references.failure(spec))}
        told: set[str] = set()
        for spec in trials:
            if failure := failures.get(spec.computation):
                status = "pending" if failure.cause.kind == "not_begun" else "killed"
                row = self.rows.without_launch(spec, status=status, reason=failure.reason, cause=failure.cause)
                self.rows.add(row, tell=spec.cell not in told)
                told.add(spec.cell)
        return [spec for spec in trials if spec.computation not in failures]

    def _skip_too_large(self, spec: TrialSpec) -> bool:
        """Write a row for a trial if its cell ran out of memory at a smaller batch, and leave it out."""
        proof = self.proofs.get(spec)
        if (proof and proof.status != "ok") or not self.rows.skip_too_large(spec, proof.parity if proof else None):
            return False
        self.proving.leave_out(spec)
        self.display.advance()
        return True

    def _measure(self, spec: TrialSpec) -> None:
        """Time or train one launch of a proved cell. If its conditions differ from the proof's, prove it again."""
        proof = self.proofs.get(spec)
        if proof is None or proof.status != "ok":
            self.display.advance()
            return
        launched = spec
        if spec.is_cut_by_time:  # every launch is cut where the proved program was
            launched = spec.cut_at(self.proofs.cut(spec))
        curve, golden_by = self.device_references.curve(spec)
        self.display.phase(f"{'training' if spec.training else 'timing'} {spec.cell} launch {spec.launch + 1}")
        planned = self._conditions(spec)
        outcome = self.launches.run_measurement(launched, curve)
        self.display.advance()
        result = self.rows.from_outcome(spec, outcome, planned)
        changed = changed_since(proof, result) if result.conditions.versions else []
        if changed:  # the proof is an earlier session's, or of code that was edited since
            self.proving.prove_alone(spec, changed=changed)
            proof = self.proofs.get(spec)
            if proof is None or proof.status != "ok":
                return
        judge_measurement = trained if spec.training else timed
        losses = () if curve is None else read_losses(curve)
        self.rows.add(replace(judge_measurement(result, outcome, proof.parity, losses), golden_by=golden_by))

    def _conditions(self, spec: TrialSpec) -> Conditions:
        """What a launch that begins now runs with."""
        return before_launch(spec, self.references, self.hardware)

    def _row(self, spec: TrialSpec, outcome: Outcome) -> TrialResult:
        """A row for a parity phase."""
        return self.rows.from_outcome(spec, outcome, self._conditions(spec))

    def _give_up(self, specs: Sequence[TrialSpec], reason: str, cause: Cause, *, status: Status) -> None:
        """Write a row for every trial that has none yet, also for those that the plan does not launch."""
        self.rows.add_idle(self.plan)
        left = [spec for spec in specs if not self.rows.has(spec)]
        if left:
            self.display.done(f"{len(left)} launch{'es' * (len(left) > 1)}: {reason}", status)
        for spec in left:
            proof = self.proofs.get(spec)
            parity = proof.parity if proof else None
            row = self.rows.without_launch(spec, status=status, reason=reason, cause=cause, parity=parity)
            self.rows.add(row, tell=False)
