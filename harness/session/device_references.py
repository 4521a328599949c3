"""References for the timed curve where NumPy would take too long: the same network in float64, trained on the device.

The `single` strategy of the first framework that needs it trains the first steps at the timed batch, with the timed
optimizer and the same BatchNorm groups. It is a program like those that it judges, so it must pass the parity gate
itself, on a small batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from harness import workloads
from harness.gate.runs import normalization
from harness.launch.launcher import Outcome
from harness.planning.judges import plain_single
from harness.results.judge import judge
from harness.session.phase_launches import PhaseLaunches
from harness.session.proofs import Proofs, changed_since
from harness.session.references import References
from harness.spec import CHECKED_LOSSES, CurveReference, TrialResult, TrialSpec, registry
from harness.spec.progress import Display

CPU_FLOPS = 1e12
"""Floating-point operations that such a reference may cost on CPU devices. On GPUs it may cost anything: ResNet-50 on
256 images of 224 x 224 takes 1.2 s a step on an H200."""


class DeviceReferences:
    """Computes each reference once in a session, when the first cell needs it."""

    def __init__(
        self,
        references: References,
        launches: PhaseLaunches,
        proofs: Proofs,
        *,
        row: Callable[[TrialSpec, Outcome], TrialResult],
        work: Path,
        display: Display,
    ) -> None:
        """`row`: an empty row for a launch, to be judged. `work`: the session's scratch folder."""
        self._references, self._launches, self._proofs, self._row = references, launches, proofs, row
        self._work, self._display = work, display
        self._found: dict[tuple, Path] = {}
        self._failed: set[tuple] = set()  # with the framework: that of another one may fit into memory

    def curve(self, spec: TrialSpec) -> tuple[Path | None, CurveReference]:
        """The file with the reference of a cell's first timed steps, and who made it; None if there is none."""
        if found := self._on_device(spec):
            return found, "device"
        found = self._references.curve(spec)
        return found, "numpy" if found else ""

    def _on_device(self, spec: TrialSpec) -> Path | None:
        twin = float64_twin(spec)
        if twin is None or not self._worth(spec):
            return None
        # One framework's reference serves all: it is in float64, and has passed the gate.
        key = (twin.workload, twin.size, twin.seed, twin.global_batch, twin.accumulation_steps, twin.optimizer)
        key += (twin.platform, spec.precision)
        if key not in self._found and (twin.framework, key) not in self._failed:
            found = self._compute(twin, spec)
            if found is None:
                self._failed.add((twin.framework, key))
                return None
            self._found[key] = found
        return self._found.get(key)

    def _worth(self, spec: TrialSpec) -> bool:
        """Whether NumPy cannot afford the steps that are compared at least, and the device can."""
        wanted = min(CHECKED_LOSSES, spec.curve_steps)
        if spec.protocol != "resident" or spec.training or self._references.curve_steps(spec) >= wanted:
            return False
        step = spec.global_batch * workloads.get(spec.workload, spec.size).flops_per_unit()
        return spec.platform == "gpu" or 2 * wanted * step <= CPU_FLOPS

    def _compute(self, twin: TrialSpec, spec: TrialSpec) -> Path | None:
        name = f"{twin.workload} {twin.size} in float64 by {registry.framework(twin.framework).title} on the device"
        self._display.phase(f"reference: {name}")
        earlier = self._proofs.reuse_earlier(twin)
        if not earlier and not self._prove(twin, name):
            return None
        self._work.mkdir(exist_ok=True)
        output = self._work / f"device-reference-{len(self._found)}.npz"
        outcome = self._launches.run_reference(twin, output, rounding=spec.precision)
        self._display.done(f"reference: {name}{': ' if outcome.reason else ''}{outcome.reason}", outcome.status)
        if outcome.status != "ok":
            return None
        changed = earlier and changed_since(self._proofs.by_computation[twin.computation], self._row(twin, outcome))
        return None if changed and not self._prove(twin, name) else output

    def _prove(self, twin: TrialSpec, name: str) -> bool:
        """Whether the program of a reference passes the parity gate now."""
        proof = judge(self._row(twin, outcome := self._launches.run_parity(twin)), outcome)
        self._proofs.add(twin, proof)
        if proof.status != "ok":
            self._display.done(f"reference: {name}: {proof.reason}", proof.status)
        return proof.status == "ok"


def float64_twin(spec: TrialSpec) -> TrialSpec | None:
    """The cell that trains like this one, on one device in float64 and without any option; None if there is none.

    A gradient accumulated over parts of the batch has the BatchNorm groups of as many devices or micro-batches.
    """
    if spec.algorithm != "synchronous":
        return None
    groups = normalization(spec, spec.options)(spec.global_batch)
    if len(set(groups)) > 1 or spec.parity_batch % len(groups):
        return None
    variant = f"float64 reference, {spec.global_batch} samples, {len(groups)} groups"
    return replace(
        plain_single(spec, spec.framework, variant=variant),
        accumulation_steps=len(groups),
        precision="fp64",
        curve_steps=min(CHECKED_LOSSES, spec.curve_steps),
        parity_steps=workloads.get(spec.workload, spec.size).parity_steps,
    )
