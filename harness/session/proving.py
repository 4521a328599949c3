"""The parity phases of a session: which run side by side, and what becomes of a cell that fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from psutil import virtual_memory

from harness.launch import pool
from harness.launch.interrupts import signals_held
from harness.launch.launcher import Outcome
from harness.machine.devices import Machine
from harness.planning.plan import Plan, first_of_each_computation
from harness.planning.side_by_side import at_once
from harness.reporting.formatting import at_most
from harness.results.judge import judge, judged_by
from harness.session.budget import Budget
from harness.session.phase_launches import PhaseLaunches
from harness.session.proofs import Proofs
from harness.session.rows import Rows
from harness.spec import TrialResult, TrialSpec, registry
from harness.spec.progress import Display


class Proving:
    """Proves cells, and writes down the failures."""

    def __init__(
        self,
        plan: Plan,
        machine: Machine,
        proofs: Proofs,
        launches: PhaseLaunches,
        rows: Rows,
        row: Callable[[TrialSpec, Outcome], TrialResult],
        *,
        budget: Budget,
        display: Display,
    ) -> None:
        """`row`: makes the row of a parity phase."""
        self._plan, self._machine, self._proofs, self._launches = plan, machine, proofs, launches
        self._rows, self._row, self._budget, self._display = rows, row, budget, display
        self._counted: set[str] = set()  # computations whose parity phase the display has counted

    def prove(self, trials: Sequence[TrialSpec]) -> None:
        """Run the parity phases of these trials that nobody has tried yet, as far as there is time."""
        specs = [spec for spec in first_of_each_computation(trials) if self._proofs.get(spec) is None]
        for spec in self._side_by_side(specs):
            if self._budget.allows("parity"):
                self.prove_alone(spec)

    def prove_alone(self, spec: TrialSpec, *, changed: Sequence[str] = ()) -> None:
        """Run the parity phase of a cell while nothing else runs. `changed`: what has another version or value than in
        its proof of an earlier session."""
        self._display.phase(f"parity {spec.computation}{' again' if changed else ''}")
        self._judge(spec, self._launches.run_parity(spec), changed=changed)

    def leave_out(self, spec: TrialSpec) -> None:
        """Count the parity phase of a trial as done if it has had none: it will not be launched."""
        if self._proofs.get(spec) is None:
            self.count(spec)

    def _side_by_side(self, specs: list[TrialSpec]) -> list[TrialSpec]:
        """Run parity phases several at a time where they may share devices; returns the cells still to be proved."""
        frameworks = {spec.framework: registry.framework(spec.framework) for spec in specs}
        together = [spec for spec in specs if pool.may_share(spec, frameworks[spec.framework])]
        together = [] if self._machine.exclusive else together
        number = at_once(together, cores=len(self._machine.cores), memory_bytes=virtual_memory().available)
        if number == 1:
            return specs
        self._display.phase(f"parity of {len(together)} cells, {number} at a time")
        alone = [spec for spec in specs if spec not in together]
        has_time = partial(self._budget.allows, "parity")
        for spec, outcome in pool.side_by_side(self._launches.run_parity, together, at_once=number, has_time=has_time):
            if pool.may_have_lacked_room(judge(self._row(spec, outcome), outcome).status, outcome.cause):
                self._display.done(f"parity of {spec.computation}: {outcome.reason}; runs again alone later", "again")
                alone.append(spec)
            else:
                self._judge(spec, outcome)
        return alone

    def _judge(self, spec: TrialSpec, outcome: Outcome, *, changed: Sequence[str] = ()) -> None:
        """Judge a parity phase. A cell that fails gets its rows now, and is never timed."""
        proof = judge(self._row(spec, outcome), outcome)
        proof = judged_by(proof, self._launches.judge(spec))
        self._proofs.add(spec, proof)
        self.count(spec)
        if proof.status == "ok":
            assert proof.parity is not None
            worst = max(check.error for check in proof.parity.checks)
            again = f"proved again, because {', '.join(changed)} changed since an earlier session; " if changed else ""
            self._display.done(f"parity of {spec.computation}: {again}worst relative error {at_most(worst)}", "ok")
            return
        told: set[str] = set()
        with signals_held():  # of all launches: none may be left for --resume to try again
            for other in self._plan.runnable():
                if other.computation == spec.computation and not self._rows.has(other):
                    self._rows.add(replace(proof, spec=other), tell=other.cell not in told)
                    told.add(other.cell)

    def count(self, spec: TrialSpec) -> None:
        """Count a parity phase as done. One that is repeated counts once."""
        if spec.computation not in self._counted:
            self._counted.add(spec.computation)
            self._display.advance()
