"""One run from plan to report: prove every cell, time those that passed, write each outcome down as it happens."""

from __future__ import annotations

import importlib.metadata
import shutil
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import harness
from harness import environment, golden, parity, registry, store, workloads
from harness.data import Batches, DataError
from harness.devices import Machine
from harness.display import Display, describe
from harness.errors import Interrupted, UsageError
from harness.interrupts import signals_held
from harness.launch import Order, Outcome, launch
from harness.layers import Arrays
from harness.plan import Plan, normalization_groups
from harness.specs import FAILURES, TrialResult, TrialSpec
from harness.verdicts import CHECKED_LOSSES, judge, timed

GOLDEN_FLOPS = 1e11  # a golden loss curve that costs more than this, some ten seconds of numpy, is cut to what fits


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What the parent prepares once for each workload: its samples, as a file and as batches."""

    path: Path
    batches: Batches


class Run:
    """The state of one run: its folder, what is proved, what is still to do."""

    def __init__(
        self,
        plan: Plan,
        machine: Machine,
        folder: Path,
        *,
        command: str,
        data: Path | None,
        display: Display,
        recipe: str = "",
    ) -> None:
        self.plan, self.machine, self.folder, self.data, self.display = plan, machine, folder, data, display
        # not in the run folder, whose path may hold characters that a rendezvous URL or PYTHONPATH cannot
        self.work = Path(tempfile.mkdtemp(prefix="likeforlike-"))
        self.inputs: dict[str, Inputs] = {}
        self.curves: dict[tuple, tuple[float, ...]] = {}
        self.proofs: dict[str, TrialResult] = {}  # by computation
        self.results: list[TrialResult] = []
        self.most_devices = max(trial.spec.devices for trial in plan.trials)
        takes_data = any(workloads.get(t.spec.workload, t.spec.size).takes_data for t in plan.trials)
        self.about = {
            "command": command,
            "recipe": recipe,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "preset": plan.preset,
            "planned": str(len(plan.trials)),
            "version": harness.__version__,
            "commit": environment.commit(),
            "data": "the IDX files of --data" if data and takes_data else "bundled",
        }

    def execute(self) -> list[TrialResult]:
        """All trials of the plan, in order. Always leaves one result for each; re-raises an interruption afterwards."""
        specs = self.plan.runnable()
        computations = {spec.computation: spec for spec in specs}
        self.display.start(len(computations) + len(specs))
        try:
            # bad --data or a diverging optimizer shows here, before anything is recorded
            for spec in specs:
                self.prepare(spec)
            for spec in computations.values():
                self.reference(spec)
            for trial in self.plan.trials:
                if trial.status != "planned":
                    self.record(self.result(trial.spec, status=trial.status, reason=trial.reason))
            for spec in computations.values():
                self.prove(spec)
            for spec in specs:
                self.measure(spec)
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
            shutil.rmtree(self.work, ignore_errors=True)
        return self.results

    def prepare(self, spec: TrialSpec) -> None:
        """Load a workload's samples, once. Raises UsageError for bad --data."""
        key = f"{spec.workload}-{spec.size}"
        if key in self.inputs:
            return
        self.display.phase(f"preparing {key}")
        workload = workloads.get(spec.workload, spec.size)
        try:
            arrays = workload.load("train", self.data if workload.takes_data else None)
        except DataError as error:
            raise UsageError(str(error)) from error
        np.savez(self.work / f"{key}.npz", **arrays)  # pyright: ignore[reportArgumentType]
        batches = Batches(arrays, seed=spec.seed, transform=workload.transform)
        self.inputs[key] = Inputs(path=self.work / f"{key}.npz", batches=batches)

    def golden_losses(self, spec: TrialSpec) -> tuple[float, ...]:
        """The golden loss curve of a cell's timed run: all of it, or its first loss, or nothing, by what it costs."""
        if spec.protocol == "from_host":
            return ()  # its batches are made on the spot
        workload = workloads.get(spec.workload, spec.size)
        groups = normalization_groups(
            self.strategy(spec), batch=spec.global_batch, devices=spec.devices, **spec.options
        )
        if not workload.normalizes:
            groups = (spec.global_batch,)  # the same for all strategies, so computed once
        key = (spec.workload, spec.size, groups)
        if key not in self.curves:
            step_flops = workload.flops_per_unit() * spec.global_batch
            affordable = int(GOLDEN_FLOPS // step_flops)
            # with BatchNorm every grouping has a curve of its own, so only what is checked is computed
            wanted = CHECKED_LOSSES if workload.normalizes else spec.curve_steps
            steps = min(wanted, affordable)
            curve: list[float] = []
            if steps:
                params, samples = workload.init_params(spec.seed), self.samples(spec, steps, spec.global_batch)
                run = golden.train(workload, params, samples, optimizer=spec.optimizer, groups=groups)
                curve = run.losses.tolist()
            self.curves[key] = tuple(curve)
        return self.curves[key]

    def samples(self, spec: TrialSpec, steps: int, batch: int) -> Iterator[Arrays]:
        """The first batches of a cell's workload."""
        batches = self.inputs[f"{spec.workload}-{spec.size}"].batches
        return (batches.batch(step, batch) for step in range(steps))

    def reference(self, spec: TrialSpec) -> tuple[Path, tuple[int, ...]]:
        """The file with a cell's golden reference, computed when first asked for, and its normalization groups.

        Raises UsageError if the reference itself diverges: then no program can be judged.
        """
        groups = normalization_groups(
            self.strategy(spec), batch=spec.parity_batch, devices=spec.devices, **spec.parity_options
        )
        path = self.work / f"golden-{spec.workload}-{spec.size}-{'+'.join(map(str, groups))}.npz"
        if not path.exists():
            self.display.phase(f"preparing the golden reference of {spec.workload} {spec.size}")
            workload = workloads.get(spec.workload, spec.size)
            params = workload.init_params(spec.seed)
            samples = self.samples(spec, spec.parity_steps, spec.parity_batch)
            with np.errstate(all="ignore"):
                found = parity.make_reference(workload, params, samples, optimizer=spec.optimizer, groups=groups)
            if not all(np.all(np.isfinite(array)) for array in (found.losses, *found.params.values())):
                rate = spec.optimizer.learning_rate
                raise UsageError(
                    f"--optimizer: the golden reference itself diverges at learning_rate {rate:g}; lower it"
                )
            found.save(path)
        return path, groups

    def prove(self, spec: TrialSpec) -> None:
        """The parity phase of a cell; a cell that fails gets its rows now and is never timed."""
        self.display.phase(f"parity {spec.computation}")
        reference, groups = self.reference(spec)
        outcome = self.launch(spec, "parity", reference, len(groups))
        proof = judge(self.result(spec, outcome=outcome), outcome)
        self.proofs[spec.computation] = proof
        self.display.advance()
        if proof.status == "ok":
            assert proof.parity is not None
            worst = max(check.error for check in proof.parity.checks)
            self.display.done(f"parity of {spec.computation}: worst relative error {worst:.1e}", "ok")
        else:
            for other in (other for other in self.plan.runnable() if other.computation == spec.computation):
                self.record(replace(proof, spec=other))

    def measure(self, spec: TrialSpec) -> None:
        """The timing phase of one launch."""
        proof = self.proofs[spec.computation]
        if proof.status == "ok":
            self.display.phase(f"timing {spec.cell} launch {spec.launch + 1}")
            outcome = self.launch(spec, "timing", Path("unused"), 1)
            self.display.advance()
            self.record(timed(self.result(spec, outcome=outcome), outcome, proof.parity, self.golden_losses(spec)))
        else:
            self.display.advance()

    def launch(self, spec: TrialSpec, phase: Any, reference: Path, groups: int) -> Outcome:
        """Launch one phase and keep its logs."""
        name = f"{spec.computation}-parity" if phase == "parity" else f"{spec.cell}-launch{spec.launch}"
        folder = self.work / name
        order = Order(
            spec=spec,
            phase=phase,
            interpreter=self.plan.interpreters[spec.framework],
            folder=folder,
            inputs=self.inputs[f"{spec.workload}-{spec.size}"].path,
            golden=reference,
            groups=groups,
            devices_in_plan=self.most_devices,
        )
        try:
            return launch(order, self.machine, on_progress=self.display.detail)
        finally:
            logs = self.folder / "logs" / name
            logs.mkdir(parents=True)
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
            environment=first.get("environment", {}),
            cores=outcome.cores,
            **known,
        )

    def record(self, result: TrialResult) -> None:
        with signals_held():  # a result is in both places or in none
            store.append(self.folder, result)
            self.results.append(result)
        self.display.done(describe(result), result.status)

    def give_up(self, specs: list[TrialSpec], reason: str) -> None:
        """A row for every trial that has none yet."""
        recorded = {(result.spec.cell, result.spec.launch) for result in self.results}
        for spec in specs:
            if (spec.cell, spec.launch) not in recorded:
                proof = self.proofs.get(spec.computation)
                known = {"status": "killed", "reason": reason, "parity": proof.parity if proof else None}
                self.record(self.result(spec, **known))

    def strategy(self, spec: TrialSpec):
        return registry.framework(spec.framework).strategy(spec.strategy)


def exit_code(results: list[TrialResult]) -> int:
    """0 if every trial ran or was rightly skipped, else 1."""
    return 1 if any(result.status in FAILURES for result in results) else 0


def write_environment(run: Run, path: Path) -> None:
    """environment.json: the machine, the versions that workers reported, the variables they got, and the plan."""
    seen: dict[str, Any] = {}
    for result in run.results:
        if result.versions:
            seen[result.spec.framework] = {"versions": result.versions, "variables": result.environment}
    packages = {item.metadata["Name"]: item.version for item in importlib.metadata.distributions()}
    content = {
        "run": run.about,
        "machine": environment.hardware(run.machine),
        "frameworks": seen,
        "harness_packages": dict(sorted(packages.items())),
        "plan": [asdict(spec) for spec in run.plan.runnable()],
    }
    store.write_json(path, content)
